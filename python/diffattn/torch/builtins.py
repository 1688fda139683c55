"""Nodes of diffattn in a graph as calls of functions that stand for them: builtins of the stage `imported`, which writes their ops.

The node `torch.ops.diffattn._argsort` is the builtin `argsort`: its tensors are the operands, and its numbers are options by their names.
An attention has its options in a text.
"""

from __future__ import annotations

import json

import torch

from ..importing.contract import call_builtin, declare_builtin

_PREFIX = "torch.diffattn._"


def make_calls(module) -> None:
    """Replaces the nodes in a module that torch-mlir's importer made, in place."""
    from torch_mlir import ir

    blocks = [block for function in module.body.operations for block in function.regions[0].blocks]
    for op in [op for block in blocks for op in block.operations]:
        if op.operation.name != "torch.operator" or not (name := op.attributes["name"].value).startswith(_PREFIX):
            continue
        name = name.removeprefix(_PREFIX)
        with op.location, ir.InsertionPoint(op):
            operands, options, result = _read(ir, name, op)
            declared = declare_builtin(ir, module, name, options, [one.type for one in operands], [result])
            made = call_builtin(ir, declared, operands, [result]).result
            op.results[0].replace_all_uses_with(_as(ir, made, op.results[0].type))
        read = [value.owner for value in op.operands if not isinstance(value.owner, ir.Block)]
        op.operation.erase()
        for left in dict.fromkeys(read):
            # Numbers, a text and a list go that the importer made for this node alone.
            if left.operation.name.startswith(("torch.constant.", "torch.prim.ListConstruct")) and not list(left.results[0].uses):
                left.operation.erase()


def _read(ir, name: str, op) -> tuple[list, object, object]:
    """The operands, the options and the type of the result."""
    operands, options = [], {}
    for argument, value in zip(getattr(torch.ops.diffattn, f"_{name}").default._schema.arguments, op.operands):
        if argument.name == "spec":
            spec = json.loads(value.owner.attributes["value"].value)
        elif isinstance(argument.type, torch.TensorType):
            operands.append(value)
        elif isinstance(argument.type, torch.ListType):
            operands += list(value.owner.operands)
        else:
            options[argument.name] = value.owner.attributes["value"]
    if name != "attention":
        return operands, ir.DictAttr.get(options), op.results[0].type
    # Known sizes that importers take for any.
    operands = [_as(ir, value, _of_sizes(ir, value.type, sizes)) for value, sizes in zip(operands, spec["sizes"])]
    return operands, ir.Attribute.parse(spec["options"]), _of_sizes(ir, op.results[0].type, spec["result"])


def _of_sizes(ir, kind, sizes: list[int | None]):
    """The type of a tensor of PyTorch with these sizes, None for any."""
    return ir.Type.parse(f"!torch.vtensor<[{','.join('?' if size is None else str(size) for size in sizes)}]{str(kind).rpartition(']')[2]}")


def _as(ir, value, kind):
    return value if value.type == kind else ir.Operation.create("torch.tensor_static_info_cast", [kind], [value]).result
