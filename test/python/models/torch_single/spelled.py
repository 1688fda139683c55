"""Softmax attention op by op, as models have it in their eager code."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from .parts import HEADS, WIDTH, Projected, hidden_ahead, repeated, rms_normed, rotated


class Vit(nn.Module):
    """Queries, keys and values in one projection; the query is scaled."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        attention = (q * (width // HEADS) ** -0.5) @ k.transpose(-2, -1)
        return self.proj((attention.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch, length, width))


class NanoGpt(nn.Module):
    """A buffer of ones below the diagonal, of which a call takes a corner."""

    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        return self.c_proj((F.softmax(scores, dim=-1) @ v).transpose(1, 2).contiguous().view(batch, length, width))


class Gpt2(Projected):
    """The least number of f32 in the place of hidden scores."""

    def attend(self, q, k, v):
        scores = torch.matmul(q, k.transpose(-1, -2)) / torch.full([], self.width ** 0.5, dtype=q.dtype)
        least = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype)
        seen = ~hidden_ahead(q.shape[-2])[None, None]
        return torch.matmul(torch.where(seen, scores, least).softmax(-1), v)


class Bert(Projected):
    """A mask of the tokens as numbers that are added: 0 or the least one."""

    def attend(self, q, k, v, kept):
        added = (1.0 - kept[:, None, None, :].float()) * torch.finfo(torch.float32).min
        return F.softmax(q @ k.transpose(-1, -2) / math.sqrt(self.width) + added, dim=-1) @ v


class Padded(Projected):
    """Keys that are hidden by a mask of the tokens, ahead of the query too."""

    def attend(self, q, k, v, kept):
        hidden = ~kept[:, None, None, :] | hidden_ahead(q.shape[-2])
        return (q @ k.mT * self.width ** -0.5).masked_fill(hidden, float("-inf")).softmax(-1) @ v


