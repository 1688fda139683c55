"""Edifice's differential transformer: states in, one vector (or one a timestep) out.

Its attention differs from the paper's: heads are paired in halves, values are as wide as a map, lambda is a plain
learned number, the norm runs over all heads of a token together with eps added to the root, there are biases, and no
positions of any kind. The whole is causal. Dense kernels lie in the file as `[in, out]`. Dropout is for training only.
"""

from __future__ import annotations

from typing import Any

from . import layers
from .config import Config
from .mlir_text import Dim, Function, Module, Value
from .quantization import read_quantization

NORM_EPS, RMS_EPS = 1e-5, 1e-6
BLOCK = "diff_block_{}_"
OUTPUT_MODES = ("last_timestep", "all", "mean_pool")


def recommended_defaults() -> dict[str, Any]:
    return {"hidden_size": 256, "num_heads": 4, "num_layers": 6, "dropout": 0.1, "window_size": 60}


def output_size(options: dict[str, Any] | None = None) -> int:
    """Width of the output of a model with these options, for each timestep."""
    return Config(options or {}, "options").integer("hidden_size", recommended_defaults()["hidden_size"])


def _heads(config: Config) -> tuple[int, int, int]:
    """Hidden size, heads and the width of a head, which is rounded down as Edifice does."""
    defaults = recommended_defaults()
    hidden = config.integer("hidden_size", defaults["hidden_size"])
    heads = config.integer("num_heads", defaults["num_heads"])
    # Queries are cut as [T, 2 * heads, width] from 2 * hidden channels, so nothing may be left over.
    config.divides("num_heads", heads, "hidden_size", hidden)
    return hidden, heads, hidden // heads


def _dense(m: Module, name: str, rows: int, columns: int, elem: str, **options) -> None:
    m.matrix(f"{name}.kernel", [rows, columns], elem, transpose=True, **options)
    m.weight(f"{name}.bias", [rows], "f32", **options)


def _declare_attention(m: Module, prefix: str, hidden: int, elem: str, **options) -> None:
    for name, rows in (("q", 2 * hidden), ("k", 2 * hidden), ("v", hidden)):
        _dense(m, f"{prefix}_{name}_proj", rows, hidden, elem, **options)
    m.weight(f"{prefix}_compute.{prefix}_lambda", [], "f32", **options)
    m.weight(f"{prefix}_compute.{prefix}_rms_scale", [hidden], "f32", **options)
    _dense(m, f"{prefix}_out_proj", hidden, hidden, elem, **options)


def _attention(f: Function, prefix: str, x: Value, heads: int, batch: Dim, length: Dim, layer: Value | None) -> Value:
    """The rows that go into the output projection."""
    def weight(name: str) -> Value:
        return f.weight(f"{prefix}_{name}", layer)

    def project(name: str, count: int) -> Value:
        rows = layers.linear(f, x, weight(f"{name}_proj.kernel"), weight(f"{name}_proj.bias"))
        return layers.heads_of(f, layers.cast(f, rows, x.elem), batch, length, count)

    q, k = (layers.split_pairs(f, project(name, 2 * heads), "halves") for name in "qk")
    v = project("v", heads)
    mixed = layers.attention(f, q, k, v, weight(f"compute.{prefix}_lambda"), scale=v.dims[3] ** -0.5, causal=True)
    rows = layers.cast(f, layers.rows_of(f, mixed, x.dims[0]), "f32")
    return layers.rms_norm(f, rows, weight(f"compute.{prefix}_rms_scale"), RMS_EPS, x.elem, outside=True)


def build_diff_attention(config: Config, elem: str = "f32") -> Module:
    """Only the attention: `forward(x [B,T,hidden]) -> [B,T,hidden]`. `name` is the prefix of its weights."""
    hidden, heads, _ = _heads(config)
    prefix = config.values.get("name", "diff_attn")
    if not isinstance(prefix, str) or not prefix.replace("_", "").isalnum():
        raise config.fail("name", "letters, digits and underscores", prefix)
    m = Module(read_quantization(config))
    _declare_attention(m, prefix, hidden, elem)
    f = m.function("forward")
    x = f.argument("x", "f32", [None, None, hidden])
    batch, length = x.dims[:2]
    rows = layers.cast(f, f.collapse(x, [[0, 1], [2]], [f.multiply(batch, length), hidden]), elem)
    mixed = _attention(f, prefix, rows, heads, batch, length, None)
    out = layers.linear(f, mixed, f.weight(f"{prefix}_out_proj.kernel"), f.weight(f"{prefix}_out_proj.bias"))
    f.ret(f.expand(out, 0, [batch, length]))
    return m


