"""Nodes of diffattn in a graph on their way through torch-mlir, as calls of functions without a body, and as ops in its text."""

from __future__ import annotations

import json
import re

from .attention_text import attention_op
from .grouped_text import grouped_op
from .order_text import order_op
from .solve_text import solve_op
from .write_text import write_op

_CALL = re.compile(r"^ *(%\w+) = (?:func\.)?call @diffattn_node_(\d+)\((.*?)\) : \((.*)\) -> (\S+)\n", re.M)
_DECLARATION = re.compile(r"^ *func\.func private @diffattn_node_\d+\(.*\n", re.M)


def make_calls(module) -> list[tuple]:
    """Replaces the nodes in a module of torch-mlir, in place; gives what writes each, with its spec, by the numbers of the functions."""
    from torch_mlir import ir
    from torch_mlir.dialects import func

    nodes: list[tuple] = []
    blocks = [block for function in module.body.operations for block in function.regions[0].blocks]
    for op in [op for block in blocks for op in block.operations]:
        read = _READ.get(op.attributes["name"].value) if op.operation.name == "torch.operator" else None
        if read is None:
            continue
        write, spec, values, unused = read(list(op.operands))
        results = [result.type for result in op.results]
        with ir.InsertionPoint(module.body), op.location:
            declared = func.FuncOp(f"diffattn_node_{len(nodes)}", ir.FunctionType.get([one.type for one in values], results),
                                   visibility="private")
        with ir.InsertionPoint(op), op.location:
            call = func.CallOp(declared, values)
        nodes.append((write, spec))
        op.results[0].replace_all_uses_with(call.results[0])
        op.operation.erase()
        for left in unused:
            if not list(left.results[0].uses):
                left.erase()
    return nodes


def _read_attention(operands) -> tuple:
    spec, tensors = (value.owner for value in operands)
    return attention_op, json.loads(spec.attributes["value"].value), list(tensors.operands), (tensors, spec)


def _read_write(operands) -> tuple:
    x, dim, index, source, adds = operands
    numbers = [one.owner for one in (dim, adds)]
    return write_op, tuple(one.attributes["value"].value for one in numbers), [x, index, source], dict.fromkeys(numbers)


def _reader(write, tensors: int):
    """What reads a node that `write` writes, of so many tensors and numbers behind them."""

    def read(operands) -> tuple:
        numbers = [one.owner for one in operands[tensors:]]
        return write, tuple(one.attributes["value"].value for one in numbers), operands[:tensors], dict.fromkeys(numbers)

    return read


_READ = {"torch.diffattn._attention": _read_attention, "torch.diffattn._grouped_mm": _reader(grouped_op, 3),
         "torch.diffattn._order": _reader(order_op, 1), "torch.diffattn._solve_triangular": _reader(solve_op, 2),
         "torch.diffattn._write_rows": _read_write}


def with_ops(text: str, nodes: list[tuple]) -> str:
    """The text of a module with ops in place of the calls."""

    def op(call) -> str:
        result, number, operands, types, result_type = call.groups()
        write, spec = nodes[int(number)]
        # Types have commas inside of brackets alone if they have encodings, which torch-mlir does not write.
        lines = write(spec, number, list(zip(operands.split(", "), types.split(", "))), result, result_type)
        return "".join(f"    {line}\n" for line in lines)

    return _DECLARATION.sub("", _CALL.sub(op, text)) if nodes else text
