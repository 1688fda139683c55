"""Calls of functions by what these do: JAX makes a function of each thing that it traces once, and raising looks into none."""

from __future__ import annotations

from jaxlib.mlir import ir

from ..errors import CompileError, IRError
from ..text import shown

#: Largest number of ops of a module: functions that call one another twice, again and again, would grow beyond memory.
MOST_OPS = 1 << 20


def inline(module: ir.Module, entry: str = "main") -> ir.Operation:
    """Puts everything into the function `entry`, which is given back, and takes the others away."""
    functions = {ir.StringAttr(op.attributes["sym_name"]).value: op.operation for op in module.body.operations
                 if op.operation.name == "func.func"}
    if entry not in functions:
        raise IRError(f"expected a function {entry!r}, but got {', '.join(map(shown, functions)) or 'none'}")
    _one_block(functions, entry)
    _Inliner(functions).visit(functions[entry], (entry,))
    for op in list(module.body.operations):
        if op.operation != functions[entry]:
            op.operation.erase()
    return functions[entry]


def _one_block(functions, name: str) -> ir.Block:
    blocks = list(functions[name].regions[0].blocks)
    if len(blocks) != 1 or list(blocks[0].operations)[-1].operation.name != "func.return":
        raise CompileError(f"expected functions of one block that ends with func.return, but {name!r} has {len(blocks)}")
    return blocks[0]


class _Inliner:
    def __init__(self, functions):
        self._functions, self._ops = functions, 0

    def visit(self, op, within: tuple[str, ...]) -> None:
        """`within`: the functions whose bodies this op came out of."""
        for region in op.regions:
            for block in region.blocks:
                for inner in list(block.operations):
                    self._visit_one(inner.operation, within)

    def _visit_one(self, op, within) -> None:
        self._ops += 1
        if self._ops > MOST_OPS:
            raise CompileError(f"expected at most {MOST_OPS} ops once every function is inlined, but got more")
        if op.name == "func.call":
            self._expand(op, within)
        else:
            self.visit(op, within)

    def _expand(self, call, within) -> None:
        name = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
        if name in within:
            raise IRError(f"expected functions that do not call themselves, but {name!r} does")
        block = _one_block(self._functions, name)
        values, copies = dict(zip(block.arguments, call.operands)), []
        for op in block.operations:
            op = op.operation
            if op.name == "func.return":
                for result, value in zip(call.results, op.operands):
                    result.replace_all_uses_with(values[value])
                break
            copy = op.clone(ir.InsertionPoint(call))
            use(copy, values)
            values.update(zip(op.results, copy.results))
            copies.append(copy)
        call.erase()
        # Only now, since what is expanded here is used by the copies behind it.
        for copy in copies:
            self._visit_one(copy, (*within, name))


def use(op, values) -> None:
    """Replaces operands, also of ops within, by their `values`."""
    for number, operand in enumerate(op.operands):
        if operand in values:
            op.operands[number] = values[operand]
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                use(inner.operation, values)
