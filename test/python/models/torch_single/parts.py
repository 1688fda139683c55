"""Parts shared by the modules: projections to heads and back, rotations by position, masks."""
import torch
from torch import nn

WIDTH, HEADS = 32, 4


class Projected(nn.Module):
    """Projections of rows to queries, keys and values, and of heads to rows; `attend`, which a subclass has, is what lies between."""

    def __init__(self, heads=HEADS, key_heads=None, width=8, value_width=None, rows=WIDTH, context=None):
        super().__init__()
        self.heads, self.key_heads, self.width, self.value_width = heads, key_heads or heads, width, value_width or width
        self.q = nn.Linear(rows, heads * width)
        self.k = nn.Linear(context or rows, self.key_heads * width)
        self.v = nn.Linear(context or rows, self.key_heads * self.value_width)
        self.out = nn.Linear(heads * self.value_width, rows)

    def split(self, x, heads):
        """[batch, length, heads * width] to [batch, heads, length, width]."""
        return x.view(*x.shape[:2], heads, -1).transpose(1, 2)

    def forward(self, x, *others):
        context = others[0] if self.k.in_features != x.shape[-1] or getattr(self, "crosses", False) else x
        q, k, v = self.split(self.q(x), self.heads), self.split(self.k(context), self.key_heads), self.split(self.v(context), self.key_heads)
        return self.out(self.attend(q, k, v, *others).transpose(1, 2).flatten(2))


def hidden_ahead(length):
    """True for keys behind the query."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def rotated(x, base=10000.0):
    """[.., length, width], the halves of the width turned by the position."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2]).float()[:, None] * base ** -(torch.arange(half).float() / half)
    cos, sin = (torch.cat([part, part], -1).to(x.dtype) for part in (angles.cos(), angles.sin()))
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def repeated(x, times):
    """Each head `times` times in a row."""
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, times, length, width).reshape(batch, heads * times, length, width)


def rms_normed(x, eps=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
