"""The second differential transformer of Microsoft: twice the query heads, shared keys and values, lambda by token.

Query heads 2i and 2i + 1 lie in one group of a key-value head and make output head i with
`attention(2i) - sigmoid(lambda_proj(x))[i] * attention(2i + 1)`; there is no norm behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import layers
from .config import Config
from .decoder import LAYER, Decoder, Pair, read_frame
from .mlir_text import Function, Module, Value
from .quantization import read_quantization
from .rope import read_rope


@dataclass
class V2Mixer:
    heads: int
    kv_heads: int
    width: int
    hidden: int

    def __post_init__(self) -> None:
        self.query_heads = 2 * self.heads
        self.key_heads = self.value_heads = (self.kv_heads, self.width)
        self.key_pairing = "shared"

    def declare(self, m: Module, frame: Decoder) -> None:
        rows = {"q": 2 * self.heads * self.width, "k": self.kv_heads * self.width, "v": self.kv_heads * self.width}
        for name, count in rows.items():
            frame.layer_matrix(m, f"self_attn.{name}_proj.weight", [count, self.hidden])
        # A row a head, which decides how the maps are weighed: it stays exact.
        frame.layer_weight(m, "self_attn.lambda_proj.weight", [self.heads, self.hidden], frame.elem)
        frame.layer_matrix(m, "self_attn.o_proj.weight", [self.hidden, self.heads * self.width])

    def project(self, f: Function, x: Value, layer: Value) -> tuple[Value, Value, Value]:
        return tuple(layers.linear(f, x, f.weight(f"{LAYER}self_attn.{n}_proj.weight", layer)) for n in "qkv")

    def queries(self, f: Function, q: Value) -> Pair:
        return layers.split_pairs(f, q, "adjacent")

    def mix(self, f: Function, x: Value, q: Pair, k: Pair, v: Value, layer: Value, **masks) -> Value:
        logits = layers.linear(f, x, f.weight(LAYER + "self_attn.lambda_proj.weight", layer))
        lam = f.expand(logits, 0, q[0].dims[:2])
        return layers.attention(f, q, k, v, lam, scale=self.width**-0.5, lambda_act="sigmoid", **masks)

    def output(self, f: Function, residual: Value, mixed: Value, layer: Value) -> Value:
        return layers.linear_onto(f, residual, mixed, f.weight(LAYER + "self_attn.o_proj.weight", layer))


def read_heads(config: Config) -> tuple[int, int, int]:
    """Heads of the output, key-value heads, and the width of a map."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    # 2h / h_kv query heads share a key head; a pair must not be torn, so that number is even.
    config.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    width = config.integer("head_dim", hidden // heads or None)
    if width is None:
        raise config.fail("hidden_size", f"at least num_attention_heads = {heads}", hidden)
    return heads, kv_heads, width


def build(config: Config, elem: str = "f32", page_rows: int | None = None, inspect: bool = False) -> Module:
    """The decoder of `"model_type": "diff_v2"`."""
    heads, kv_heads, width = read_heads(config)
    rope = read_rope(config, width, interleaved=True, longest=config.integer("max_position_embeddings", 2048))
    return read_frame(config, V2Mixer(heads, kv_heads, width, config.integer("hidden_size")), rope, elem, eps=1e-5, tied=False).build(read_quantization(config), page_rows, inspect)
