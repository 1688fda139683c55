"""Projections to queries, keys and values and back, each a matrix of its own, with or without biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import layers
from .decoder import LAYER, Decoder
from .mlir_text import Function, Module, Value


class Projections:
    """Projections of a mixer whose heads have one width. `bias`: whether each projection adds a bias, which is f32."""

    width: int
    hidden: int
    bias: bool

    def declare_inputs(self, m: Module, frame: Decoder, heads: Mapping[str, int], orders: Mapping[str, Sequence[int]]) -> None:
        """q, k and v with so many heads each; `orders` says in which order the heads of some of them are put when they are loaded."""
        for name, count in heads.items():
            moved = {"row_blocks": orders[name]} if name in orders else {}
            self._declare(m, frame, name, count * self.width, self.hidden, moved)

    def declare_output(self, m: Module, frame: Decoder, columns: int) -> None:
        self._declare(m, frame, "o", self.hidden, columns, {})

    def _declare(self, m: Module, frame: Decoder, name: str, rows: int, columns: int, moved: Mapping) -> None:
        frame.layer_matrix(m, f"self_attn.{name}_proj.weight", [rows, columns], **moved)
        if self.bias:
            frame.layer_weight(m, f"self_attn.{name}_proj.bias", [rows], "f32", **moved)

    def _weights(self, f: Function, name: str, layer: Value) -> tuple[Value, Value | None]:
        weight = f.weight(f"{LAYER}self_attn.{name}_proj.weight", layer)
        return weight, f.weight(f"{LAYER}self_attn.{name}_proj.bias", layer) if self.bias else None

    def project(self, f: Function, x: Value, layer: Value) -> tuple[Value, Value, Value]:
        return tuple(layers.linear(f, x, *self._weights(f, name, layer)) for name in "qkv")

    def output(self, f: Function, residual: Value, mixed: Value, layer: Value) -> Value:
        return layers.linear_onto(f, residual, mixed, *self._weights(f, "o", layer))
