"""Attention of one map by PyTorch's own functions and modules."""
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa

from .parts import HEADS, WIDTH, Projected, rotated


class Plain(Projected):
    def attend(self, q, k, v):
        return sdpa(q, k, v)


class Causal(Projected):
    """Query 0 sees key 0 alone, however many keys there are."""

    def attend(self, q, k, v):
        return sdpa(q, k, v, is_causal=True, scale=0.3)


class Codec(nn.Module):
    """As codecs of sound have it: two maps with norms of queries and keys, half of their width rotated, subtracted as they are."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 5 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))

    def forward(self, x):
        q1, q2, k1, k2, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(5, -1))

        def turned(norm, x):
            x = norm(x)
            return torch.cat([rotated(x[..., :4]), x[..., 4:]], -1)

        (q1, q2), (k1, k2) = ([turned(norm, x) for x in pair] for norm, pair in zip(self.norms, ((q1, q2), (k1, k2))))
        return self.out((sdpa(q1, k1, v) - sdpa(q2, k2, v)).transpose(1, 2).flatten(2))


class FewQueries(Projected):
    """Fewer queries than keys, counted from the first key."""

    def attend(self, q, k, v):
        return sdpa(q[:, :, -4:], k, v, is_causal=True)


class Grouped(Projected):
    def __init__(self):
        super().__init__(heads=6, key_heads=2)

    def attend(self, q, k, v):
        return sdpa(rotated(q), rotated(k), v, is_causal=True, enable_gqa=True)


class BoolMask(Projected):
    """A row of the mask hides all keys: it is 0."""

    def attend(self, q, k, v, seen):
        return sdpa(q, k, v, attn_mask=seen[:, None])


class FloatMask(Projected):
    def attend(self, q, k, v, added):
        return sdpa(q, k, v, attn_mask=added)


class Flex(Projected):
    """A bias by the distance, and a window behind the query."""

    def attend(self, q, k, v):
        mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 5), None, None, q.shape[2], k.shape[2], device="cpu")
        return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (j - i) * 0.1 * (h + 1), block_mask=mask)


class Multihead(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x, hidden):
        return self.inner(x, x, x, key_padding_mask=hidden, need_weights=False)[0]


class MultiheadWeights(Multihead):
    """The weights are a result too."""

    def forward(self, x, hidden):
        return self.inner(x, x, x, key_padding_mask=hidden)


def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 48, batch_first=True, norm_first=True), 2, enable_nested_tensor=False)


class Decoder(nn.Module):
    """Attention to what came before, and to what an encoder gives."""

    def __init__(self):
        super().__init__()
        self.inner = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, 48, batch_first=True), 1)

    def forward(self, x, context):
        return self.inner(x, context, tgt_mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]), tgt_is_causal=True)
