"""Nodes of ONNX that take the place of one."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

#: ONNX's own domain, as files name it.
ONNX = ("", "ai.onnx")


class Refused(Exception):
    """A node that other nodes cannot stand for, and that would be lowered to wrong numbers: what was expected, and what came."""


class Builder:
    """Nodes in the place of one, which is `node`."""

    def __init__(self, node, known, constants, prefix: str):
        self.node, self.nodes, self._known, self._constants, self._prefix = node, [], known, constants, prefix
        self.options = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}

    def op(self, kind: str, *inputs: str, **attributes) -> str:
        name = f"{self._prefix}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, value, dtype=np.int64) -> str:
        return self.op("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def number(self, value: float, like: str) -> str:
        """Of the type of `like`."""
        return self.op("CastLike", self.constant(value, np.float32), like)

    def finish(self, kind: str, *inputs: str, **attributes) -> bool:
        """The last op, which makes what `node` makes."""
        self.nodes.append(helper.make_node(kind, inputs, self.node.output[:1], **attributes))
        return True

    def input(self, number: int) -> str:
        """Empty: it is not given."""
        return self.node.input[number] if number < len(self.node.input) else ""

    def sizes(self, name: str) -> list[int | None] | None:
        """None: the rank is not known."""
        kind = self._known.get(name)
        if kind is None or not kind.HasField("shape"):
            return None
        return [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]

    def type(self, name: str) -> int:
        kind = self._known.get(name)
        return onnx.TensorProto.UNDEFINED if kind is None else kind.elem_type

    def is_constant(self, name: str) -> bool:
        return name in self._constants

    def array(self, name: str) -> np.ndarray | None:
        """Of a constant."""
        return numpy_helper.to_array(self._constants[name]) if self.is_constant(name) else None

    def integer(self, name: str) -> int | None:
        """Of a constant."""
        value = self.array(name)
        return None if value is None else int(value.reshape(-1)[0])

    def size(self, name: str, axis: int) -> str:
        """Of an axis, as a list of one."""
        return self.op("Gather", self.op("Shape", name), self.constant([axis]), axis=0)

    def places(self, name: str, axis: int) -> str:
        """0, 1, ... up to the size of an axis."""
        size = self.op("Gather", self.op("Shape", name), self.constant(axis), axis=0)
        return self.op("Range", self.constant(0), size, self.constant(1))
