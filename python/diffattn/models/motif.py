"""Motif: a Llama with differential heads, PolyNorm in its feed-forward, and lambda_init one layer behind.

Of `num_attention_heads` query maps, `num_noise_heads` groups have r signal heads and then one noise head each; without that
key r is 1, as in the first differential transformer. Key maps 2j and 2j + 1 are for signal and noise, value heads 2j and 2j + 1
are joined, and a key-value head serves the same share of the signal and of the noise heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import layers
from .config import Config
from .decoder import LAYER, Decoder, Pair, read_frame
from .diff_v1 import HEAD_EPS, LAMBDA, mix_heads
from .mlir_text import Function, Module, Value
from .mlp import POLY_NORM
from .projections import Projections
from .quantization import read_quantization
from .rope import read_rope


@dataclass
class MotifMixer(Projections):
    groups: int
    signals: int  # signal heads of a group
    kv_heads: int
    width: int
    hidden: int
    depth: int
    eps: float
    bias: bool

    def __post_init__(self) -> None:
        self.query_heads = self.groups * (self.signals + 1)
        self.output_heads = self.groups * self.signals
        self.key_heads = (2 * self.kv_heads, self.width)
        self.value_heads = (self.kv_heads, 2 * self.width)
        self.key_pairing = "adjacent"

    def declare(self, m: Module, frame: Decoder) -> None:
        # Signal heads of groups are no strided view, so they are put before all noise heads when they are loaded.
        group = self.signals + 1
        order = [g * group + i for g in range(self.groups) for i in range(self.signals)]
        order += [g * group + self.signals for g in range(self.groups)]
        heads = {"q": self.query_heads, "k": 2 * self.kv_heads, "v": 2 * self.kv_heads}
        self.declare_inputs(m, frame, heads, {"q": order} if self.signals > 1 else {})
        for name in LAMBDA:
            frame.layer_weight(m, f"self_attn.{name}", [self.width], "f32")
        frame.layer_weight(m, "self_attn.subln.weight", [2 * self.width], "f32")
        self.declare_output(m, frame, self.output_heads * 2 * self.width)

    def queries(self, f: Function, q: Value) -> Pair:
        if self.signals == 1:
            return layers.split_pairs(f, q, "adjacent")
        return layers.split_heads(f, q, self.output_heads)

    def mix(self, f: Function, x: Value, q: Pair, k: Pair, v: Value, layer: Value, **masks) -> Value:
        # Its code subtracts 1 from an index that begins at 0, so the first layer's is 0.8 - 0.6 exp(0.3) < 0.
        init = f.extract(f.table([layers.lambda_init(i - 1) for i in range(self.depth)]), layer)
        vectors = [f.weight(f"{LAYER}self_attn.{n}", layer) for n in LAMBDA]
        return mix_heads(f, q, k, v, vectors, f.weight(LAYER + "self_attn.subln.weight", layer), init, self.eps, **masks)


def read_groups(config: Config) -> tuple[int, int, int]:
    """Groups, signal heads of a group, and key-value heads, of which each joins two of the config's."""
    maps = config.integer("num_attention_heads")
    kv_maps = config.integer("num_key_value_heads", maps)
    for key, count in (("num_attention_heads", maps), ("num_key_value_heads", kv_maps)):
        if count % 2 and (key != "num_attention_heads" or config.values.get("num_noise_heads") is None):
            raise config.fail(key, "even, as two maps make a head", count)
    groups = config.integer("num_noise_heads", maps // 2)
    if maps % groups or maps == groups:
        raise config.fail("num_noise_heads", f"below num_attention_heads = {maps} and a divisor of it", groups)
    # Noise heads are the fewer, or as many as the signal heads: what divides them divides both.
    if groups % (kv_maps // 2):
        raise config.fail("num_key_value_heads", f"twice a divisor of the {groups} noise heads", kv_maps)
    return groups, maps // groups - 1, kv_maps // 2


def check_fixed(config: Config) -> None:
    """Refuses options that other models of the name have, and these do not."""
    for key in ("kv_lora_rank", "q_lora_rank"):
        if config.values.get(key) is not None:
            raise config.fail(key, "absent, because Motif-3 with its latent attention is not supported", config.values[key])
    if config.integer("k_ratio", 1) != 1:
        raise config.fail("k_ratio", "1", config.values["k_ratio"])
    if config.flag("use_sliding_window", False):
        raise config.fail("use_sliding_window", "false", True)
    for key, value in (("attention_dropout", 0.0), ("partial_rotary_factor", 1.0)):
        if config.number(key, value) != value:
            raise config.fail(key, f"{value:g}", config.values[key])
    if not config.flag("is_causal", True):
        raise config.fail("is_causal", "true", False)


def build(config: Config, elem: str = "f32", page_rows: int | None = None, inspect: bool = False) -> Module:
    """The decoder of `"model_type": "motif"`."""
    check_fixed(config)
    hidden, maps = config.integer("hidden_size"), config.integer("num_attention_heads")
    groups, signals, kv_heads = read_groups(config)
    width = config.integer("head_dim", hidden // maps or None)
    if width is None:
        raise config.fail("hidden_size", f"at least num_attention_heads = {maps}", hidden)
    # No source gives defaults for what decides the angles: they must be there. Without scaling the length decides nothing.
    scaled = config.values.get("rope_scaling") or config.values.get("rope_parameters")
    longest = config.integer("max_position_embeddings", *([] if scaled else [2048]))
    rope = read_rope(config, width, interleaved=False, longest=longest, theta=None)
    bias = config.flag("use_bias", False)
    mixer = MotifMixer(groups, signals, kv_heads, width, hidden, config.depth("num_hidden_layers"),
                       config.number("attn_rms_norm_eps", HEAD_EPS, above=0), bias)
    return read_frame(config, mixer, rope, elem, eps=1e-6, tied=False, activations=(POLY_NORM,), mlp_bias=bias).build(read_quantization(config), page_rows, inspect)
