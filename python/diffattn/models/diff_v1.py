"""The first differential transformer of Microsoft: vectors of lambda, adjacent heads, a norm for each head.

`V1Mixer` has d wide maps and 2d wide values. Query maps 2j and 2j + 1 belong to head j, key maps likewise to the
key-value head; lambda = exp(q1 . k1) - exp(q2 . k2) + lambda_init(depth) for the whole layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import layers
from .config import Config
from .decoder import LAYER, Decoder, Pair, read_frame
from .mlir_text import Function, Module, Value
from .quantization import read_quantization
from .rope import read_rope

LAMBDA = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
HEAD_EPS = 1e-5


def scaled_norm_weight(f: Function, weight: Value | None, width: int, init: Value) -> Value:
    """`weight * (1 - init)`, or that number `width` times: a layer's factor cannot be an attribute in a loop."""
    factor = f.scalar("arith.subf", f.f32(1), init)
    if weight is None:
        return f.fill(factor, [width])
    return f.generic("d -> d", [weight], f.empty([width], "f32"), lambda w, _: f.scalar("arith.mulf", w, factor))


def mix_heads(f: Function, q: Pair, k: Pair, v: Value, vectors: list[Value], weight: Value | None,
              init: Value, eps: float = HEAD_EPS, **masks) -> Value:
    """Differential attention with vectors of lambda and the norm of each head, times 1 - init."""
    width = v.dims[3]
    return layers.attention(
        f, q, k, v, layers.vector_lambda(f, vectors, init), scale=q[0].dims[3] ** -0.5,
        norm_weight=scaled_norm_weight(f, weight, width, init), norm_eps=eps, **masks)


@dataclass
class V1Mixer:
    heads: int
    kv_heads: int
    width: int
    hidden: int
    depth: int

    def __post_init__(self) -> None:
        self.query_heads = 2 * self.heads
        self.key_heads = (2 * self.kv_heads, self.width)
        self.value_heads = (self.kv_heads, 2 * self.width)
        self.key_pairing = "adjacent"

    def declare(self, m: Module, frame: Decoder) -> None:
        rows = {"q": 2 * self.heads, "k": 2 * self.kv_heads, "v": 2 * self.kv_heads}
        for name, count in rows.items():
            frame.layer_matrix(m, f"self_attn.{name}_proj.weight", [count * self.width, self.hidden])
        for name in LAMBDA:
            frame.layer_weight(m, f"self_attn.{name}", [self.width], "f32")
        frame.layer_weight(m, "self_attn.subln.weight", [2 * self.width], "f32")
        frame.layer_matrix(m, "self_attn.out_proj.weight", [self.hidden, 2 * self.heads * self.width])

    def project(self, f: Function, x: Value, layer: Value) -> tuple[Value, Value, Value]:
        return tuple(layers.linear(f, x, f.weight(f"{LAYER}self_attn.{n}_proj.weight", layer)) for n in "qkv")

    def queries(self, f: Function, q: Value) -> Pair:
        return layers.split_pairs(f, q, "adjacent")

    def mix(self, f: Function, x: Value, q: Pair, k: Pair, v: Value, layer: Value, **masks) -> Value:
        init = f.extract(f.table([layers.lambda_init(i) for i in range(self.depth)]), layer)
        vectors = [f.weight(f"{LAYER}self_attn.{n}", layer) for n in LAMBDA]
        return mix_heads(f, q, k, v, vectors, f.weight(LAYER + "self_attn.subln.weight", layer), init, **masks)

    def output(self, f: Function, residual: Value, mixed: Value, layer: Value) -> Value:
        return layers.linear_onto(f, residual, mixed, f.weight(LAYER + "self_attn.out_proj.weight", layer))


def read_heads(config: Config) -> tuple[int, int, int]:
    """Differential heads, their key-value heads, and the width of a map."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    config.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    width = config.integer("head_dim", hidden // heads // 2 or None)
    if width is None:
        raise config.fail("hidden_size", f"at least twice num_attention_heads = {heads}", hidden)
    return heads, kv_heads, width


def build(config: Config, elem: str = "f32", page_rows: int | None = None, inspect: bool = False) -> Module:
    """The decoder of `"model_type": "diff_v1"`."""
    heads, kv_heads, width = read_heads(config)
    longest = config.integer("max_position_embeddings", 2048)
    rope = read_rope(config, width, interleaved=True, longest=longest)
    mixer = V1Mixer(heads, kv_heads, width, config.integer("hidden_size"), config.depth("num_hidden_layers"))
    return read_frame(config, mixer, rope, elem, eps=1e-5, tied=False).build(read_quantization(config), page_rows, inspect)
