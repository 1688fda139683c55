"""Sizes of an ONNX model as numbers that stand for them, which tell which sizes are equal, products of others, or known."""

from __future__ import annotations

import functools
import math
import operator
import random
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .builder import ONNX

#: Symbols stand for larger numbers, so that they do not become known sizes when they are divided.
_LEAST_SYMBOL = 1 << 80
#: Lists that are longer are no sizes.
_MOST = 64
_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)


def infer_sizes(proto: onnx.ModelProto, declared=(), results=()) -> onnx.ModelProto:
    """The model with the sizes that onnx infers from those that it declares: sizes that onnx gave to names before would stay."""
    if results:
        del proto.graph.value_info[:], proto.graph.output[:]
        proto.graph.value_info.extend(declared)
        proto.graph.output.extend(results)
    try:
        return onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        # Where onnx follows elements of integers, it takes them for lists of sizes: to add tensors of sizes [5, 1] and [2] is
        # refused as a sum of lists of 5 and of 2.
        return onnx.shape_inference.infer_shapes(proto, strict_mode=True)


def fold_sizes(graph: onnx.GraphProto) -> bool:
    """Makes sizes that are computed, but known, constants, which onnx infers more of. Gives whether there were any."""
    sizes, folds = Sizes.followed(graph), False
    for node in graph.node:
        known = sizes.known(node)
        if known is not None:
            node.CopyFrom(helper.make_node("Constant", [], node.output, name=node.name, value=numpy_helper.from_array(known)))
            folds = True
    return folds


def forget_traced_sizes(graph: onnx.GraphProto) -> None:
    """Drops the numbers that a model declares for sizes that it computes, if it has inputs of symbolic sizes: exporters leave those of
    the call that they traced, which hold for no other. onnx infers those that hold."""
    if any(_symbol(dim) is not None for value in graph.input for dim in _dims(value)):
        held = {tensor.name for tensor in graph.initializer}
        for value in (*graph.value_info, *graph.output):
            for dim in _dims(value):
                if dim.HasField("dim_value") and value.name not in held:
                    dim.Clear()


@dataclass
class Reshape:
    """Numbers that stand for the sizes of what goes in and comes out, and for what is asked for: 0 is the size of the same axis before,
    unless zeros count, -1 what the others leave."""

    before: list[Fraction]
    after: list[Fraction]
    asked: list[Fraction]


