"""Rotary positions: the frequencies of every kind of scaling, the tables of a call, and the rotation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .config import LARGEST, Config
from .mlir_text import Function, Value

KINDS = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True)
class Rope:
    """Angles are `position * frequencies`; cosines and sines are multiplied by `scale`.

    With `growth` the frequencies depend on the length of the call (dynamic NTK scaling): the base is
    `theta * (growth * max(length, longest) / longest - (growth - 1)) ^ (d / (d - 2))`.
    """

    width: int
    interleaved: bool
    theta: float
    frequencies: np.ndarray
    scale: float = 1.0
    growth: float | None = None
    longest: int = 0


def plain_frequencies(theta: float, width: int) -> np.ndarray:
    exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    return (np.float32(1) / np.float32(theta) ** exponents).astype(np.float32)


def read_factor(parameters: Config, **default) -> float:
    """Factor by which sequences are to be longer, within bounds that keep every frequency in the range of float32."""
    return parameters.number("factor", **default, above=1 / LARGEST, at_most=LARGEST)


def _section(config: Config) -> Config:
    """The section with rope's parameters as transformers 5 reads it: the older section first, and one without keys is none."""
    for key in ("rope_scaling", "rope_parameters"):
        section = config.section(key)
        if section is not None and section.values:
            return section
    return Config({}, config.source)


def _original(config: Config, parameters: Config, longest: int) -> int:
    """Number of positions that the model was made for. A key beside the section wins, as in transformers."""
    outer = config.values.get("original_max_position_embeddings")
    return (parameters if outer is None else config).integer("original_max_position_embeddings", longest)


def _llama3(parameters: Config, plain: np.ndarray, original: int) -> np.ndarray:
    """Long waves are slowed by `factor`, short ones kept, those between interpolated."""
    factor = read_factor(parameters)
    low, high = (parameters.number(key, above=0, at_most=LARGEST) for key in ("low_freq_factor", "high_freq_factor"))
    if not high > low:
        raise parameters.fail("high_freq_factor", f"above low_freq_factor = {low:g}", high)
    waves = 2 * np.pi / plain
    with np.errstate(over="ignore"):  # waves that are not between, where the two are close
        smooth = np.clip((original / waves - low) / (high - low), 0, 1)
    between = (1 - smooth) * plain / factor + smooth * plain
    slowed = np.where(waves > original / low, plain / factor, between)
    return np.where(waves < original / high, plain, slowed).astype(np.float32)


