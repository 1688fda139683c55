"""Values that attention used, for those who look at its maps: the entry `inspect` of decoders.

A `Probe` goes with a call of `layers.attention`. It multiplies lambda by a factor, and has the op give the sums of both maps and X, the
mixed values before any norm.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import layers
from .mlir_text import Dim, Function, Value

#: Parts that a probe keeps, in the order in which `inspect` gives them.
PARTS = ("q1", "k1", "q2", "k2", "v", "lambda", "lse1", "lse2", "x")


class Probe:
    """Probe of one attention; `factor` is an f32 scalar. `parts` are its operands as the op reads them, `[B, T, heads, width]`, the lambda
    that it used, `[]` or `[B, T, heads]` f32, lse1 and lse2 `[B, heads, T]` f32, and x `[B, T, heads, width]` f32."""

    def __init__(self, factor: Value) -> None:
        self.factor = factor
        self.parts: list[Value] = []

    def scaled(self, f: Function, lam: Value, activation: str) -> Value:
        """The factor times lambda behind its activation, so that 0 takes away map 2 in every family."""

        def scale(value: Value, *_: Value) -> Value:
            return f.scalar("arith.mulf", layers.sigmoid(f, value) if activation == "sigmoid" else value, self.factor)

        if not lam.dims:
            return f.rank0(scale(f.extract(lam)))
        return f.generic("b t h -> b t h", [lam], f.empty(lam.dims, "f32"), scale)

    def destinations(self, f: Function, q: tuple[Value, Value], v: Value, *, has_norm: bool) -> dict[str, Value]:
        """Tensors into which the op writes X, which without a norm is its output, and the logarithms of sums."""
        (batch, length, heads, _), noise_heads = q[0].dims, q[1].dims[2]
        rows = {"x": f.empty([batch, length, heads, v.dims[3]], "f32")} if has_norm else {}
        return rows | {"lse1": f.empty([batch, heads, length], "f32"), "lse2": f.empty([batch, noise_heads, length], "f32")}

    def keep(self, f: Function, operands: Sequence[Value], lam: Value, out: Value, results: dict[str, Value]) -> None:
        x = results.get("x") or layers.cast(f, out, "f32")
        self.parts = [*operands, lam, results["lse1"], results["lse2"], x]


def whole(f: Function, part: Value, count: Dim, names: dict[str, Value]) -> Value:
    """A tensor of `count` such parts of another function, of whose arguments `names` says what they are here."""
    return f.empty([count, *_dims(part, names)], part.elem)


def like(part: Value, names: dict[str, Value]) -> Value:
    """Type of a part as a result of a call here, with sizes by `names`."""
    return Value("", part.elem, tuple(_dims(part, names)), True)


def _dims(part: Value, names: dict[str, Value]) -> list[Dim]:
    return [names[d.name] if isinstance(d, Value) else d for d in part.dims]


def put(f: Function, parts: Sequence[Value], wholes: Sequence[Value], chosen: Value, layer: Value) -> list[Value]:
    """The tensors of all parts, with those of `layer` at each place where the i64 tensor `chosen` names it."""

    def at(place: Value, *wholes: Value) -> list[Value]:
        here = f.compare("eq", f.to_index(f.extract(chosen, place)), layer)

        def insert(_: Value, *wholes: Value) -> list[Value]:
            return [f.insert(part, old, [place, *[0] * len(part.dims)], [1, *part.dims]) for part, old in zip(parts, wholes)]

        return f.loop(f.select(here, f.index(1), f.index(0)), wholes, insert)

    return f.loop(chosen.dims[0], wholes, at)
