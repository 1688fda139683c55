"""Loops and branches of StableHLO as those of the dialect scf, which jaxlib's passes leave as they are."""

from __future__ import annotations

from collections.abc import Callable

from jaxlib.mlir import ir

from .building import cast, drop_signs, signless


def lower_control_flow(function: ir.Operation) -> None:
    """Changes while, case and if, also within one another. What they carry has no signs, as between ops of scf and functions; the ops
    within still see which integers have none."""
    for region in function.regions:
        for block in region.blocks:
            for op in list(block.operations):
                op = op.operation
                lower_control_flow(op)
                lowering = _LOWERINGS.get(op.name)
                if lowering is not None:
                    with ir.InsertionPoint(op), op.location:
                        made = lowering(op)
                        results = [cast(new, result.type) for result, new in zip(op.results, made.results)]
                    for result, new in zip(op.results, results):
                        result.replace_all_uses_with(new)
                    op.erase()


def _while(op) -> ir.Operation:
    made = ir.Operation.create("scf.while", _bare(op.results), [cast(value, signless(value.type)) for value in op.operands], regions=2)
    condition, body = (_move(region, made.regions[number]) for number, region in enumerate(op.regions))
    _end(condition, lambda values: ("scf.condition", [_scalar(values[0]), *condition.arguments]))
    _end(body, lambda values: ("scf.yield", values))
    return made


def _case(op) -> ir.Operation:
    """An index that no branch has takes the last."""
    index = ir.Operation.create("arith.index_cast", [ir.IndexType.get()], [_scalar(op.operands[0])]).results[0]
    branches = list(op.regions)
    made = ir.Operation.create("scf.index_switch", _bare(op.results), [index], regions=len(branches),
                               attributes={"cases": ir.DenseI64ArrayAttr.get(list(range(len(branches) - 1)))})
    # Its first region is the default.
    for region, into in zip([branches[-1], *branches[:-1]], made.regions):
        _end(_move(region, into), lambda values: ("scf.yield", values))
    return made


def _if(op) -> ir.Operation:
    made = ir.Operation.create("scf.if", _bare(op.results), [_scalar(op.operands[0])], regions=2)
    for region, into in zip(op.regions, made.regions):
        _end(_move(region, into), lambda values: ("scf.yield", values))
    return made


_LOWERINGS: dict[str, Callable[[ir.Operation], ir.Operation]] = {"stablehlo.while": _while, "stablehlo.case": _case, "stablehlo.if": _if}


def _scalar(tensor) -> ir.Value:
    """The number in a tensor of rank 0."""
    return ir.Operation.create("tensor.extract", [ir.RankedTensorType(tensor.type).element_type], [tensor]).results[0]


def _bare(values) -> list[ir.Type]:
    return [signless(value.type) for value in values]


def _move(region, into) -> ir.Block:
    region.blocks[0].append_to(into)
    drop_signs(into.blocks[0])
    return into.blocks[0]


def _end(block, terminator: Callable[[list], tuple[str, list]]) -> None:
    """Another terminator for the values that the block returned."""
    last = list(block.operations)[-1].operation
    with ir.InsertionPoint(last), last.location:
        name, values = terminator([cast(value, signless(value.type)) for value in last.operands])
        ir.Operation.create(name, [], values)
    last.erase()
