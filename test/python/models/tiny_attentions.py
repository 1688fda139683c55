"""Differential attention in PyTorch, in the three spellings of its authors, each a tiny module: [batch, length, WIDTH] to the same."""
import math
import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 64


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x)


class PlainV1(nn.Module):
    """Two maps of half heads, the difference of them, times V; lambda a parameter."""

    def __init__(self, width=WIDTH, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.lam = nn.Parameter(torch.tensor(0.4))

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = [a @ b.mT / a.shape[-1] ** 0.5 for a, b in zip(q.chunk(2, -1), k.chunk(2, -1))]
        a1, a2 = (s.masked_fill(hidden, float("-inf")).softmax(-1) for s in scores)
        return self.out(((a1 - self.lam * a2) @ v).transpose(1, 2).flatten(2))


class UnilmV1(nn.Module):
    """Microsoft's first: RoPE, shared keys, one softmax over both maps, lambda of four vectors, a norm over each head."""

    def __init__(self, width=WIDTH, heads=4, kv_heads=2, depth=1):
        super().__init__()
        self.heads, self.kv, self.dim = heads, kv_heads, width // heads // 2
        self.init = 0.8 - 0.6 * math.exp(-0.3 * depth)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, 2 * kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(width, 2 * kv_heads * self.dim, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)
        for name in ("q1", "k1", "q2", "k2"):
            setattr(self, "lambda_" + name, nn.Parameter(torch.randn(self.dim) * 0.1))
        self.subln = RMSNorm(2 * self.dim)

    def rotated(self, x):
        n = x.shape[1]
        at = torch.arange(n)[:, None] * 10000.0 ** -(torch.arange(0, self.dim, 2) / self.dim)[None]
        cos, sin = at.cos()[None, :, None].to(x), at.sin()[None, :, None].to(x)
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.rotated(self.q_proj(x).view(b, n, 2 * self.heads, self.dim)).transpose(1, 2)
        k = self.rotated(self.k_proj(x).view(b, n, 2 * self.kv, self.dim)).transpose(1, 2)
        v = self.v_proj(x).view(b, n, self.kv, 2 * self.dim).transpose(1, 2)
        k, v = (t[:, :, None].expand(b, t.shape[1], self.heads // self.kv, n, t.shape[-1]).flatten(1, 2) for t in (k, v))
        scores = q * self.dim ** -0.5 @ k.transpose(-1, -2)
        scores = torch.nan_to_num(scores) + torch.triu(torch.zeros(n, n).float().fill_(float("-inf")).type_as(scores), 1)
        maps = F.softmax(scores, -1, dtype=torch.float32).type_as(scores)
        l1 = torch.exp(torch.sum(self.lambda_q1 * self.lambda_k1, -1).float()).type_as(q)
        l2 = torch.exp(torch.sum(self.lambda_q2 * self.lambda_k2, -1).float()).type_as(q)
        maps = maps.view(b, self.heads, 2, n, n)
        o = (maps[:, :, 0] - (l1 - l2 + self.init) * maps[:, :, 1]) @ v
        return self.out_proj((self.subln(o) * (1 - self.init)).transpose(1, 2).reshape(b, n, -1))


class V2(nn.Module):
    """Microsoft's second: two query heads to a pair, lambda of each token, the difference behind V."""

    def __init__(self, width=WIDTH, heads=4, kv_heads=2, dim=16):
        super().__init__()
        self.heads, self.kv, self.dim = heads, kv_heads, dim
        self.q = nn.Linear(width, 2 * heads * dim, bias=False)
        self.k, self.v = (nn.Linear(width, kv_heads * dim, bias=False) for _ in range(2))
        self.lam, self.o = nn.Linear(width, heads, bias=False), nn.Linear(heads * dim, width, bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q(x).view(b, n, 2 * self.heads, self.dim).transpose(1, 2)
        k, v = (p(x).view(b, n, self.kv, self.dim).transpose(1, 2).repeat_interleave(2 * self.heads // self.kv, 1) for p in (self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        o = a[:, 0::2] - torch.sigmoid(self.lam(x)).transpose(1, 2)[..., None] * a[:, 1::2]
        return self.o(o.transpose(1, 2).flatten(2))