def _yarn(parameters: Config, theta: float, width: int, longest: int, original: int) -> tuple[np.ndarray, float]:
    """Dimensions that turn often keep their frequency, those that turn seldom are slowed, with a ramp between."""
    factor = read_factor(parameters, default=longest / original)
    plain = plain_frequencies(theta, width)

    def dimension(turns: float) -> float:
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension(parameters.number("beta_fast", 32.0, above=0, at_most=LARGEST))
    high = dimension(parameters.number("beta_slow", 1.0, above=0, at_most=LARGEST))
    if parameters.flag("truncate", default="truncate" not in parameters.values):  # null is false
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = np.clip((np.arange(width // 2, dtype=np.float32) - low) / ((high - low) or 0.001), 0, 1)

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    mscale, mscale_all = (parameters.number(key, 0.0, at_most=LARGEST) for key in ("mscale", "mscale_all_dim"))
    for key, value in (("mscale", mscale), ("mscale_all_dim", mscale_all)):
        if value < 0:
            raise parameters.fail(key, "at least 0", value)
    usual = magnitude(mscale) / magnitude(mscale_all) if mscale and mscale_all else magnitude(1.0)
    frequencies = plain / np.float32(factor) * ramp + plain * (1 - ramp)
    return frequencies.astype(np.float32), parameters.number("attention_factor", usual, above=0)


def read_rope(config: Config, width: int, *, interleaved: bool, longest: int, theta: float | None = 10000.0) -> Rope:
    """The rotation that a config asks for, in the older form (rope_theta, rope_scaling) or the newer
    (rope_parameters). `theta` is the default of rope_theta; None: it must be there."""
    if width % 2:
        raise config.fail("head_dim", "even, as rotary positions need pairs", width)
    parameters = _section(config)
    theta = parameters.number("rope_theta", config.number("rope_theta", theta, above=1), above=1)
    if theta is None:
        theta = config.number("rope_theta", above=1)  # an error, which says that it is missing
    kind = parameters.choice("rope_type", KINDS, parameters.choice("type", KINDS, "default"))
    if parameters.number("partial_rotary_factor", 1.0) != 1.0:
        raise parameters.fail("partial_rotary_factor", "1", parameters.values["partial_rotary_factor"])
    plain = plain_frequencies(theta, width)
    if kind == "linear":
        factor = read_factor(parameters)
        return Rope(width, interleaved, theta, (plain / np.float32(factor)).astype(np.float32))
    if kind == "llama3":
        return Rope(width, interleaved, theta, _llama3(parameters, plain, _original(config, parameters, longest)))
    if kind == "yarn":
        frequencies, scale = _yarn(parameters, theta, width, longest, _original(config, parameters, longest))
        return Rope(width, interleaved, theta, frequencies, scale)
    if kind == "dynamic":
        if width < 4:
            raise config.fail("head_dim", "at least 4 with dynamic rope", width)
        factor = read_factor(parameters)
        return Rope(width, interleaved, theta, plain, growth=factor, longest=longest)
    return Rope(width, interleaved, theta, plain)


def _grown_frequencies(f: Function, rope: Rope, length: Value) -> Value:
    """The frequencies for a call of `length` positions, `tensor<d/2xf32>`."""
    longest = f.i64(rope.longest)
    length = f.emit(f"arith.maxsi {f.to_i64(length)}, {longest} : i64", "i64")
    stretch = f.scalar("arith.divf", f.scalar("arith.mulf", f.f32(rope.growth), f.to_f32(length)),
                       f.f32(rope.longest))
    stretch = f.scalar("arith.subf", stretch, f.f32(rope.growth - 1))
    power = f.scalar("math.powf", stretch, f.f32(rope.width / (rope.width - 2)))
    base = f.scalar("arith.mulf", f.f32(rope.theta), power)

    def frequency(exponent: Value, _: Value) -> Value:
        return f.scalar("math.powf", base, exponent)

    exponents = f.table(-np.arange(0, rope.width, 2, dtype=np.float32) / np.float32(rope.width))
    return f.generic("p -> p", [exponents], f.empty([rope.width // 2], "f32"), frequency)


def tables(f: Function, rope: Rope, *, length: Value | None, positions: Value | None = None) -> tuple[Value, Value]:
    """Cosines and sines, `[n, d/2]` f32: of positions 0, 1, ..., length - 1, or of the tensor `positions`.

    `length` is the number of positions in sight, which only dynamic scaling asks for when positions are given.
    """
    frequencies = f.table(rope.frequencies) if rope.growth is None else _grown_frequencies(f, rope, length)
    rows = positions.dims[0] if positions else length

    def table(op: str) -> Value:
        def entry(*scalars: Value) -> Value:
            position = scalars[0] if positions else f.loop_index(0)
            angle = f.scalar("arith.mulf", f.to_f32(position), scalars[-2])
            value = f.scalar(op, angle)
            return value if rope.scale == 1.0 else f.scalar("arith.mulf", value, f.f32(rope.scale))

        out = f.empty([rows, rope.width // 2], "f32")
        if positions:
            return f.generic("n, p -> n p", [positions, frequencies], out, entry)
        return f.generic("p -> n p", [frequencies], out, entry)

    return table("math.cos"), table("math.sin")


def rotate(f: Function, rope: Rope, x: Value, cos: Value, sin: Value, out: Value, row: str) -> Value:
    """Rotates the heads of `x`, `[B, T, heads, d]`, into `out` of the same shape.

    `row` says which loop numbers the rows of the tables: `b` where each batch entry has its own position, else `t`.
    A pair is read in both orders, so one pass over one operand does it.
    """
    pair = (rope.width // 2, 2) if rope.interleaved else (2, rope.width // 2)
    order, swapped, which = ("p s", "p !s", 4) if rope.interleaved else ("s p", "!s p", 3)

    def turn(value: Value, other: Value, c: Value, s: Value, old: Value) -> Value:
        first = f.compare("eq", f.loop_index(which), f.index(0))
        signed = f.select(first, f.scalar("arith.negf", s), s)
        kept = f.scalar("arith.mulf", value, c)
        return f.convert(f.scalar("arith.addf", kept, f.scalar("arith.mulf", other, signed)), old.elem)

    pairs = f.expand(x, 3, pair)
    into = f.expand(out, 3, pair)
    spec = f"b t h {order}, b t h {swapped}, {row} p, {row} p -> b t h {order}"
    turned = f.generic(spec, [pairs, pairs, cos, sin], into, turn)
    return f.collapse(turned, [[0], [1], [2], [3, 4]], x.dims)
