"""Microsoft's modules: V1 with its maps in memory, V1 by two and by four fused attentions, and V2."""
import torch
import torch.nn.functional as F
from torch import nn

from .parts import VOCABULARY, Decoder, LambdaVectors, RMSNorm, Rotary, lambda_start, repeat_kv, rotate_pairs

WIDTH, HEADS = 32, 2


def flash(q, k, v, causal=True):
    """As flash-attention's function: [B, T, heads, width] in and out, fewer heads of keys and values than of queries."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)


class V1(nn.Module):
    """Projections and epilogue. Its heads are half as many as those of the model that it replaces."""

    def __init__(self, depth, key_heads=HEADS):
        super().__init__()
        self.heads, self.key_heads, self.groups = HEADS, key_heads, HEADS // key_heads
        self.width = WIDTH // HEADS // 2
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj = nn.Linear(WIDTH, WIDTH // self.groups, bias=False)
        self.v_proj = nn.Linear(WIDTH, WIDTH // self.groups, bias=False)
        self.out_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.lambda_init = lambda_start(depth)
        self.lambda_full = LambdaVectors(self.width, self.lambda_init)
        self.subln = RMSNorm(2 * self.width, eps=1e-5)

    def projected(self, x, rotation):
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, 2 * self.heads, self.width)
        k = self.k_proj(x).view(batch, length, 2 * self.key_heads, self.width)
        return rotate_pairs(q, *rotation), rotate_pairs(k, *rotation), self.v_proj(x)


class V1Eager(V1):
    """With several queries for each key, both maps of a pair have the same key here, as in the source."""

    def forward(self, x, rotation, attn_mask=None):
        batch, length, _ = x.shape
        q, k, v = self.projected(x, rotation)
        offset = k.shape[1] - length
        q = q.transpose(1, 2)
        k = repeat_kv(k.transpose(1, 2), self.groups)
        v = repeat_kv(v.view(batch, length, self.key_heads, 2 * self.width).transpose(1, 2), self.groups)
        q *= self.width ** -0.5
        weights = torch.matmul(q, k.transpose(-1, -2))
        if attn_mask is None:
            attn_mask = torch.triu(torch.zeros([length, k.shape[2]]).float().fill_(float("-inf")).type_as(weights), 1 + offset)
        weights = torch.nan_to_num(weights)
        weights += attn_mask
        weights = F.softmax(weights, dim=-1, dtype=torch.float32).type_as(weights)
        weights = weights.view(batch, self.heads, 2, length, k.shape[2])
        weights = weights[:, :, 0] - self.lambda_full(q) * weights[:, :, 1]
        result = self.subln(torch.matmul(weights, v)) * (1 - self.lambda_init)
        return self.out_proj(result.transpose(1, 2).reshape(batch, length, WIDTH))


class V1Flash(V1):
    """By two attentions, where the library takes values that are wider than queries."""

    def forward(self, x, rotation):
        batch, length, _ = x.shape
        q, k, v = self.projected(x, rotation)
        v = v.view(batch, length, self.key_heads, 2 * self.width)
        q = q.reshape(batch, length, self.heads, 2, self.width)
        k = k.reshape(batch, length, self.key_heads, 2, self.width)
        first = flash(q[:, :, :, 0], k[:, :, :, 0], v)
        second = flash(q[:, :, :, 1], k[:, :, :, 1], v)
        result = self.subln(first - self.lambda_full(q) * second) * (1 - self.lambda_init)
        return self.out_proj(result.reshape(batch, length, WIDTH))


class V1FlashHalves(V1):
    """By four attentions, where it does not: each map with each half of the values."""

    def forward(self, x, rotation):
        batch, length, _ = x.shape
        q, k, v = self.projected(x, rotation)
        q = q.reshape(batch, length, self.heads, 2, self.width)
        k = k.reshape(batch, length, self.key_heads, 2, self.width)
        v = v.view(batch, length, self.key_heads, 2, self.width)
        (q1, q2), (k1, k2), (v1, v2) = ((x[:, :, :, 0], x[:, :, :, 1]) for x in (q, k, v))
        first = torch.cat([flash(q1, k1, v1), flash(q1, k1, v2)], dim=-1)
        second = torch.cat([flash(q2, k2, v1), flash(q2, k2, v2)], dim=-1)
        result = self.subln(first - self.lambda_full(q) * second) * (1 - self.lambda_init)
        return self.out_proj(result.reshape(batch, length, WIDTH))


class V2(nn.Module):
    """One attention of twice the heads, whose neighbours are subtracted. Lambda is a sigmoid for each token and head."""

    def __init__(self, depth, heads=4, key_heads=2, width=8):
        super().__init__()
        self.heads, self.key_heads, self.width = heads, key_heads, width
        self.q_proj = nn.Linear(WIDTH, 2 * heads * width, bias=False)
        self.k_proj = nn.Linear(WIDTH, key_heads * width, bias=False)
        self.v_proj = nn.Linear(WIDTH, key_heads * width, bias=False)
        self.lambda_proj = nn.Linear(WIDTH, heads, bias=False)
        self.o_proj = nn.Linear(heads * width, WIDTH, bias=False)

    def projected(self, x, rotation):
        batch, length, _ = x.shape
        q = rotate_pairs(self.q_proj(x).view(batch, length, 2 * self.heads, self.width), *rotation)
        k = rotate_pairs(self.k_proj(x).view(batch, length, self.key_heads, self.width), *rotation)
        return q, k, self.v_proj(x).view(batch, length, self.key_heads, self.width)

    def joined(self, x, both):
        first, second = both[:, :, 0::2], both[:, :, 1::2]
        result = first - torch.sigmoid(self.lambda_proj(x)).unsqueeze(-1) * second
        return self.o_proj(result.reshape(x.shape[0], x.shape[1], self.heads * self.width))

    def forward(self, x, rotation):
        return self.joined(x, flash(*self.projected(x, rotation)))


class V2Step(nn.Module):
    """New tokens behind keys and values [B, past, heads, width] of one layer: logits, and the keys and values with the new ones."""

    def __init__(self):
        super().__init__()
        self.embed_tokens, self.attention, self.rotary = nn.Embedding(VOCABULARY, WIDTH), V2(0), Rotary(8)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids, past):
        x, length, before = self.embed_tokens(ids), ids.shape[1], past[0].shape[1]
        q, *new = self.attention.projected(x, [table[before:] for table in self.rotary(before + length, x)])
        k, v = (torch.cat(both, dim=1) for both in zip(past, new))
        visible = torch.arange(before + length) <= torch.arange(before, before + length)[:, None]
        both = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), attn_mask=visible, enable_gqa=True)
        return self.lm_head(x + self.attention.joined(x, both.transpose(1, 2))), [k, v]


def decoder(attention, layers=2, **options):
    return Decoder(WIDTH, lambda depth: attention(depth, **options), rotary=8, layers=layers)
