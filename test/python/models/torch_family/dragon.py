"""Dragon's attention: V2 in groups of signal heads with one noise head, plain or with what its configuration can add."""
import torch
import torch.nn.functional as F
from torch import nn

from .parts import Decoder, rotate_half

WIDTH = 32


class CentredNorm(nn.Module):
    """RMS norm whose weight is kept as its distance from 1."""

    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.randn(width) * 0.1), eps

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight.float() + 1, self.eps).to(x.dtype)


class Dragon(nn.Module):
    """Plain: one fused attention over all heads; lambda is one sigmoid for each token and noise head."""

    def __init__(self, depth, noise=2, ratio=2, width=8):
        super().__init__()
        self.noise, self.ratio, self.width, self.heads = noise, ratio, width, noise * (ratio + 1)
        self.linear_q = nn.Linear(WIDTH, self.heads * width, bias=False)
        self.linear_k, self.linear_v = nn.Linear(WIDTH, noise * width, bias=False), nn.Linear(WIDTH, noise * width, bias=False)
        self.lambda_proj = nn.Linear(WIDTH, noise, bias=False)
        self.linear_o = nn.Linear(noise * ratio * width, WIDTH, bias=False)

    def keys_and_values(self, x):
        batch, length, _ = x.shape
        return (linear(x).view(batch, length, self.noise, self.width) for linear in (self.linear_k, self.linear_v))

    def forward(self, x, rotation):
        batch, length, _ = x.shape
        q = self.linear_q(x).view(batch, length, self.heads, self.width)
        k, v = self.keys_and_values(x)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q, k = rotate_half(q, *rotation), rotate_half(k, *rotation)
        attended = self.attend(q, k, v).transpose(1, 2)
        attended = attended.reshape(batch, length, self.noise, self.ratio + 1, self.width)
        lam = torch.sigmoid(self.lambda_proj(x))[:, :, :, None, None]
        result = attended[:, :, :, :-1] - lam * attended[:, :, :, -1:]
        return self.linear_o(result.reshape(batch, length, -1))

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class RichDragon(Dragon):
    """Norms of queries and keys, queries scaled by the logarithm of their position (scalable softmax), a soft cap, a window of one
    key more than its number, and keys and values mixed with those of the token before."""

    def __init__(self, depth, window=5, softcap=20.0, **options):
        super().__init__(depth, **options)
        self.window, self.softcap = window, softcap
        self.q_norm, self.k_norm = CentredNorm(self.width), CentredNorm(self.width)
        self.softmax_scaler = nn.Parameter(1 + 0.1 * torch.randn(self.heads))
        self.shift = nn.Linear(WIDTH, self.noise, bias=False)

    def keys_and_values(self, x):
        share = torch.sigmoid(self.shift(x)).unsqueeze(-1)
        return (share * F.pad(t, (0, 0, 0, 0, 1, 0))[:, :-1] + (1 - share) * t for t in super().keys_and_values(x))

    def attend(self, q, k, v):
        length = q.shape[2]
        positions = torch.arange(length)
        q, k = self.q_norm(q), self.k_norm(k)
        seen = torch.clamp(positions + 1, max=self.window).to(q.dtype).log()
        q = q * self.softmax_scaler[:, None, None] * seen[None, None, :, None]
        k, v = (t.repeat_interleave(self.ratio + 1, dim=1) for t in (k, v))
        scores = (q @ k.transpose(-1, -2)).float() * self.width ** -0.5
        scores = self.softcap * torch.tanh(scores / self.softcap)
        behind = positions[:, None] - positions
        scores = scores.masked_fill((behind < 0) | (behind > self.window), float("-inf"))
        return scores.softmax(-1).to(v.dtype) @ v


class FactoredDragon(Dragon):
    """Keys and values as products of factors for each head with factors that all heads share (TPA)."""

    def __init__(self, depth, rank=3, **options):
        super().__init__(depth, **options)
        self.rank = rank
        self.linear_k, self.linear_v = (nn.Linear(WIDTH, rank * (self.noise + self.width), bias=False) for _ in range(2))

    def keys_and_values(self, x):
        batch, length, _ = x.shape
        for linear in (self.linear_k, self.linear_v):
            heads, shared = linear(x).split([self.rank * self.noise, self.rank * self.width], dim=-1)
            yield torch.matmul(heads.view(batch, length, self.noise, self.rank),
                               shared.view(batch, length, self.rank, self.width)) / self.rank


def decoder(attention, layers=2, **options):
    return Decoder(WIDTH, lambda depth: attention(depth, **options), rotary=8, layers=layers)
