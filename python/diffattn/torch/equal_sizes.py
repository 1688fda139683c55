"""What PyTorch knows of sizes that it has one symbol for, as assertions at the beginning of a function, where raising reads them."""

from __future__ import annotations

import torch


def assert_equal_sizes(function, graph: torch.fx.Graph) -> None:
    """Asserts in `function`, an operation of MLIR, that the axes of its arguments that have one symbolic size in `graph`, whose inputs
    they are, are equal. A number that is such a size by itself is one of them."""
    from torch_mlir import ir

    block, seen = function.regions[0].blocks[0], {}
    with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown(function.context):
        places = [node for node in graph.nodes if node.op == "placeholder"]
        for number, (argument, node) in enumerate(zip(block.arguments, places)):
            value = node.meta["val"]
            for axis, size in enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]:
                if not isinstance(size, torch.SymInt):
                    continue
                # No names: graphs that differ in these alone share one text in the cache.
                where = f"input {number} of the graph" if axis is None else f"axis {axis} of input {number} of the graph"
                known = seen.setdefault(size.node.expr, (argument, axis, where))
                if known[0] != argument or known[1] != axis:
                    _assert_equal(ir, known, (argument, axis, where))


def _assert_equal(ir, known, other) -> None:
    equal = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0)
    sizes = [_size(ir, argument, axis) for argument, axis, _ in (known, other)]
    holds = ir.Operation.create("arith.cmpi", [ir.IntegerType.get_signless(1)], sizes, {"predicate": equal}).result
    message = f"expected size {{0}} on {other[2]}, as on {known[2]}, but got {{1}}"
    ir.Operation.create("cf.assert", [], [holds], {"msg": ir.StringAttr.get(message)})


def _size(ir, argument, axis):
    index = ir.IndexType.get()
    if axis is None:
        return ir.Operation.create("arith.index_cast", [index], [argument]).result
    number = ir.Operation.create("arith.constant", [index], [], {"value": ir.IntegerAttr.get(index, axis)}).result
    return ir.Operation.create("tensor.dim", [index], [argument, number]).result
