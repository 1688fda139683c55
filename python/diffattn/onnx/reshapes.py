"""Reshape of symbolic sizes, as axes that are merged and axes that are split.

torch-mlir guesses which axes of a view belong together. Where several sizes are symbols it may guess wrong (`[b * t, 4]` as `[b, t, 4]`
becomes a cast of `t` to 1). Of the symbols, which onnx carries from node to node, one can tell.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import onnx
from torch_mlir import ir

from ..importing.axis_groups import axis_groups
from .origins import number_of
from .sizes import Reshape, Sizes, is_known


def spell_reshapes(module: ir.Operation, graph: onnx.GraphProto) -> None:
    """Replaces, in place, each Reshape of `module` in which sizes are symbols and whose axes can be told. `module` is what torch-mlir's
    importer makes of `graph`, the function of its name; its nodes are named by their numbers, `node:0:`, and its values have the sizes
    that onnx infers."""
    sizes = Sizes(graph, divides=True)
    reshapes = {number: reshape for number, node in enumerate(graph.node) if (reshape := sizes.follow(node))}
    if not reshapes:
        return
    for op, number in nodes_of_kind(module, graph, "Reshape"):
        if number in reshapes:
            _spell(op, reshapes[number])


def nodes_of_kind(module: ir.Operation, graph: onnx.GraphProto, kind: str) -> list[tuple[ir.Operation, int | None]]:
    """The ops that the importer made of nodes of the graph itself, with the nodes' numbers in it."""
    with module.context:
        main, = (op.operation for op in module.regions[0].blocks[0].operations if op.operation.attributes["sym_name"].value == graph.name)
        return [(op.operation, number_of(op.operation)) for op in main.regions[0].blocks[0].operations
                if op.operation.name == "torch.operator" and op.operation.attributes["name"].value == f"onnx.{kind}"]


def _spell(op: ir.Operation, reshape: Reshape) -> None:
    """Merges what is one group, then splits it; from the last axis on, so that the numbers of the others stay."""
    groups = axis_groups(reshape.before, reshape.after) if math.prod(reshape.before) else None
    if not groups or len(groups) == len(reshape.before) == len(reshape.after):
        return
    value, final = op.operands[0], [int(size) if is_known(size) else None for size in reshape.after]
    with op.context, ir.InsertionPoint(op), op.location:
        for (begin, end), (into, to) in reversed(groups):
            shape = shape_of(value.type)
            if end - begin > 1:
                merged = None if None in shape[begin:end] else math.prod(shape[begin:end])
                shape = [*shape[:begin], merged, *shape[end:]]
                value = _make("torch.prims.collapse", value, shape, [value, integer(begin), integer(end - 1)])
            if None not in final[into:to]:  # `aten.unflatten` is a view again for torch-mlir
                for axis in range(begin, begin + to - into - 1):
                    size = final[into + axis - begin]
                    shape = [*shape[:axis], size, math.prod(final[into + axis - begin + 1:to]), *shape[axis + 1:]]
                    value = _make("torch.prims.split_dim", value, shape, [value, integer(axis), integer(size)])
            elif to - into > 1:
                shape = [*shape[:begin], *final[into:to], *shape[begin + 1:]]
                sizes = create("torch.prim.ListConstruct", "!torch.list<int>", _split_sizes(op, value, begin, final[into:to], reshape.asked, into))
                value = _make("torch.aten.unflatten.int", value, shape, [value, integer(begin), sizes])
        if value.type != op.results[0].type:
            value = create("torch.tensor_static_info_cast", op.results[0].type, [value])
    op.results[0].replace_all_uses_with(value)
    op.erase()


def _split_sizes(op: ir.Operation, value: ir.Value, axis: int, sizes: list[int | None], asked: list[Fraction], into: int) -> list[ir.Value]:
    """`axis` of `value` as axes of these sizes, which are those from `into` on of the result of `op`."""
    if sizes.count(None) == 1:
        return [integer(-1 if size is None else size) for size in sizes]
    made = [_asked(op, place, asked[place]) if size is None else integer(size) for place, size in enumerate(sizes, into) if size or asked[place] != -1]
    if len(made) < len(sizes):  # torch-mlir takes -1 only beside sizes that it knows
        product = functools.reduce(lambda a, b: create("torch.aten.mul.int", "!torch.int", [a, b]), made)
        left = create("torch.aten.floordiv.int", "!torch.int", [size_of(value, axis), product])
        made.insert(asked.index(-1) - into, left)
    return made


def _asked(op: ir.Operation, axis: int, asked: Fraction) -> ir.Value:
    """The size that a Reshape asks for."""
    if asked == 0:
        return size_of(op.operands[0], axis)
    one = create("torch.aten.select.int", "!torch.vtensor<[1],si64>", [op.operands[1], integer(0), integer(axis)])
    return create("torch.aten.item", "!torch.int", [one])


def size_of(value: ir.Value, axis: int) -> ir.Value:
    return create("torch.aten.size.int", "!torch.int", [value, integer(axis)])


def shape_of(kind: ir.Type) -> list[int | None]:
    """Shape of a tensor type of torch-mlir, read from its text: the bindings have no class for it."""
    sizes = str(kind).partition("[")[2].partition("]")[0]
    return [None if size == "?" else int(size) for size in sizes.split(",") if size]


def _make(name: str, like: ir.Value, shape, operands) -> ir.Value:
    element = str(like.type).rsplit(",", 1)[1]
    return create(name, f"!torch.vtensor<[{','.join('?' if size is None else str(size) for size in shape)}],{element}", operands)


def integer(number: int) -> ir.Value:
    value = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
    return ir.Operation.create("torch.constant.int", [ir.Type.parse("!torch.int")], [], {"value": value}).results[0]


def create(name: str, kind, operands) -> ir.Value:
    return ir.Operation.create(name, [ir.Type.parse(kind) if isinstance(kind, str) else kind], operands).results[0]