def _norm(m: Module, name: str, width: int, **options) -> None:
    for part in ("gamma", "beta"):
        m.weight(f"{name}.{part}", [width], "f32", **options)


def _layer(m: Module, hidden: int, heads: int, elem: str) -> None:
    f = m.function("block", private=True)
    h = f.argument("h", "f32", [None, hidden], writable=True)
    layer, batch, length = (f.argument(name, "index") for name in ("layer", "batch", "length"))
    gamma, beta = (f.weight(f"{BLOCK}attn_norm.{part}", layer) for part in ("gamma", "beta"))
    x = layers.layer_norm(f, h, gamma, beta, NORM_EPS, elem)
    mixed = _attention(f, BLOCK + "attn", x, heads, batch, length, layer)
    kernel, bias = (f.weight(f"{BLOCK}attn_out_proj.{part}", layer) for part in ("kernel", "bias"))
    h = layers.linear_onto(f, h, mixed, kernel, bias)
    names = {"norm": "norm.gamma", "norm_bias": "norm.beta", "up": "up.kernel", "up_bias": "up.bias",
             "down": "down.kernel", "down_bias": "down.bias"}
    f.ret(layers.plain_block(f, h, {k: f"{BLOCK}ffn_{v}" for k, v in names.items()}, layer, NORM_EPS, elem))


def build(config: Config, elem: str = "f32") -> Module:
    """`forward(state_sequence [B,T,embed_dim])`: `[B,hidden]`, or `[B,T,hidden]` with `"output_mode": "all"`."""
    hidden, heads, _ = _heads(config)
    defaults = recommended_defaults()
    embed = config.integer("embed_dim")
    count = config.depth("num_layers", defaults["num_layers"])
    mode = config.choice("output_mode", OUTPUT_MODES, "last_timestep")
    dropout = config.number("dropout", defaults["dropout"])
    if not 0 <= dropout < 1:
        raise config.fail("dropout", "at least 0 and below 1", dropout)
    # The length that Edifice compiles for; here any length will do.
    config.integer("window_size", config.integer("seq_len", defaults["window_size"]))

    m = Module(read_quantization(config))
    numbered = {"layers": count, "first_layer": 1}
    if embed != hidden:
        _dense(m, "input_projection", hidden, embed, elem)
    _norm(m, BLOCK + "attn_norm", hidden, **numbered)
    _declare_attention(m, BLOCK + "attn", hidden, elem, **numbered)
    _norm(m, BLOCK + "ffn_norm", hidden, **numbered)
    _dense(m, BLOCK + "ffn_up", 4 * hidden, hidden, elem, **numbered)
    _dense(m, BLOCK + "ffn_down", hidden, 4 * hidden, elem, **numbered)
    _norm(m, "final_norm", hidden)
    _layer(m, hidden, heads, elem)

    f = m.function("forward")
    x = f.argument("state_sequence", "f32", [None, None, embed])
    batch, length = x.dims[:2]
    h = f.collapse(x, [[0, 1], [2]], [f.multiply(batch, length), embed])
    if embed != hidden:
        kernel, bias = (f.weight(f"input_projection.{part}") for part in ("kernel", "bias"))
        h = layers.linear(f, layers.cast(f, h, elem), kernel, bias)
    (h,) = f.loop(count, [h], lambda i, h: f.call("block", [h, i, batch, length], [h]))
    gamma, beta = f.weight("final_norm.gamma"), f.weight("final_norm.beta")
    if mode == "last_timestep":
        whole = f.expand(h, 0, [batch, length])
        last = f.scalar("arith.subi", length, f.index(1))
        h = f.slice(whole, [0, last, 0], [batch, 1, hidden], [1])
    h = layers.layer_norm(f, h, gamma, beta, NORM_EPS, "f32")
    if mode == "last_timestep":
        f.ret(h)
        return m
    h = f.expand(h, 0, [batch, length])
    f.ret(h if mode == "all" else layers.mean_over_length(f, h))
    return m
