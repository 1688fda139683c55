"""Motif's models: 2.6B, 12.7B with grouped heads (GDA), and 3 with latent keys and values (GDLA)."""
import torch
import torch.nn.functional as F
from torch import nn

from .parts import Decoder, LambdaVectors, RMSNorm, lambda_start, repeat_kv, rotate_half

WIDTH = 32


class PolyNorm(nn.Module):
    """A sum of normalised powers, in place of an activation."""

    def __init__(self, eps=1e-6):
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.randn(3) / 3), nn.Parameter(torch.randn(1) / 3), eps

    def _norm(self, x):
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return (self.weight[0] * self._norm(x ** 3) + self.weight[1] * self._norm(x ** 2) + self.weight[2] * self._norm(x)
                + self.bias)


class PolyNormMLP(nn.Module):
    def __init__(self, inner=2 * WIDTH):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, inner, bias=False), nn.Linear(WIDTH, inner, bias=False)
        self.down_proj = nn.Linear(inner, WIDTH, bias=False)
        self.act_fn = PolyNorm()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Motif(nn.Module):
    """V1 with Llama's rotation. The number of the layer is lowered by 1 before it gives lambda's start."""

    def __init__(self, depth, heads=4, key_heads=2, fused=False):
        super().__init__()
        self.fused, self.width = fused, WIDTH // heads
        self.heads, self.key_heads = heads // 2, key_heads // 2
        self.q_proj = nn.Linear(WIDTH, heads * self.width, bias=False)
        self.k_proj = nn.Linear(WIDTH, key_heads * self.width, bias=False)
        self.v_proj = nn.Linear(WIDTH, key_heads * self.width, bias=False)
        self.o_proj = nn.Linear(heads * self.width, WIDTH, bias=False)
        self.lambda_init = lambda_start(depth - 1)
        self.lambda_full = LambdaVectors(self.width, self.lambda_init)
        self.subln = RMSNorm(2 * self.width, eps=1e-5)

    def forward(self, x, rotation):
        batch, length, _ = x.size()
        q = self.q_proj(x).view(batch, length, 2 * self.heads, self.width).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, 2 * self.key_heads, self.width).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.key_heads, 2 * self.width).transpose(1, 2)
        q, k = rotate_half(q, *rotation), rotate_half(k, *rotation)
        difference = self._fused if self.fused else self._eager
        result = self.subln(difference(q, k, v, self.lambda_full(x))) * (1 - self.lambda_init)
        return self.o_proj(result.transpose(1, 2).reshape(batch, length, -1))

    def _eager(self, q, k, v, lam):
        groups, length = self.heads // self.key_heads, q.shape[2]
        v = repeat_kv(v, groups)
        hidden = torch.full((length, length), torch.finfo(q.dtype).min, dtype=q.dtype).triu(1)
        maps = []
        for number in range(2):
            keys = repeat_kv(k[:, number::2], groups)
            scores = torch.matmul(q[:, number::2], keys.transpose(2, 3)) / self.width ** 0.5 + hidden
            maps.append(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype))
        return torch.matmul(maps[0] - lam * maps[1], v)

    def _fused(self, q, k, v, lam):
        groups = self.heads // self.key_heads
        k1, k2, v = (x.repeat_interleave(groups, dim=1) for x in (k[:, 0::2], k[:, 1::2], v))
        first = F.scaled_dot_product_attention(q[:, 0::2], k1, v, is_causal=True)
        return first - lam * F.scaled_dot_product_attention(q[:, 1::2], k2, v, is_causal=True)


