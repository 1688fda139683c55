"""Loops of one or two iterations as what they do, one after the other: raising looks into no loop, and functions go over two maps by one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxlib.mlir import ir

from . import building
from .inline import use

MOST_ITERATIONS = 2


def unroll(ops: Iterable[ir.Operation]) -> None:
    """Writes out the loops whose counter goes from a constant to a constant. In `ops`, a loop comes after the loops within it."""
    for op in ops:
        if op.name != "stablehlo.while":
            continue
        counter = _counter(op)
        if counter is not None:
            number, numbers = counter
            _write_out(op, number, numbers)


def _write_out(loop: ir.Operation, number: int, numbers: list[int]) -> None:
    block, values = loop.regions[1].blocks[0], list(loop.operands)
    with ir.InsertionPoint(loop), loop.location:
        for at in numbers:
            kind = ir.RankedTensorType(block.arguments[number].type)
            values[number] = building.op("stablehlo.constant", kind, value=ir.DenseElementsAttr.get_splat(kind, ir.IntegerAttr.get(kind.element_type, at)))
            known = dict(zip(block.arguments, values))
            for inner in block.operations:
                if inner.operation.name == "stablehlo.return":
                    values = [known.get(operand, operand) for operand in inner.operands]
                    break
                copy = inner.operation.clone()
                use(copy, known)
                known.update(zip(inner.results, copy.results))
    for result, value in zip(list(loop.results), values):
        result.replace_all_uses_with(value)
    loop.erase()


def _counter(loop: ir.Operation) -> tuple[int, list[int]] | None:
    """Number of the operand that counts, and the values that it takes, of a loop `while i < n: ...; i = i + step`."""
    condition, body = (region.blocks[0] for region in loop.regions)
    comparison, last = list(condition.operations)[-1].operands[0].owner, list(body.operations)[-1].operation
    if isinstance(comparison, ir.Block) or comparison.name != "stablehlo.compare" or "LT" not in str(comparison.attributes["comparison_direction"]):
        return None
    arguments, end = list(condition.arguments), _constant(comparison.operands[1])
    if end is None or comparison.operands[0] not in arguments:
        return None
    number = arguments.index(comparison.operands[0])
    begin, step = _constant(loop.operands[number]), _step(last.operands[number], body.arguments[number])
    if begin is None or not step or step < 0 or not str(ir.RankedTensorType(arguments[number].type).element_type).startswith("i"):
        return None
    numbers = range(begin, end, step)
    return (number, list(numbers)) if 1 <= len(numbers) <= MOST_ITERATIONS else None


def _step(value: ir.Value, counter: ir.Value) -> int | None:
    op = value.owner
    if isinstance(op, ir.Block) or op.name != "stablehlo.add" or counter not in list(op.operands):
        return None
    return _constant(op.operands[1] if op.operands[0] == counter else op.operands[0])


def _constant(value: ir.Value) -> int | None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "stablehlo.constant":
        return None
    numbers = np.array(ir.DenseElementsAttr(owner.attributes["value"]))
    return int(numbers.reshape(-1)[0]) if numbers.size == 1 and numbers.dtype.kind in "iu" else None
