"""The gated feed-forward of decoders: `down(activation(gate(x)) * up(x))`, with biases or without.

The activation is one of `layers.ACTIVATIONS`, or PolyNorm, which has weights of its own and looks at a whole row:
`w0 N(x^3) + w1 N(x^2) + w2 N(x) + b` with `N(z) = z / sqrt(mean(z^2) + 1e-6)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from . import layers
from .mlir_text import Function, Module, Value

POLY_NORM = "poly_norm"
POLY_NORM_EPS = 1e-6


def _power(f: Function, x: Value, exponent: int) -> Value:
    return reduce(lambda a, b: f.scalar("arith.mulf", a, b), [x] * exponent)


def poly_norm_gated(f: Function, gate: Value, up: Value, weight: Value, bias: Value, elem: str) -> Value:
    """`PolyNorm(gate) * up` of rows `[M, K]`; `weight` is `[3]`, that of the cube first, and `bias` `[1]`, all f32."""
    rows, width = gate.dims
    scale = f.f32(width)

    def factor(exponent: int) -> Value:
        """`w / sqrt(mean(x^(2 exponent)) + eps)` of each row: once a row, not once an element."""
        def add(x: Value, total: Value) -> Value:
            power = _power(f, x, exponent)
            return f.scalar("arith.addf", total, f.scalar("arith.mulf", power, power))

        def invert(total: Value, _: Value) -> Value:
            mean = f.scalar("arith.addf", f.scalar("arith.divf", total, scale), f.f32(POLY_NORM_EPS))
            return f.scalar("arith.divf", f.extract(weight, f.index(3 - exponent)), f.scalar("math.sqrt", mean))

        total = f.generic("m k -> m", [gate], f.fill(f.f32(0), [rows]), add)
        return f.generic("m -> m", [total], f.empty([rows], "f32"), invert)

    first = f.extract(bias, f.index(0))

    def apply(x: Value, y: Value, cube: Value, square: Value, linear: Value, out: Value) -> Value:
        # Horner's form: b + x (linear + x (square + x cube)).
        total = cube
        for term in (square, linear, first):
            total = f.scalar("arith.addf", f.scalar("arith.mulf", total, x), term)
        return f.convert(f.scalar("arith.mulf", total, y), out.elem)

    return f.generic("m k, m k, m, m, m -> m k", [gate, up, factor(3), factor(2), factor(1)], f.empty(gate.dims, elem), apply)


@dataclass
class GatedMlp:
    """`prefix` is what names of weights begin with, with `{}` in place of the layer's number."""

    prefix: str
    hidden: int
    inner: int
    layers: int
    activation: str
    elem: str
    bias: bool = False

    def _name(self, name: str) -> str:
        return f"{self.prefix}mlp.{name}"

    def declare(self, m: Module) -> None:
        for name, rows, columns in (("gate", self.inner, self.hidden), ("up", self.inner, self.hidden), ("down", self.hidden, self.inner)):
            m.matrix(self._name(f"{name}_proj.weight"), [rows, columns], self.elem, layers=self.layers)
            if self.bias:
                m.weight(self._name(f"{name}_proj.bias"), [rows], "f32", layers=self.layers)
        if self.activation == POLY_NORM:
            m.weight(self._name("act_fn.weight"), [3], "f32", layers=self.layers)
            m.weight(self._name("act_fn.bias"), [1], "f32", layers=self.layers)

    def _projection(self, f: Function, name: str, layer: Value) -> tuple[Value, Value | None]:
        weight = f.weight(self._name(f"{name}_proj.weight"), layer)
        return weight, f.weight(self._name(f"{name}_proj.bias"), layer) if self.bias else None

    def onto(self, f: Function, residual: Value, x: Value, layer: Value) -> Value:
        """`residual` plus the feed-forward of the rows `x`."""
        gate, up = (layers.linear(f, x, *self._projection(f, name, layer)) for name in ("gate", "up"))
        if self.activation == POLY_NORM:
            weights = [f.weight(self._name(f"act_fn.{part}"), layer) for part in ("weight", "bias")]
            inner = poly_norm_gated(f, gate, up, *weights, self.elem)
        else:
            inner = layers.gated(f, self.activation, gate, up, self.elem)
        return layers.linear_onto(f, residual, inner, *self._projection(f, "down", layer))
