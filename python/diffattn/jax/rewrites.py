"""Ops of StableHLO that jaxlib's passes do not lower, or lower to what leaves a case undefined, written out as others."""

from __future__ import annotations

import re
from collections.abc import Iterable

from jaxlib.mlir import ir

from . import building
from .building import cast, signless


def drop_hints(ops: Iterable[ir.Operation]) -> None:
    """What says where a value lies, or when it is computed, and not what it is."""
    for op in ops:
        if op.name in ("sdy.sharding_constraint", "stablehlo.optimization_barrier"):
            for result, operand in zip(list(op.results), list(op.operands)):
                result.replace_all_uses_with(operand)
            op.erase()


def write_out_algorithms(ops: Iterable[ir.Operation]) -> None:
    """Products that say how they are computed become products of what they round their operands to. One that adds up several products of
    parts of its operands is that of the operands, but for its own error."""
    for op in ops:
        if op.name != "stablehlo.dot_general" or "algorithm" not in op.attributes:
            continue
        algorithm = str(op.attributes["algorithm"])
        for number, side in enumerate(("lhs", "rhs")):
            rounded = re.search(rf"{side}_precision_type = (\w+)", algorithm)
            products = re.search(r"num_primitive_operations = (\d+)", algorithm)
            tensor = ir.RankedTensorType(op.operands[number].type)
            if rounded is None or products is None or int(products[1]) > 1 or rounded[1] in (str(tensor.element_type), "tf32"):
                continue
            wanted = ir.RankedTensorType.get(tensor.shape, ir.Type.parse(rounded[1]))
            with ir.InsertionPoint(op), op.location:
                op.operands[number] = ir.Operation.create("stablehlo.convert", [wanted], [op.operands[number]]).results[0]
        del op.attributes["algorithm"]


def saturate_conversions(ops: Iterable[ir.Operation]) -> None:
    """Floats that an integer type does not hold become its nearest number, and NaN 0, as XLA makes them; before types lose their signs."""
    for op in ops:
        if op.name != "stablehlo.convert":
            continue
        source, made = (ir.RankedTensorType(value.type) for value in (op.operands[0], op.results[0]))
        found = re.fullmatch(r"(u?)i(\d+)", str(made.element_type))
        if found is None or found[2] == "1" or not re.fullmatch(r"b?f\d+", str(source.element_type)):
            continue
        bits, users = int(found[2]) - (not found[1]), list(op.results[0].uses)
        low, above = 0 if found[1] else -(1 << bits), 1 << bits
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


def write_out_empty(ops: Iterable[ir.Operation]) -> None:
    """What is reduced of no elements is what a reduction begins with; a slice of none may begin where its operand ends."""
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
