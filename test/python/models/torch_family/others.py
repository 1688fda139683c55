"""Smaller users of differential attention: nanowell, Stable Audio's cross-attention, and two forms that are no such difference alone."""
import torch
import torch.nn.functional as F
from torch import nn

from .parts import Decoder, lambda_start

WIDTH = 32


class Nanowell(nn.Module):
    """V1 whose pairs lie in one head of twice the width, and whose lambda is one for each head. `integral`: with the mean of the
    first map over its queries added (DINT)."""

    def __init__(self, depth, heads=2, integral=False):
        super().__init__()
        self.heads, self.width, self.integral = heads, WIDTH // heads // 2, integral
        self.q_proj, self.k_proj = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.v_proj, self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        vectors = (nn.Parameter(torch.randn(heads, self.width) * 0.3) for _ in range(4))
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = vectors
        self.lambda_init = lambda_start(depth)
        self.norm = nn.RMSNorm(2 * self.width, eps=1e-5)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (linear(x).view(batch, length, self.heads, 2 * self.width).transpose(1, 2)
                   for linear in (self.q_proj, self.k_proj, self.v_proj))
        lam = (torch.exp((self.lambda_q1 * self.lambda_k1).sum(-1)) - torch.exp((self.lambda_q2 * self.lambda_k2).sum(-1))
               + self.lambda_init).view(1, self.heads, 1, 1)
        visible = torch.tril(torch.ones(length, length, dtype=torch.bool))
        first, second = (F.softmax((a @ b.transpose(-2, -1) / self.width ** 0.5).masked_fill(~visible, float("-inf")), dim=-1)
                         for a, b in zip(q.chunk(2, dim=-1), k.chunk(2, dim=-1)))
        weights = first - lam * second
        if self.integral:
            weights = weights + lam * first.mean(dim=-2, keepdim=True)
        result = self.norm(weights @ v) * (1 - self.lambda_init)
        return self.o_proj(result.transpose(1, 2).reshape(batch, length, WIDTH))


class CrossAttention(nn.Module):
    """Stable Audio's: keys and values of another sequence, queries and keys that are normalised, and 1 for lambda."""

    def __init__(self, _, context=24, heads=2):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_kv = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(context, 3 * WIDTH, bias=False)
        self.q_norm, self.k_norm = (nn.RMSNorm(WIDTH // heads, eps=1e-6) for _ in range(2))
        self.to_out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, context):
        def heads_of(t):
            return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q, q_diff = (self.q_norm(heads_of(t)) for t in self.to_q(x).chunk(2, dim=-1))
        k, k_diff, v = (heads_of(t) for t in self.to_kv(context).chunk(3, dim=-1))
        k, k_diff = self.k_norm(k), self.k_norm(k_diff)
        result = F.scaled_dot_product_attention(q, k, v) - F.scaled_dot_product_attention(q_diff, k_diff, v)
        return self.to_out(result.transpose(1, 2).flatten(2))


class Edifice(nn.Module):
    """Maps in the two halves of the heads, lambda as it is learned, and a norm of all heads together."""

    def __init__(self, depth, heads=2):
        super().__init__()
        self.heads, self.width = heads, WIDTH // heads
        self.q_proj, self.k_proj = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.v_proj, self.out_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.lam, self.scale = nn.Parameter(torch.tensor(lambda_start(depth))), nn.Parameter(1 + 0.1 * torch.randn(WIDTH))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k = (linear(x).reshape(batch, length, 2 * self.heads, self.width).permute(0, 2, 1, 3) for linear in (self.q_proj, self.k_proj))
        v = self.v_proj(x).reshape(batch, length, self.heads, self.width).permute(0, 2, 1, 3)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / self.width ** 0.5
        place = torch.arange(length)
        maps = torch.softmax(torch.where(place[:, None] >= place[None, :], scores, -1e9), dim=-1)
        weights = maps[:, : self.heads] - self.lam * maps[:, self.heads:]
        result = torch.einsum("bhij,bhjd->bihd", weights, v).reshape(batch, length, WIDTH)
        result = result / (torch.sqrt((result * result).mean(-1, keepdim=True)) + 1e-6) * self.scale
        return self.out_proj(result)


def decoder(attention, **options):
    return Decoder(WIDTH, lambda depth: attention(depth, **options))