class GroupedMotif(nn.Module):
    """Groups of several signal heads with one noise head behind them."""

    def __init__(self, depth, groups=2, ratio=2, key_heads=4, width=8):
        super().__init__()
        self.groups, self.ratio, self.key_heads, self.width = groups, ratio, key_heads, width
        self.q_proj = nn.Linear(WIDTH, groups * (ratio + 1) * width, bias=False)
        self.k_proj = nn.Linear(WIDTH, key_heads * width, bias=False)
        self.v_proj = nn.Linear(WIDTH, key_heads * width, bias=False)
        self.o_proj = nn.Linear(groups * ratio * 2 * width, WIDTH, bias=False)
        self.lambda_init = lambda_start(depth - 1)
        self.lambda_full = LambdaVectors(width, self.lambda_init)
        self.subln = RMSNorm(2 * width, eps=1e-5)

    def forward(self, x, rotation):
        batch, length, _ = x.size()
        q = self.q_proj(x).view(batch, length, -1, self.width).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.key_heads, self.width).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.key_heads, self.width).transpose(1, 2)
        q, k = rotate_half(q, *rotation), rotate_half(k, *rotation)
        q = q.view(batch, self.groups, self.ratio + 1, length, self.width)
        signal, noise = torch.split(q, [self.ratio, 1], dim=2)
        signal, noise = signal.flatten(1, 2), noise.flatten(1, 2)
        v1, v2 = v[:, 0::2], v[:, 1::2]

        def both_values(queries, keys):
            return torch.cat([F.scaled_dot_product_attention(queries, keys, one, is_causal=True, enable_gqa=True)
                              for one in (v1, v2)], dim=-1)

        result = both_values(signal, k[:, 0::2])
        result = result - self.lambda_full(x) * both_values(noise, k[:, 1::2]).repeat_interleave(self.ratio, dim=1)
        result = self.subln(result) * (1 - self.lambda_init)
        return self.o_proj(result.transpose(1, 2).reshape(batch, length, -1))


class LatentMotif(nn.Module):
    """Keys and values out of one latent vector for each token, one rotated part of keys for all heads, lambda and gates for each
    token and signal head. A layer with a `window` sees so many keys before its own."""

    def __init__(self, depth, groups=2, ratio=2, plain=8, rotated=4, value=8, query_rank=12, rank=16, window=3):
        super().__init__()
        self.groups, self.ratio, self.plain, self.rotated, self.value, self.rank = groups, ratio, plain, rotated, value, rank
        self.heads, self.window = groups * (ratio + 1), window if depth % 2 else None
        self.wq_a, self.q_norm = nn.Linear(WIDTH, query_rank, bias=False), RMSNorm(query_rank)
        self.wq_b = nn.Linear(query_rank, self.heads * (plain + rotated), bias=False)
        self.wq_b_gate = nn.Linear(query_rank, groups * ratio * value, bias=False)
        self.wkv_a, self.kv_norm = nn.Linear(WIDTH, rank + rotated, bias=False), RMSNorm(rank)
        self.wkv_b = nn.Linear(rank, groups * (plain + value), bias=False)
        self.lambda_proj = nn.Linear(WIDTH, groups * ratio, bias=False)
        self.wo = nn.Linear(groups * ratio * value, WIDTH, bias=False)
        self.scale = (plain + rotated) ** -0.5

    def forward(self, x, rotation):
        batch, length, _ = x.size()
        latent = self.q_norm(self.wq_a(x))
        q = self.wq_b(latent).view(batch, length, self.heads, -1).transpose(1, 2)
        gate = self.wq_b_gate(latent).view(batch, length, -1, self.value).transpose(1, 2)
        q_plain, q_rotated = q.split([self.plain, self.rotated], dim=-1)
        q = torch.cat([q_plain, rotate_half(q_rotated, *rotation)], dim=-1)

        latent, k_rotated = self.wkv_a(x).split([self.rank, self.rotated], dim=-1)
        kv = self.wkv_b(self.kv_norm(latent)).view(batch, length, self.groups, -1).transpose(1, 2)
        k_plain, v = kv.split([self.plain, self.value], dim=-1)
        k_rotated = rotate_half(k_rotated.unsqueeze(1), *rotation)
        k = torch.cat([k_plain, k_rotated.expand(-1, self.groups, -1, -1)], dim=-1)

        positions = torch.arange(length)
        behind = positions[:, None] - positions[None, :]
        visible = behind >= 0
        if self.window is not None:
            visible = visible & (behind <= self.window)
        k, v = k.repeat_interleave(self.ratio + 1, dim=1), v.repeat_interleave(self.ratio + 1, dim=1)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=self.scale)
        attended = attended.view(batch, self.groups, self.ratio + 1, length, self.value)
        signal, noise = attended[:, :, : self.ratio], attended[:, :, self.ratio:]
        lam = torch.sigmoid(self.lambda_proj(x).float()).type_as(x).transpose(1, 2)
        lam = lam.view(batch, self.groups, self.ratio, length, 1)
        result = (signal - lam * noise).flatten(1, 2) * torch.sigmoid(gate)
        return self.wo(result.transpose(1, 2).reshape(batch, length, -1))


def decoder(attention, rotary=8, layers=2, **options):
    return Decoder(WIDTH, lambda depth: attention(depth, **options), PolyNormMLP, rotary, layers)
