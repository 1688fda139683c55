"""Ops of StableHLO that jaxlib's passes do not lower, or lower to what leaves a case undefined, written out as others."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects.stablehlo import DotAlgorithm

from . import building
from .building import cast, is_unsigned, signless


def drop_hints(ops: Iterable[ir.Operation]) -> None:
    """Removes ops that say where a value lies or when it is computed, and do not change it."""
    for op in ops:
        if op.name in ("sdy.sharding_constraint", "stablehlo.optimization_barrier"):
            for result, operand in zip(list(op.results), list(op.operands)):
                result.replace_all_uses_with(operand)
            op.erase()


def write_out_algorithms(ops: Iterable[ir.Operation]) -> None:
    """Replaces products with an algorithm by products of rounded operands. An algorithm that adds up several products of parts of the operands
    becomes the product of the operands, but for its own error."""
    for op in ops:
        if op.name != "stablehlo.dot_general" or "algorithm" not in op.attributes:
            continue
        algorithm = DotAlgorithm(op.attributes["algorithm"])
        for number, rounded in enumerate((algorithm.lhs_precision_type, algorithm.rhs_precision_type)):
            tensor = ir.RankedTensorType(op.operands[number].type)
            if algorithm.num_primitive_operations > 1 or rounded == tensor.element_type or isinstance(rounded, ir.FloatTF32Type):
                continue
            wanted = ir.RankedTensorType.get(tensor.shape, rounded)
            with ir.InsertionPoint(op), op.location:
                op.operands[number] = ir.Operation.create("stablehlo.convert", [wanted], [op.operands[number]]).results[0]
        del op.attributes["algorithm"]


def widen_bytes(ops: Iterable[ir.Operation]) -> None:
    """Factors without sign of products and convolutions that have a wider result are of its type: linalg's ops take all for signed."""
    for op in ops:
        if op.name not in ("stablehlo.dot_general", "stablehlo.convolution"):
            continue
        made = ir.RankedTensorType(op.results[0].type).element_type
        for number, operand in enumerate(op.operands):
            tensor = ir.RankedTensorType(operand.type)
            if is_unsigned(tensor.element_type) and tensor.element_type != made:
                with ir.InsertionPoint(op), op.location:
                    op.operands[number] = building.op("stablehlo.convert", ir.RankedTensorType.get(tensor.shape, made), operand)


def saturate_conversions(ops: Iterable[ir.Operation]) -> None:
    """Floats that an integer type does not hold become its nearest number, and NaN 0, as XLA makes them; before types lose their signs."""
    for op in ops:
        if op.name != "stablehlo.convert":
            continue
        source, made = (ir.RankedTensorType(value.type) for value in (op.operands[0], op.results[0]))
        integer = made.element_type
        if not isinstance(integer, ir.IntegerType) or integer.width == 1 or not isinstance(source.element_type, ir.FloatType):
            continue
        bits, users = integer.width - (not integer.is_unsigned), list(op.results[0].uses)
        low, above = 0 if integer.is_unsigned else -(1 << bits), 1 << bits
        with ir.InsertionPoint.after(op), op.location:
            x, result = op.operands[0], op.results[0]
            for direction, limit, number in (("GE", above, above - 1), ("LT", low, low), ("NE", x, 0)):
                other = limit if limit is x else _splat(source, ir.FloatAttr.get(source.element_type, float(limit)))
                truth = ir.RankedTensorType.get(source.shape, ir.IntegerType.get_signless(1))
                holds = ir.Operation.create("stablehlo.compare", [truth], [x, other], attributes={
                    "comparison_direction": ir.Attribute.parse(f"#stablehlo<comparison_direction {direction}>")}).results[0]
                constant = _splat(made, ir.IntegerAttr.get(made.element_type, number))
                result = ir.Operation.create("stablehlo.select", [made], [holds, constant, result]).results[0]
        for use in users:
            use.owner.operands[use.operand_number] = result


def limit_shifts(ops: Iterable[ir.Operation]) -> None:
    """Defines shifts by as many bits as a number has or more, or by fewer than none, which ops of arith do not: all bits are shifted out."""
    for op in ops:
        if not op.name.startswith("stablehlo.shift_") or _is_within(op):
            continue
        kind = ir.RankedTensorType(op.results[0].type)
        bits = kind.element_type.width
        users = list(op.results[0].uses)
        with ir.InsertionPoint(op), op.location:
            x, by = op.operands
            constants = {number: _splat(kind, ir.IntegerAttr.get(kind.element_type, number)) for number in (0, bits, bits - 1)}
            truth = ir.RankedTensorType.get(kind.shape, ir.IntegerType.get_signless(1))

            def compared(direction, number):
                return ir.Operation.create("stablehlo.compare", [truth], [by, constants[number]], attributes={
                    "comparison_direction": ir.Attribute.parse(f"#stablehlo<comparison_direction {direction}>")}).results[0]

            is_within = ir.Operation.create("stablehlo.and", [truth], [compared("GE", 0), compared("LT", bits)]).results[0]
            is_arithmetic = op.name == "stablehlo.shift_right_arithmetic"
            op.operands[1] = ir.Operation.create("stablehlo.select", [kind], [is_within, by, constants[bits - 1 if is_arithmetic else 0]]).results[0]
        if is_arithmetic:
            continue
        with ir.InsertionPoint.after(op), op.location:
            made = ir.Operation.create("stablehlo.select", [kind], [is_within, op.results[0], constants[0]]).results[0]
        for use in users:
            use.owner.operands[use.operand_number] = made


def _is_within(shift: ir.Operation) -> bool:
    """Whether it is by a constant that the type has bits for."""
    by = shift.operands[1].owner
    while not isinstance(by, ir.Block) and by.name == "stablehlo.broadcast_in_dim":
        by = by.operands[0].owner
    if isinstance(by, ir.Block) or by.name != "stablehlo.constant":
        return False
    bits = ir.RankedTensorType(shift.results[0].type).element_type.width
    numbers = np.array(ir.DenseElementsAttr(by.attributes["value"])).astype(np.int64)
    return bool(((numbers >= 0) & (numbers < bits)).all())


def write_out_empty(ops: Iterable[ir.Operation]) -> None:
    """Replaces a reduction of no elements by its initial value; a slice of no elements may begin where its operand ends."""
    for op in ops:
        if op.name == "stablehlo.slice" and 0 in ir.RankedTensorType(op.results[0].type).shape:
            with ir.InsertionPoint(op), op.location:
                kind = op.results[0].type
                op.results[0].replace_all_uses_with(cast(building.op("tensor.empty", signless(kind)), kind))
        elif op.name == "stablehlo.reduce" and 0 in ir.RankedTensorType(op.operands[0].type).shape:
            for result, init in zip(list(op.results), list(op.operands)[len(op.results):]):
                with ir.InsertionPoint(op), op.location:
                    made = ir.Operation.create("stablehlo.broadcast_in_dim", [result.type], [init],
                                               attributes={"broadcast_dimensions": ir.DenseI64ArrayAttr.get([])}).results[0]
                result.replace_all_uses_with(made)
        elif op.name == "stablehlo.reduce" and not len(ir.DenseI64ArrayAttr(op.attributes["dimensions"])):
            for result, operand in zip(list(op.results), list(op.operands)):  # over no axis
                result.replace_all_uses_with(operand)
        else:
            continue
        op.erase()


def _splat(kind: ir.RankedTensorType, number: ir.Attribute) -> ir.Value:
    return ir.Operation.create("stablehlo.constant", [kind], attributes={"value": ir.DenseElementsAttr.get_splat(kind, number)}).results[0]
