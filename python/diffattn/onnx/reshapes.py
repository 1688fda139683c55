"""Reshape of symbolic sizes, as axes that are merged and axes that are split.

torch-mlir guesses which axes of a view belong together. Where several sizes are symbols it may guess wrong (`[b * t, 4]` as `[b, t, 4]`
becomes a cast of `t` to 1). Of the symbols, which onnx carries from node to node, one can tell.
"""

from __future__ import annotations

import functools
import math
import random
import re
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper
from torch_mlir import ir

from ..importing.axis_groups import axis_groups
from .decompositions import ONNX

#: Less is a size that is known: what is left of a product of symbols and numbers may be one.
_LEAST_SYMBOL = 1 << 62
_NODE = re.compile(r'loc\("node:(\d+):"')


def spell_reshapes(module: ir.Operation, graph: onnx.GraphProto) -> None:
    """Replaces, in place, each Reshape of `module` in which sizes are symbols and whose axes can be told. `module` is what torch-mlir's
    importer makes of `graph`, the function of its name; its nodes are named by their numbers, `node:0:`, and its values have the sizes
    that onnx infers."""
    sizes = _Sizes(graph)
    reshapes = {number: reshape for number, node in enumerate(graph.node) if (reshape := sizes.follow(node))}
    if not reshapes:
        return
    with module.context:
        main, = (op.operation for op in module.regions[0].blocks[0].operations if op.operation.attributes["sym_name"].value == graph.name)
        for op in list(main.regions[0].blocks[0].operations):
            if op.operation.name == "torch.operator" and op.operation.attributes["name"].value == "onnx.Reshape":
                number = int(_NODE.match(str(op.operation.location))[1])
                if number in reshapes:
                    _spell(op.operation, reshapes[number])


@dataclass
class _Reshape:
    """Numbers that stand for the sizes of what goes in and comes out, and for what is asked for: 0 is the size of the same axis before,
    -1 what the others leave."""

    before: list[int]
    after: list[int]
    asked: list[int]


