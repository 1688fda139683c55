"""DiffLlama as Hugging Face's transformers has it: a Llama whose head j is the difference of maps j and j + H/2.

The keys' halves are a strided view. The value of head j joins value heads j and j + Hkv/2, which is not one, so the
rows of v_proj are put in that order when they are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import layers
from .config import Config
from .decoder import LAYER, Decoder, Pair, read_frame
from .diff_v1 import LAMBDA, mix_heads
from .mlir_text import Function, Module, Value
from .projections import Projections
from .quantization import read_quantization
from .rope import read_rope


@dataclass
class DiffLlamaMixer(Projections):
    maps: int
    kv_maps: int
    width: int
    hidden: int
    depth: int
    eps: float
    bias: bool

    def __post_init__(self) -> None:
        self.query_heads = self.maps
        self.key_heads = (self.kv_maps, self.width)
        self.value_heads = (self.kv_maps // 2, 2 * self.width)
        self.key_pairing = "halves"

    def declare(self, m: Module, frame: Decoder) -> None:
        half = self.kv_maps // 2
        joined = [j + part * half for j in range(half) for part in (0, 1)]
        self.declare_inputs(m, frame, {"q": self.maps, "k": self.kv_maps, "v": self.kv_maps}, {"v": joined})
        for name in LAMBDA:
            frame.layer_weight(m, f"self_attn.{name}", [self.width], "f32")
        self.declare_output(m, frame, self.maps * self.width)

    def queries(self, f: Function, q: Value) -> Pair:
        return layers.split_pairs(f, q, "halves")

    def mix(self, f: Function, x: Value, q: Pair, k: Pair, v: Value, layer: Value, **masks) -> Value:
        init = f.extract(f.table([layers.lambda_init(i) for i in range(self.depth)]), layer)
        vectors = [f.weight(f"{LAYER}self_attn.{n}", layer) for n in LAMBDA]
        return mix_heads(f, q, k, v, vectors, None, init, self.eps, **masks)


def read_maps(config: Config) -> tuple[int, int, int]:
    """Maps of queries, maps of keys, and their width."""
    hidden, maps = config.integer("hidden_size", 2048), config.integer("num_attention_heads", 32)
    kv_maps = config.integer("num_key_value_heads", maps)
    if maps % 2:
        raise config.fail("num_attention_heads", "even, as two maps make a head", maps)
    if kv_maps % 2:
        raise config.fail("num_key_value_heads", "even, as two maps make a head", kv_maps)
    config.divides("num_key_value_heads", kv_maps, "num_attention_heads", maps)
    width = config.integer("head_dim", hidden // maps or None)
    if width is None:
        raise config.fail("hidden_size", f"at least num_attention_heads = {maps}", hidden)
    return maps, kv_maps, width


def build(config: Config, elem: str = "f32", page_rows: int | None = None, inspect: bool = False) -> Module:
    """The decoder of `"model_type": "diffllama"`."""
    maps, kv_maps, width = read_maps(config)
    if config.number("attention_dropout", 0.0) != 0.0:
        raise config.fail("attention_dropout", "0", config.values["attention_dropout"])
    defaults = {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
    config = Config(defaults | {k: v for k, v in config.values.items() if v is not None}, config.source)
    rope = read_rope(config, width, interleaved=False, longest=config.integer("max_position_embeddings", 2048))
    mixer = DiffLlamaMixer(maps, kv_maps, width, config.integer("hidden_size"), config.depth("num_hidden_layers"),
                           config.number("rms_norm_eps", 1e-5, above=0), config.flag("attention_bias", False))
    return read_frame(config, mixer, rope, elem, eps=1e-5, tied=False).build(read_quantization(config), page_rows, inspect)
