"""Nodes of ONNX that take the place of one."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..text import printable_name
from .walk import messages, nodes_of

#: ONNX's own domain, as files name it.
ONNX = ("", "ai.onnx")
#: Ops that give places or sizes (int64), and ops that give truth values, whatever the types of their inputs.
_PLACES = {"ArgMax", "ArgMin", "Range", "Shape", "Size"}
_TRUTHS = {"And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or"}
#: The end of the name of a Pad that makes its input as long as another tensor, where a call says whether it is shorter.
FITS = "fits:"


class Refused(Exception):
    """A node that other nodes cannot stand for, and that would be lowered to wrong numbers: what was expected, and what came. `name` is
    that of the node."""

    def __init__(self, message: str, name: str = ""):
        super().__init__(message)
        self.name = name


class Builder:
    """Nodes in the place of one, which is `node`."""

    def __init__(self, node, known, constants, prefix: str, number_of=None, shared=None):
        """`number_of`: for a dimension, the number that stands for it (`Sizes.of`). `shared`: as the attribute of this name."""
        self.node, self.nodes, self._known, self._constants, self._prefix = node, [], known, constants, prefix
        self._number_of = number_of
        #: Values that builders before this one made in the same graph, by what tells what they are.
        self.shared: dict[tuple, str] = {} if shared is None else shared
        #: Element types of the values that ops made here.
        self._types: dict[str, int] = {}
        self.options = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}

    def op(self, kind: str, *inputs: str, **attributes) -> str:
        name = f"{self._prefix}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **{"name": self.node.name, **attributes}))
        self._types[name] = (attributes["to"] if kind == "Cast" else attributes["value"].data_type if kind == "Constant" else
                             onnx.TensorProto.INT64 if kind in _PLACES else onnx.TensorProto.BOOL if kind in _TRUTHS else
                             self.type(inputs[kind == "Where"]))
        return name

    def constant(self, value, dtype=np.int64) -> str:
        return self.op("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def number(self, value: float, like: str) -> str:
        """A constant of the element type of `like`."""
        return self.constant(value, helper.tensor_dtype_to_np_dtype(self._known_type(like)))

    def cast(self, x: str, like: str) -> str:
        """`x` as the element type of `like`."""
        kind = self._known_type(like)
        return x if self.type(x) == kind else self.op("Cast", x, to=kind)

    def _known_type(self, name: str) -> int:
        if self.type(name) == onnx.TensorProto.UNDEFINED:
            raise Refused(f"expected {self.node.op_type} of elements whose type onnx infers, but got {name!r} without one")
        return self.type(name)

    def finish(self, kind: str, *inputs: str, **attributes) -> bool:
        """Adds the last op, whose result is that of `node`."""
        self.nodes.append(helper.make_node(kind, inputs, self.node.output[:1], name=self.node.name, **attributes))
        return True

    def give(self, number: int, x: str) -> None:
        """Makes `x` result `number` of `node`, if `node` has it."""
        if number < len(self.node.output) and self.node.output[number]:
            self.nodes.append(helper.make_node("Identity", [x], [self.node.output[number]], name=self.node.name))

    def input(self, number: int) -> str:
        """Name of input `number`; empty: it is not given."""
        return self.node.input[number] if number < len(self.node.input) else ""

    def sizes(self, name: str) -> list[int | None] | None:
        """Sizes of a value, None for those that are not known; None: the rank is not known."""
        kind = self._known.get(name)
        if kind is None or not kind.HasField("shape"):
            return None
        return [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]

    def is_number(self, name: str) -> bool:
        """Whether the value has one element, or is left out."""
        sizes = self.sizes(name)
        return not name or sizes is not None and all(size == 1 for size in sizes)

    def describe_sizes(self, name: str) -> str:
        """The sizes of a value, for messages."""
        return type_text(self._known.get(name))

    def numbered(self, name: str, axis: int) -> Fraction | None:
        """A size, or the number that stands for a symbol; equal ones are equal in every call. None: it is not known."""
        kind = self._known.get(name)
        if kind is None or not -len(kind.shape.dim) <= axis < len(kind.shape.dim):
            return None
        dim = kind.shape.dim[axis]
        if dim.HasField("dim_value"):
            return Fraction(dim.dim_value)
        return self._number_of(dim) if self._number_of is not None and dim.dim_param else None

    def type(self, name: str) -> int:
        """Element type of a value; `UNDEFINED`: it is not known."""
        if name in self._types:
            return self._types[name]
        return self._known[name].elem_type if name in self._known else onnx.TensorProto.UNDEFINED

    def is_constant(self, name: str) -> bool:
        return name in self._constants

    def array(self, name: str) -> np.ndarray | None:
        """The elements of a constant; None for other values."""
        return numpy_helper.to_array(self._constants[name]) if self.is_constant(name) else None

    def size(self, name: str, axis: int) -> str:
        """The size of an axis, as a list of one element."""
        return self.op("Gather", self.op("Shape", name), self.constant([axis]), axis=0)

    def places(self, name: str, axis: int) -> str:
        """0, 1, ... up to the size of an axis."""
        size = self.op("Gather", self.op("Shape", name), self.constant(axis), axis=0)
        return self.op("Range", self.constant(0), size, self.constant(1))


def type_text(kind) -> str:
    """The sizes of a tensor of this type, with the names of symbols but those that onnx made."""
    if kind is None or not kind.HasField("shape"):
        return "of unknown rank"
    return sizes_text([dim.dim_value if dim.HasField("dim_value") else
                       None if dim.dim_param.startswith("unk__") else printable_name(dim.dim_param) for dim in kind.shape.dim])


def sizes_text(sizes) -> str:
    return f"[{', '.join('?' if size in (None, '') else str(size) for size in sizes)}]"


def own_marker(graph: onnx.GraphProto) -> str:
    """Returns a run of colons that occurs in no name of the graph or of its subgraphs."""
    names = {one.name for one in messages(graph, (onnx.ValueInfoProto, onnx.TensorProto))}
    names.update(name for node in nodes_of(graph) for name in (*node.input, *node.output))
    marker = ":"
    while any(marker in name for name in names):
        marker += ":"
    return marker


def types_of(graph: onnx.GraphProto) -> dict:
    """Types and sizes of values, by their names."""
    known = {value.name: value.type.tensor_type for value in [*graph.input, *graph.value_info, *graph.output]}
    known.update({tensor.name: helper.make_tensor_type_proto(tensor.data_type, tensor.dims).tensor_type for tensor in graph.initializer})
    return known


def constants_of(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    constants = {tensor.name: tensor for tensor in graph.initializer}
    constants.update({node.output[0]: attribute.t for node in graph.node if node.op_type == "Constant" and node.domain in ONNX
                      for attribute in node.attribute if attribute.name == "value"})
    return constants
