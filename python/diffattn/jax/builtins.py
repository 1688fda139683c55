"""Custom calls of ours in StableHLO as calls of builtins: differential attention."""

from __future__ import annotations

from jaxlib.mlir import ir

from ..errors import CompileError
from ..importing.contract import call_builtin, declare_builtin
from .xla import BACKWARD, SAVING

#: How the targets of custom calls begin that are builtins.
PREFIX = "diffattn."


def make_call(module: ir.Module, op: ir.Operation, target: str) -> None:
    """Replaces a custom call, whose configuration is the builtin's options, in place."""
    given = [op.attributes[name] for name in ("mhlo.backend_config", "backend_config") if name in op.attributes]
    if target in (SAVING, BACKWARD):
        raise CompileError(f"expected no gradients of diffattn.jax.attention, because they are not compiled, but got a custom call of {target}; "
                           "JAX runs a function that has them")
    # JAX writes an empty text beside the dictionary; a text that says something is handed on, and refused.
    options = _with_list(next((one for one in given if one != ir.StringAttr.get("")), ir.DictAttr.get({})))
    operands, results = list(op.operands), [value.type for value in op.results]
    with ir.InsertionPoint(op), op.location:
        declared = declare_builtin(ir, module, target.removeprefix(PREFIX), options, [value.type for value in operands], results)
        made = call_builtin(ir, declared, operands, results)
    for old, new in zip(list(op.results), list(made.results)):
        old.replace_all_uses_with(new)
    op.erase()


def _with_list(options: ir.Attribute) -> ir.Attribute:
    """Names of operands as a list, where they are one text, which XLA takes."""
    if not isinstance(options, ir.DictAttr) or "operands" not in options or not isinstance(options["operands"], ir.StringAttr):
        return options
    names = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in options["operands"].value.split()])
    return ir.DictAttr.get({**{one.name: one.attr for one in options}, "operands": names})