class Sizes:
    """Numbers that stand for sizes: large random ones for symbols, and what nodes compute of these. With `divides`, divisions of symbols
    are taken to leave nothing: where they do, the elements of a Reshape do not fit, which a call finds. Else they are of any value."""

    def __init__(self, graph: onnx.GraphProto, divides: bool):
        self._random, self._symbols, self._divides = random.Random(0), {}, divides
        self._shapes = {value.name: value.type.tensor_type.shape.dim for value in [*graph.input, *graph.value_info, *graph.output]
                        if value.type.tensor_type.HasField("shape")}
        self._types = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
        self._shapes.update({tensor.name: tensor.dims for tensor in graph.initializer})
        #: Elements of the values of at most one axis that hold sizes.
        self._integers = {tensor.name: _listed(tensor) for tensor in graph.initializer if _is_list(tensor)}
        for value in graph.input:
            self._of(value.name)

    @classmethod
    def followed(cls, graph: onnx.GraphProto) -> Sizes:
        made = cls(graph, divides=False)
        for node in graph.node:
            made.follow(node)
        return made

    def follow(self, node: onnx.NodeProto) -> Reshape | None:
        """Records the sizes of a node's results. Returns a `Reshape` if the node is one with symbols among its sizes."""
        if node.domain not in ONNX:
            return None
        if node.op_type in _COMPUTED:
            integers = _COMPUTED[node.op_type](self, node, {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute})
            if integers is not None and len(integers) <= _MOST and len(self._shapes.get(node.output[0], (0, 0))) <= 1:
                self._integers[node.output[0]] = integers
        dims = self._shapes.get(node.output[0]) if node.output else None
        if dims is None:
            return None
        if node.op_type in _BROADCAST:
            self._name(dims, self._broadcast([self._of(name) for name in node.input], len(dims)))
        elif node.op_type == "MatMul":
            self._name(dims, self._product(*(self._of(name) for name in node.input)))
        asked = self._integers.get(node.input[1]) if node.op_type in ("Expand", "Reshape") else None
        before = self._of(node.input[0]) if asked is not None else None
        if before is None or len(asked) != len(dims):
            return None
        if node.op_type == "Expand":
            self._name(dims, self._broadcast([before, asked], len(dims)))
            return None
        if 0 in asked and any(attribute.name == "allowzero" and attribute.i for attribute in node.attribute):
            return None
        after = self._name(dims, self._sizes_after(before, asked))
        return Reshape(before, after, asked) if any(map(_symbol, [*self._shapes[node.input[0]], *dims])) else None

    def _name(self, dims, sizes: list[Fraction | None]) -> list[Fraction]:
        """The sizes of `dims`; where these are symbols that were not met before, they stand for the `sizes` that are known."""
        made = []
        for dim, size in zip(dims, sizes):
            symbol = _symbol(dim)
            if symbol and size is not None:
                self._symbols.setdefault(symbol, size)
            made.append(size if symbol == "" and size is not None else self.of(dim))
        return made

    def _broadcast(self, shapes: list[list[Fraction] | None], rank: int) -> list[Fraction | None]:
        """Sizes of the broadcast shapes; None where inputs of unknown sizes, which may be 1, leave it open."""
        sizes = []
        for axis in range(-rank, 0):
            met = {shape[axis] for shape in shapes if shape is not None and len(shape) >= -axis} - {1}
            sizes.append(met.pop() if len(met) == 1 else Fraction(1) if not met else None)
        return [None] * rank if None in shapes else sizes

    def _product(self, a: list[Fraction] | None, b: list[Fraction] | None) -> list[Fraction | None]:
        if a is None or b is None or len(a) < 2 or len(b) < 2:
            return []
        return [*self._broadcast([a[:-2], b[:-2]], max(len(a), len(b)) - 2), a[-2], b[-1]]

    def known(self, node: onnx.NodeProto) -> np.ndarray | None:
        """The elements of the node's result, if they are int64 sizes known in every call; else None."""
        if node.op_type not in _COMPUTED or node.op_type == "Constant" or node.domain not in ONNX:
            return None
        integers, name = self._integers.get(node.output[0]), node.output[0]
        if integers is None or not all(map(is_known, integers)) or self._types.get(name) != onnx.TensorProto.INT64 or name not in self._shapes:
            return None
        made = np.array([int(size) for size in integers], np.int64)
        return made if self._shapes[name] else made.reshape(())

    def _sizes_after(self, before: list[Fraction], asked: list[Fraction]) -> list[Fraction]:
        sizes = [before[axis] if size == 0 and axis < len(before) else size for axis, size in enumerate(asked)]
        rest = math.prod(size for size in sizes if size != -1)
        left = math.prod(before) / rest if rest else self._unlike_others()
        return [left if size == -1 else size for size in sizes]

    def shape(self, node, options):
        shape = self._of(node.input[0])
        return None if shape is None else shape[options.get("start", 0):options.get("end", len(shape))]

    def size(self, node, options):
        shape = self._of(node.input[0])
        return None if shape is None else [math.prod(shape)]

    def range(self, node, options):
        given = [self._integers.get(name) for name in node.input]
        if None in given or not all(is_known(number) for one in given for number in one) or given[2] == [0]:
            return None
        numbers = range(*(int(number) for (number,) in given))
        return [Fraction(number) for number in numbers] if len(numbers) <= _MOST else None

    def same(self, node, options):
        return self._integers.get(node.input[0]) if options.get("to", onnx.TensorProto.INT64) in _INTEGERS else None

    def constant(self, node, options):
        (kind, value), = options.items()
        return _listed(value) if kind in ("value_int", "value_ints") or kind == "value" and _is_list(value) else None

    def gather(self, node, options):
        integers, places = (self._integers.get(name) for name in node.input)
        return None if integers is None or places is None or any(place not in range(-len(integers), len(integers)) for place in places) else [
            integers[int(place)] for place in places]

    def slice(self, node, options):
        given = [self._integers.get(name) for name in node.input]
        if None in given or len(given) < 3 or any(len(one) != 1 for one in given[1:]) or given[4:] not in ([], [[1]]):
            return None
        return given[0][int(given[1][0]):int(given[2][0])]

    def filled(self, node, options):
        counts, value = self._integers.get(node.input[0]), options.get("value")
        if counts is None or len(counts) != 1 or counts[0] not in range(_MOST) or value is None or not _is_list(value):
            return None
        return _listed(value) * int(counts[0])

    def equal(self, node, options):
        """Sizes are not negative; symbols may be any that is not."""
        results = self.elementwise(node, {}, lambda a, b: Fraction(1) if a == b else Fraction(0) if (is_known(a) and is_known(b)) or a < 0 or b < 0 else None)
        return None if results is None or None in results else results

    def where(self, node, options):
        return self.elementwise(node, {}, lambda condition, a, b: a if condition else b)

    def concat(self, node, options):
        parts = [self._integers.get(name) for name in node.input]
        return None if None in parts else [size for part in parts for size in part]

    def quotient(self, node, options):
        return self.elementwise(node, {}, lambda a, b: self._quotient(a, b))

    def _quotient(self, a: Fraction, b: Fraction) -> Fraction:
        if b and is_known(a) and is_known(b):
            return Fraction(int(a / b))
        return a / b if b and self._divides else self._unlike_others()

    def elementwise(self, node, options, function):
        parts = [self._integers.get(name) for name in node.input]
        if None in parts or len({len(part) for part in parts} - {1}) > 1:
            return None
        count = max(map(len, parts)) if all(parts) else 0
        return [function(*pair) for pair in zip(*(part * count if len(part) == 1 else part for part in parts))]

    def _of(self, name: str) -> list[Fraction] | None:
        return [self.of(dim) for dim in self._shapes[name]] if name in self._shapes else None

    def of(self, dim) -> Fraction:
        symbol = _symbol(dim)
        if symbol is None:
            return Fraction(dim if isinstance(dim, int) else dim.dim_value)
        if not symbol:
            return self._unlike_others()
        if symbol not in self._symbols:
            self._symbols[symbol] = self._unlike_others()
        return self._symbols[symbol]

    def _unlike_others(self) -> Fraction:
        return Fraction(self._random.randrange(_LEAST_SYMBOL, 2 * _LEAST_SYMBOL))


