"""StableHLO's scatter, which jaxlib's passes do not lower, as loops over the updates."""

from __future__ import annotations

import re
from collections.abc import Iterable

from jaxlib.mlir import ir


def lower_scatter(ops: Iterable[ir.Operation]) -> None:
    """In the order of the updates, each element of an update is combined with what lies at its place. A window that is not within the
    operand is left out as a whole, as XLA does."""
    for op in ops:
        if op.name == "stablehlo.scatter":
            with ir.InsertionPoint(op), op.location:
                for result, made in zip(list(op.results), _loops(op)):
                    result.replace_all_uses_with(made)
            op.erase()


class _Numbers:
    """The attribute's lists of axes; what is not there is empty."""

    def __init__(self, attribute: ir.Attribute):
        text = str(attribute)

        def axes(name):
            found = re.search(rf"\b{name} = \[([^\]]*)\]", text)
            return [int(axis) for axis in found[1].split(",")] if found and found[1].strip() else []

        self.window, self.inserted, self.batching = axes("update_window_dims"), axes("inserted_window_dims"), axes("input_batching_dims")
        self.indices_batching, self.operand = axes("scatter_indices_batching_dims"), axes("scatter_dims_to_operand_dims")
        found = re.search(r"index_vector_dim = (\d+)", text)
        self.vector = int(found[1]) if found else 0


def _loops(op) -> list[ir.Value]:
    count = len(op.results)
    operands = [_cast(operand, _signless(operand.type)) for operand in op.operands]
    tensors, indices, updates = operands[:count], operands[count], operands[count + 1:]
    numbers = _Numbers(op.attributes["scatter_dimension_numbers"])
    shape = ir.RankedTensorType(updates[0].type).shape
    outer = [axis for axis in range(len(shape)) if axis not in numbers.window]

    def over(axes: list[int], at: dict, carried: list[ir.Value], body) -> list[ir.Value]:
        if not axes:
            return body(at, carried)
        loop = ir.Operation.create("scf.for", [value.type for value in carried], [_index(0), _index(shape[axes[0]]), _index(1), *carried], regions=1)
        block = loop.regions[0].blocks.append(ir.IndexType.get(), *[value.type for value in carried])
        with ir.InsertionPoint(block):
            ir.Operation.create("scf.yield", [], over(axes[1:], {**at, axes[0]: block.arguments[0]}, list(block.arguments)[1:], body))
        return list(loop.results)

    def window(at: dict, carried: list[ir.Value]) -> list[ir.Value]:
        begin, sizes, axes = _place(tensors[0], indices, shape, numbers, [at[axis] for axis in outer])
        inside = None
        for first, size, extent in zip(begin, sizes, ir.RankedTensorType(tensors[0].type).shape):
            for predicate, limit in ((5, 0), (3, extent - size)):  # signed: at least, at most
                holds = _op("arith.cmpi", _bool(), first, _index(limit), predicate=ir.IntegerAttr.get(_i64(), predicate))
                inside = holds if inside is None else _op("arith.andi", _bool(), inside, holds)

        def element(at: dict, carried: list[ir.Value]) -> list[ir.Value]:
            place = [first if axis is None else _op("arith.addi", ir.IndexType.get(), first, at[axis]) for first, axis in zip(begin, axes)]
            given = [at[axis] for axis in range(len(shape))]
            old = [_op("tensor.extract", _element(tensor), tensor, *place) for tensor in carried]
            new = [_op("tensor.extract", _element(update), update, *given) for update in updates]
            return [_op("tensor.insert", tensor.type, value, tensor, *place)
                    for tensor, value in zip(carried, _combined(op.regions[0].blocks[0], [*old, *new]))]

        if inside is None:
            return over(numbers.window, at, carried, element)
        choice = ir.Operation.create("scf.if", [value.type for value in carried], [inside], regions=2)
        for region, body in zip(choice.regions, (lambda: over(numbers.window, at, carried, element), lambda: carried)):
            with ir.InsertionPoint(region.blocks.append()):
                ir.Operation.create("scf.yield", [], body())
        return list(choice.results)

    return [_cast(made, result.type) for made, result in zip(over(outer, {}, tensors, window), op.results)]


def _place(tensor, indices, shape, numbers: _Numbers, at: list[ir.Value]) -> tuple[list, list, list]:
    """Of each axis of the operand: where the window of the update at `at` begins, how long it is, and which axis of the update runs
    along it."""
    rank, inner = len(ir.RankedTensorType(tensor.type).shape), len(ir.RankedTensorType(indices.type).shape)
    begin, windows = [_index(0)] * rank, iter(numbers.window)
    for number, axis in enumerate(numbers.operand):
        position = [*at[:numbers.vector], _index(number), *at[numbers.vector:]] if numbers.vector < inner else at
        begin[axis] = _op("arith.index_cast", ir.IndexType.get(), _op("tensor.extract", _element(indices), indices, *position))
    for axis, batching in zip(numbers.batching, numbers.indices_batching):
        begin[axis] = at[batching - (batching >= numbers.vector)]
    axes = [None if axis in (*numbers.inserted, *numbers.batching) else next(windows) for axis in range(rank)]
    return begin, [1 if axis is None else shape[axis] for axis in axes], axes


def _combined(block: ir.Block, scalars: list[ir.Value]) -> list[ir.Value]:
    """What the region makes of numbers, which it takes and gives as tensors without axes."""
    known = {argument: _cast(_op("tensor.from_elements", _signless(argument.type), scalar), argument.type)
             for argument, scalar in zip(block.arguments, scalars)}
    for inner in block.operations:
        operands = [known.get(operand, operand) for operand in inner.operands]
        if inner.operation.name == "stablehlo.return":
            bare = [_cast(value, _signless(value.type)) for value in operands]
            return [_op("tensor.extract", _element(value), value) for value in bare]
        made = inner.operation.clone()
        for number, operand in enumerate(operands):
            made.operands[number] = operand
        known.update(zip(inner.results, made.results))
    raise AssertionError("a region without an end")


def _signless(kind: ir.Type) -> ir.Type:
    """Without a sign, as ops on tensors have integers."""
    tensor = ir.RankedTensorType(kind)
    found = re.fullmatch(r"ui(\d+)", str(tensor.element_type))
    return ir.RankedTensorType.get(tensor.shape, ir.IntegerType.get_signless(int(found[1]))) if found else kind


def _cast(value: ir.Value, kind: ir.Type) -> ir.Value:
    return value if value.type == kind else _op("builtin.unrealized_conversion_cast", kind, value)


def _op(name: str, result: ir.Type, *operands: ir.Value, **attributes: ir.Attribute) -> ir.Value:
    return ir.Operation.create(name, [result], list(operands), attributes=attributes).results[0]


def _index(number: int) -> ir.Value:
    return _op("arith.constant", ir.IndexType.get(), value=ir.IntegerAttr.get(ir.IndexType.get(), number))


def _element(tensor: ir.Value) -> ir.Type:
    return ir.RankedTensorType(tensor.type).element_type


def _bool() -> ir.Type:
    return ir.IntegerType.get_signless(1)


def _i64() -> ir.Type:
    return ir.IntegerType.get_signless(64)
