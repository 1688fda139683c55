"""One multi-head layer of differential attention by itself: x [B,T,D] goes in, [B,T,D] comes out.

`diff_multihead` is the pseudo-code of the paper's figure, made right: maps are scaled by the width of one map, lambda
is learned, each head is normalised by itself over its 2d channels and no token sees another but through attention. Its
matrices are `[in, out]`, those of the heads side by side. `diff_attention` is the same as a PyTorch module with rotary
positions, its matrices `[out, in]`. Both are causal unless the config says `"is_causal": false`.
"""

from __future__ import annotations

from . import diff_v1, layers
from .config import MOST_LAYERS, Config
from .mlir_text import Module
from .quantization import read_quantization
from .rope import read_rope, rotate, tables

NAMES = {
    "diff_multihead": {"q": "W_q", "k": "W_k", "v": "W_v", "o": "W_o", "norm": "norm.weight"},
    "diff_attention": {"q": "wq.weight", "k": "wk.weight", "v": "wv.weight", "o": "out_proj.weight",
                       "norm": "sublayer_norm.weight"},
}


def _build(config: Config, elem: str, kind: str) -> Module:
    heads, kv_heads, width = diff_v1.read_heads(config)
    hidden, depth = config.integer("hidden_size"), config.integer("depth", 0, minimum=0, maximum=MOST_LAYERS)
    names, transposed = NAMES[kind], kind == "diff_multihead"
    rope = None
    if config.flag("rope", kind == "diff_attention"):
        rope = read_rope(config, width, interleaved=True, longest=config.integer("max_position_embeddings", 2048))

    m = Module(read_quantization(config))
    for key, rows in (("q", 2 * heads), ("k", 2 * kv_heads), ("v", 2 * kv_heads)):
        m.matrix(names[key], [rows * width, hidden], elem, transpose=transposed)
    for name in diff_v1.LAMBDA:
        m.weight(name, [width], "f32")
    m.weight(names["norm"], [2 * width], "f32")
    m.matrix(names["o"], [hidden, 2 * heads * width], elem, transpose=transposed)

    f = m.function("forward")
    x = f.argument("x", "f32", [None, None, hidden])
    batch, length = x.dims[:2]
    rows = layers.cast(f, f.collapse(x, [[0, 1], [2]], [f.multiply(batch, length), hidden]), elem)
    q, k, v = (layers.heads_of(f, layers.linear(f, rows, f.weight(names[key])), batch, length, count)
               for key, count in (("q", 2 * heads), ("k", 2 * kv_heads), ("v", kv_heads)))
    if rope:
        cos, sin = tables(f, rope, length=length)
        q, k = (rotate(f, rope, part, cos, sin, f.empty(part.dims, elem), "t") for part in (q, k))
    q, k, v = (layers.cast(f, part, elem) for part in (q, k, v))
    q, k = (layers.split_pairs(f, part, "adjacent") for part in (q, k))
    mixed = diff_v1.mix_heads(f, q, k, v, [f.weight(name) for name in diff_v1.LAMBDA], f.weight(names["norm"]),
                              f.f32(layers.lambda_init(depth)), causal=config.flag("is_causal", True))
    out = layers.linear(f, layers.rows_of(f, mixed, rows.dims[0]), f.weight(names["o"]))
    f.ret(f.expand(out, 0, [batch, length]))
    return m


def build_multihead(config: Config, elem: str = "f32") -> Module:
    return _build(config, elem, "diff_multihead")


def build_attention(config: Config, elem: str = "f32") -> Module:
    return _build(config, elem, "diff_attention")