#: Methods that follow the ops by which sizes are computed.
_COMPUTED = {**{kind: functools.partial(Sizes.elementwise, function=function)
                for kind, function in (("Add", operator.add), ("Mul", operator.mul), ("Sub", operator.sub))},
             "Cast": Sizes.same, "Concat": Sizes.concat, "Constant": Sizes.constant, "ConstantOfShape": Sizes.filled, "Div": Sizes.quotient,
             "Equal": Sizes.equal, "Gather": Sizes.gather, "Identity": Sizes.same, "Range": Sizes.range,
             "Reshape": Sizes.same, "Shape": Sizes.shape, "Size": Sizes.size, "Slice": Sizes.slice, "Squeeze": Sizes.same,
             "Unsqueeze": Sizes.same, "Where": Sizes.where}
#: Element by element, where sizes of 1 are those of the others.
_BROADCAST = {"Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mul", "Or", "Pow", "Sub", "Where"}


def _dims(value: onnx.ValueInfoProto):
    return value.type.tensor_type.shape.dim


def _symbol(dim) -> str | None:
    """Name of a dimension's symbol; None: it is a number. Empty: nothing is known of it."""
    return None if isinstance(dim, int) or dim.HasField("dim_value") else dim.dim_param


def is_known(size: Fraction) -> bool:
    """Whether a size is a plain integer: numbers that stand for symbols are larger, or leave a fraction."""
    return size.denominator == 1 and abs(size) < 1 << 50


def _is_list(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type == onnx.TensorProto.INT64 and len(tensor.dims) <= 1 and math.prod(tensor.dims) <= _MOST


def _listed(value) -> list[Fraction]:
    array = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.array(value)
    return [Fraction(number) for number in array.reshape(-1).tolist()]