class T5(Projected):
    """No scale; a number for each head and each range of distances."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Embedding(8, HEADS)

    def attend(self, q, k, v):
        positions = torch.arange(q.shape[-2])
        distance = positions[None, :] - positions[:, None]
        small = distance.abs().clamp(max=3) + 4 * (distance > 0).long()
        return (q @ k.transpose(3, 2) + self.bias(small).permute(2, 0, 1).unsqueeze(0)).float().softmax(-1).type_as(q) @ v


class Alibi(Projected):
    """A slope of each head times the distance."""

    def attend(self, q, k, v):
        length = q.shape[-2]
        slopes = 2.0 ** -torch.arange(1, HEADS + 1).float()
        distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        scores = q @ k.mT / self.width ** 0.5 + slopes[:, None, None] * distance
        return scores.masked_fill(hidden_ahead(length), float("-inf")).softmax(-1) @ v


class Swin(nn.Module):
    """Windows of 4 by 4 places, a bias from a table by the distance along both axes, and a mask of places that were far apart."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.table = nn.Parameter(torch.randn(49, HEADS))
        place = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        distance = place[:, :, None] - place[:, None, :] + 3
        self.register_buffer("index", distance[0] * 7 + distance[1])
        region = (torch.arange(16) // 8)[None].repeat(4, 1) * torch.tensor([0, 0, 1, 1])[:, None]
        self.register_buffer("mask", (region[:, None] != region[:, :, None]).float() * -100.0)

    def forward(self, x):  # [images * windows, 16, width]
        windows, places, width = x.shape
        q, k, v = self.qkv(x).reshape(windows, places, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q * (width // HEADS) ** -0.5 @ k.transpose(-2, -1)
        scores = scores + self.table[self.index.view(-1)].view(places, places, HEADS).permute(2, 0, 1).unsqueeze(0)
        scores = scores.view(windows // 4, 4, HEADS, places, places) + self.mask[None, :, None]
        return self.proj((scores.view(-1, HEADS, places, places).softmax(-1) @ v).transpose(1, 2).reshape(windows, places, width))


class SwinV2(Projected):
    """Cosines of queries and keys, by a temperature of each head that is learned."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.randn(HEADS, 1, 1))

    def attend(self, q, k, v):
        cosines = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        return (cosines * self.temperature.clamp(max=math.log(100.0)).exp()).softmax(-1) @ v


class Whisper(nn.Module):
    """Batch and heads as one axis of torch.bmm."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=name != "k") for name in "qkvo")

    def forward(self, x):
        batch, length, width = x.shape
        def rows(y):
            return y.view(batch, length, HEADS, -1).transpose(1, 2).reshape(batch * HEADS, length, -1)

        q, k, v = rows(self.q(x) * (width // HEADS) ** -0.5), rows(self.k(x)), rows(self.v(x))
        made = torch.bmm(F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1), v)
        return self.out(made.view(batch, HEADS, length, -1).transpose(1, 2).reshape(batch, length, width))


class TransformerXl(Projected):
    """Scores of the content and, shifted row by row, of the distance."""

    def __init__(self):
        super().__init__()
        self.u, self.w = (nn.Parameter(torch.randn(HEADS, 1, 8)) for _ in range(2))
        self.distance = nn.Parameter(torch.randn(HEADS, 23, 8))

    def attend(self, q, k, v):
        batch, heads, length, _ = q.shape
        content, moved = (q + self.u) @ k.mT, (q + self.w) @ self.distance[:, :2 * length - 1].mT
        moved = F.pad(moved, (1, 0)).reshape(batch, heads, 2 * length, length)[:, :, 1:].reshape(batch, heads, length, 2 * length - 1)
        return ((content + moved[..., :length]) / self.width ** 0.5).softmax(-1) @ v


class Llama(Projected):
    """Rotated queries and keys, heads that share keys, a softmax in f32."""

    def __init__(self):
        super().__init__(key_heads=2)

    def attend(self, q, k, v):
        q, k = rotated(q), rotated(k)
        k, v = repeated(k, 2), repeated(v, 2)
        mask = torch.full((q.shape[-2],) * 2, torch.finfo(q.dtype).min, dtype=q.dtype).triu(1)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.width) + mask
        return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


class Gemma2(Projected):
    """A cap of the scores, and a window of four keys."""

    def attend(self, q, k, v):
        scores = 20.0 * torch.tanh(q @ k.mT * self.width ** -0.5 / 20.0)
        ahead = hidden_ahead(q.shape[-2])
        return scores.masked_fill(ahead | ahead.T.roll(-3, 0).tril(-4), float("-inf")).softmax(-1) @ v


class Window(Projected):
    """Keys of at most three places before or behind the query."""

    def attend(self, q, k, v):
        place = torch.arange(q.shape[-2])
        far = (place[:, None] - place[None, :]).abs() > 3
        return (q @ k.mT * self.width ** -0.5).masked_fill(far, -torch.inf).softmax(-1) @ v


class Qwen3(Projected):
    """Norms of queries and keys, each head by itself, before they are rotated."""

    def __init__(self):
        super().__init__(key_heads=1)
        self.q_norm, self.k_norm = (nn.Parameter(torch.rand(8) + 0.5) for _ in range(2))

    def attend(self, q, k, v):
        q, k = rotated(self.q_norm * rms_normed(q)), rotated(self.k_norm * rms_normed(k))
        scores = (q @ repeated(k, HEADS).mT) * self.width ** -0.5
        return scores.masked_fill(hidden_ahead(q.shape[-2]), float("-inf")).softmax(-1) @ repeated(v, HEADS)


class Cross(Projected):
    """Queries of one sequence, keys and values of another with its own padding."""

    def __init__(self):
        super().__init__(context=24)

    def attend(self, q, k, v, context, kept):
        return (q @ k.mT / self.width ** 0.5).masked_fill(~kept[:, None, None], float("-inf")).softmax(-1) @ v


class Perceiver(Projected):
    """Learned queries, the same for each sequence."""

    def __init__(self):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(5, WIDTH))

    def forward(self, x):
        q = self.split(self.q(self.latents.expand(x.shape[0], -1, -1)), HEADS)
        k, v = self.split(self.k(x), HEADS), self.split(self.v(x), HEADS)
        return self.out(((q @ k.mT * self.width ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Pooling(nn.Module):
    """One query for all heads: a learned vector asks the rows."""

    def __init__(self):
        super().__init__()
        self.seed, self.k, self.v = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        scores = self.seed.expand(x.shape[0], -1, -1) @ self.k(x).mT / WIDTH ** 0.5
        return (scores.softmax(-1) @ self.v(x)).squeeze(1)


class OneKeyHead(Projected):
    """One head of keys and values for all heads of queries, broadcast by the products."""

    def __init__(self):
        super().__init__(key_heads=1)

    def attend(self, q, k, v):
        return (q @ k.mT * self.width ** -0.5).masked_fill(hidden_ahead(q.shape[-2]), float("-inf")).softmax(-1) @ v


class Einsum(Projected):
    """Products by torch.einsum, the values wider than the keys."""

    def __init__(self):
        super().__init__(value_width=12)

    def attend(self, q, k, v):
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * self.width ** -0.5
        return torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1), v)


class GroupedEinsum(Projected):
    """Grouped heads as an axis of their own in the products."""

    def __init__(self):
        super().__init__(key_heads=2)

    def attend(self, q, k, v):
        batch, _, length, width = q.shape
        scores = torch.einsum("bgrid,bgjd->bgrij", q.view(batch, 2, 2, length, width), k) * width ** -0.5
        scores = scores.masked_fill(hidden_ahead(length), float("-inf"))
        return torch.einsum("bgrij,bgjd->bgrid", scores.softmax(-1), v).reshape(batch, HEADS, length, width)


class Linformer(Projected):
    """Keys and values projected along the length, to four of each."""

    def __init__(self):
        super().__init__()
        self.shorter = nn.Parameter(torch.randn(6, 12))

    def attend(self, q, k, v):
        k, v = self.shorter @ k, self.shorter @ v
        return (q @ k.mT * self.width ** -0.5).softmax(-1) @ v


class Latent(Projected):
    """Heads whose width is one part without and one with a rotation, which all heads share for the keys; narrower values."""

    def __init__(self):
        super().__init__(value_width=6)
        self.turned = nn.Linear(8, 4)

    def attend(self, q, k, v):
        shared = rotated(self.turned(k[:, :1])).expand(-1, HEADS, -1, -1)
        q, k = torch.cat([q, rotated(q[..., :4])], -1), torch.cat([k, shared], -1)
        return (q @ k.mT * 12 ** -0.5).masked_fill(hidden_ahead(q.shape[-2]), float("-inf")).softmax(-1) @ v


class Axial(nn.Module):
    """Attention along the columns, then along the rows, of a grid."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))

    def forward(self, x):  # [batch, rows, columns, width]
        for qkv in self.qkv:
            q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(2, 3) for part in qkv(x).chunk(3, -1))
            x = ((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(2, 3).flatten(3).transpose(1, 2)
        return x


class Decoding(Projected):
    """One query, keys and values behind those of a cache, which are results too."""

    def forward(self, x, past_key, past_value):
        q, k, v = (self.split(projection(x), HEADS) for projection in (self.q, self.k, self.v))
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
        return self.out(((q @ k.mT * self.width ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)), k, v


class Gated(Projected):
    """A sigmoid of the row opens each head's result."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v, gate = (self.split(projection(x), HEADS) for projection in (self.q, self.k, self.v, self.gate))
        made = (q @ k.mT * self.width ** -0.5).masked_fill(hidden_ahead(q.shape[-2]), float("-inf")).softmax(-1) @ v
        return self.out((made * gate.sigmoid()).transpose(1, 2).flatten(2))


class Normed(Projected):
    """A norm of each head behind the values."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8) + 0.5)

    def attend(self, q, k, v):
        return self.weight * rms_normed((q @ k.mT * self.width ** -0.5).softmax(-1) @ v, 1e-5)


class Edges(Projected):
    """A bias of each pair and head from kinds of edges of a graph, and no edge to what is no neighbour."""

    def __init__(self):
        super().__init__()
        self.kinds = nn.Embedding(4, HEADS)

    def attend(self, q, k, v, edges):
        scores = q @ k.mT / self.width ** 0.5 + self.kinds(edges).permute(0, 3, 1, 2)
        return scores.masked_fill(edges[:, None] == 0, -1e9).softmax(-1) @ v


class Guarded(Projected):
    """Rows that see no key are 0."""

    def attend(self, q, k, v, seen):
        maps = (q @ k.mT * self.width ** -0.5).masked_fill(~seen[:, None], float("-inf")).softmax(-1)
        return maps.masked_fill(~seen.any(-1)[:, None, :, None], 0.0) @ v


class Sinks(Projected):
    """A logit of each head beside the keys, whose weight is dropped."""

    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(HEADS))

    def attend(self, q, k, v):
        scores = torch.cat([q @ k.mT * self.width ** -0.5, self.sinks.view(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], 1)], -1)
        return scores.softmax(-1)[..., :-1] @ v


class Weights(Projected):
    """The map is a result too."""

    def forward(self, x):
        q, k, v = (self.split(projection(x), HEADS) for projection in (self.q, self.k, self.v))
        maps = (q @ k.mT * self.width ** -0.5).softmax(-1)
        return self.out((maps @ v).transpose(1, 2).flatten(2)), maps.mean(1)


class Dropped(Projected):
    """Weights of which a given mask drops some."""

    def attend(self, q, k, v, kept):
        return ((q @ k.mT * self.width ** -0.5).softmax(-1) * kept) @ v


class TwoScores(Projected):
    """One softmax over a difference of scores."""

    def attend(self, q, k, v):
        s1, s2 = (a @ b.mT for a, b in zip(q.chunk(2, -1), k.chunk(2, -1)))
        return (s1 - 0.3 * s2).softmax(-1) @ v


class Hybrid(nn.Module):
    """A layer of differential attention between two with one map."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.qkv = Vit(), NanoGpt(), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        x = x + self.first(x)
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        a1, a2 = ((a @ b.mT * 8 ** -0.5).softmax(-1) for a, b in zip(q.chunk(2, -1), k.chunk(2, -1)))
        x = x + 0.8 * rms_normed((a1 - 0.4 * a2) @ v).transpose(1, 2).flatten(2)
        return x + self.last(x)


class RefusedPair(Projected):
    """Two maps with values of their own, subtracted: neither is fused, and the difference is what is told."""

    def attend(self, q, k, v):
        a1, a2 = ((a @ b.mT * 4 ** -0.5).softmax(-1) for a, b in zip(q.chunk(2, -1), k.chunk(2, -1)))
        return a1 @ v - 0.3 * (a2 @ (v + v.roll(1, -2)))