class _Sizes:
    """Numbers that stand for sizes: large random ones for symbols, and what nodes compute of these."""

    def __init__(self, graph: onnx.GraphProto):
        self._random, self._symbols = random.Random(0), {}
        self._shapes = {value.name: value.type.tensor_type.shape.dim for value in [*graph.input, *graph.value_info, *graph.output]
                        if value.type.tensor_type.HasField("shape")}
        self._shapes.update({tensor.name: tensor.dims for tensor in graph.initializer})
        #: What values of up to one axis hold.
        self._integers = {tensor.name: _listed(tensor) for tensor in graph.initializer if _is_list(tensor)}
        for value in graph.input:
            self._of(value.name)

    def follow(self, node: onnx.NodeProto) -> _Reshape | None:
        """Of a Reshape with symbols among its sizes."""
        if node.domain not in ONNX:
            return None
        if node.op_type in _COMPUTED:
            integers = _COMPUTED[node.op_type](self, node, {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute})
            if integers is not None and len(self._shapes.get(node.output[0], ())) <= 1:
                self._integers[node.output[0]] = integers
        before = self._of(node.input[0]) if node.op_type == "Reshape" else None
        asked = self._integers.get(node.input[1]) if before is not None else None
        dims = self._shapes.get(node.output[0])
        if asked is None or dims is None or len(asked) != len(dims):
            return None
        after = self._sizes_after(before, asked, dims)
        return _Reshape(before, after, asked) if any(map(_symbol, [*self._shapes[node.input[0]], *dims])) else None

    def _sizes_after(self, before: list[int], asked: list[int], dims) -> list[int]:
        sizes = [before[axis] if size == 0 and axis < len(before) else size for axis, size in enumerate(asked)]
        rest = math.prod(size for size in sizes if size != -1)
        left = math.prod(before) // rest if rest and math.prod(before) % rest == 0 else self._unlike_others()
        sizes = [left if size == -1 else size for size in sizes]
        for axis, dim in enumerate(dims):
            symbol = _symbol(dim)
            if symbol:
                sizes[axis] = self._symbols.setdefault(symbol, sizes[axis])
            elif symbol is None:
                sizes[axis] = self._number(dim)
        return sizes

    def shape(self, node, options):
        shape = self._of(node.input[0])
        return None if shape is None else shape[options.get("start", 0):options.get("end", len(shape))]

    def same(self, node, options):
        return self._integers.get(node.input[0])

    def constant(self, node, options):
        (kind, value), = options.items()
        return _listed(value) if kind in ("value_int", "value_ints") or kind == "value" and _is_list(value) else None

    def gather(self, node, options):
        integers, places = (self._integers.get(name) for name in node.input)
        return None if integers is None or places is None or any(place not in range(-len(integers), len(integers)) for place in places) else [
            integers[place] for place in places]

    def slice(self, node, options):
        given = [self._integers.get(name) for name in node.input]
        if None in given or len(given) < 3 or any(len(one) != 1 for one in given[1:]) or given[4:] not in ([], [[1]]):
            return None
        return given[0][given[1][0]:given[2][0]]

    def concat(self, node, options):
        parts = [self._integers.get(name) for name in node.input]
        return None if None in parts else [size for part in parts for size in part]

    def product(self, node, options):
        return self._elementwise(node, lambda a, b: a * b)

    def quotient(self, node, options):
        return self._elementwise(node, lambda a, b: a // b if b and a % b == 0 else self._unlike_others())

    def _elementwise(self, node, function):
        parts = [self._integers.get(name) for name in node.input]
        if None in parts or len({len(part) for part in parts} - {1}) > 1:
            return None
        count = max(map(len, parts)) if all(parts) else 0
        return [function(*pair) for pair in zip(*(part * count if len(part) == 1 else part for part in parts))]

    def _of(self, name: str) -> list[int] | None:
        return [self._number(dim) for dim in self._shapes[name]] if name in self._shapes else None

    def _number(self, dim) -> int:
        symbol = _symbol(dim)
        if symbol is None:
            return dim if isinstance(dim, int) else dim.dim_value
        if not symbol:
            return self._unlike_others()
        if symbol not in self._symbols:
            self._symbols[symbol] = self._unlike_others()
        return self._symbols[symbol]

    def _unlike_others(self) -> int:
        return self._random.randrange(_LEAST_SYMBOL, 2 * _LEAST_SYMBOL)


#: What computes sizes of sizes.
_COMPUTED = {"Cast": _Sizes.same, "Concat": _Sizes.concat, "Constant": _Sizes.constant, "Div": _Sizes.quotient, "Gather": _Sizes.gather,
             "Identity": _Sizes.same, "Mul": _Sizes.product, "Reshape": _Sizes.same, "Shape": _Sizes.shape, "Slice": _Sizes.slice,
             "Squeeze": _Sizes.same, "Unsqueeze": _Sizes.same}


def _symbol(dim) -> str | None:
    """None: it is a number. Empty: nothing is known of it."""
    return None if isinstance(dim, int) or dim.HasField("dim_value") else dim.dim_param


def _is_list(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type == onnx.TensorProto.INT64 and len(tensor.dims) <= 1


def _listed(value) -> list[int]:
    return (numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.array(value)).reshape(-1).tolist()


def _spell(op: ir.Operation, reshape: _Reshape) -> None:
    """Merges what is one group, then splits it; from the last axis on, so that the numbers of the others stay."""
    groups = axis_groups(reshape.before, reshape.after) if math.prod(reshape.before) else None
    if not groups or len(groups) == len(reshape.before) == len(reshape.after):
        return
    value, final = op.operands[0], [size if size < _LEAST_SYMBOL else None for size in reshape.after]
    with ir.InsertionPoint(op), op.location:
        for (begin, end), (into, to) in reversed(groups):
            shape = _shape(value.type)
            if end - begin > 1:
                merged = None if None in shape[begin:end] else math.prod(shape[begin:end])
                shape = [*shape[:begin], merged, *shape[end:]]
                value = _make("torch.prims.collapse", value, shape, [value, _integer(begin), _integer(end - 1)])
            if to - into > 1:
                shape = [*shape[:begin], *final[into:to], *shape[begin + 1:]]
                sizes = _create("torch.prim.ListConstruct", "!torch.list<int>", _split_sizes(op, value, begin, final[into:to], reshape.asked, into))
                value = _make("torch.aten.unflatten.int", value, shape, [value, _integer(begin), sizes])
        if value.type != op.results[0].type:
            value = _create("torch.tensor_static_info_cast", op.results[0].type, [value])
    op.results[0].replace_all_uses_with(value)
    op.erase()


def _split_sizes(op: ir.Operation, value: ir.Value, axis: int, sizes: list[int | None], asked: list[int], into: int) -> list[ir.Value]:
    """`axis` of `value` as axes of these sizes, which are those from `into` on of the result of `op`."""
    if sizes.count(None) == 1:
        return [_integer(-1 if size is None else size) for size in sizes]
    made = [_asked(op, place, asked[place]) if size is None else _integer(size) for place, size in enumerate(sizes, into) if size or asked[place] != -1]
    if len(made) < len(sizes):  # torch-mlir takes -1 only beside sizes that it knows
        product = functools.reduce(lambda a, b: _create("torch.aten.mul.int", "!torch.int", [a, b]), made)
        left = _create("torch.aten.floordiv.int", "!torch.int", [_size(value, axis), product])
        made.insert(asked.index(-1) - into, left)
    return made


def _asked(op: ir.Operation, axis: int, asked: int) -> ir.Value:
    """The size that a Reshape asks for."""
    if asked == 0:
        return _size(op.operands[0], axis)
    one = _create("torch.aten.select.int", "!torch.vtensor<[1],si64>", [op.operands[1], _integer(0), _integer(axis)])
    return _create("torch.aten.item", "!torch.int", [one])


def _size(value: ir.Value, axis: int) -> ir.Value:
    return _create("torch.aten.size.int", "!torch.int", [value, _integer(axis)])


def _shape(kind: ir.Type) -> list[int | None]:
    sizes = re.match(r"!torch\.vtensor<\[([^]]*)\]", str(kind))[1]
    return [None if size == "?" else int(size) for size in sizes.split(",") if size]


def _make(name: str, like: ir.Value, shape, operands) -> ir.Value:
    element = str(like.type).rsplit(",", 1)[1]
    return _create(name, f"!torch.vtensor<[{','.join('?' if size is None else str(size) for size in shape)}],{element}", operands)


def _integer(number: int) -> ir.Value:
    value = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
    return ir.Operation.create("torch.constant.int", [ir.Type.parse("!torch.int")], [], {"value": value}).results[0]


def _create(name: str, kind, operands) -> ir.Value:
    return ir.Operation.create(name, [ir.Type.parse(kind) if isinstance(kind, str) else kind], operands).results[0]
