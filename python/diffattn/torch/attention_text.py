"""Attention nodes of a graph on their way through torch-mlir, as calls of functions without a body, and as ops in its text."""

from __future__ import annotations

import json
import re

_CALL = re.compile(r"^ *(%\w+) = (?:func\.)?call @diffattn_attention_(\d+)\((.*?)\) : \((.*)\) -> (\S+)\n", re.M)
_DECLARATION = re.compile(r"^ *func\.func private @diffattn_attention_\d+\(.*\n", re.M)


def make_calls(module) -> list[dict]:
    """Replaces the nodes in a module of torch-mlir, in place; gives their specs, by the numbers of the functions."""
    from torch_mlir import ir
    from torch_mlir.dialects import func

    specs: list[dict] = []
    blocks = [block for function in module.body.operations for block in function.regions[0].blocks]
    for op in [op for block in blocks for op in block.operations]:
        if op.operation.name != "torch.operator" or op.attributes["name"].value != "torch.diffattn._attention":
            continue
        spec, operands = (value.owner for value in op.operands)
        values, results = list(operands.operands), [result.type for result in op.results]
        with ir.InsertionPoint(module.body), op.location:
            declared = func.FuncOp(f"diffattn_attention_{len(specs)}", ir.FunctionType.get([one.type for one in values], results),
                                   visibility="private")
        with ir.InsertionPoint(op), op.location:
            call = func.CallOp(declared, values)
        specs.append(json.loads(spec.attributes["value"].value))
        op.results[0].replace_all_uses_with(call.results[0])
        op.operation.erase()
        for left in (operands, spec):
            if not list(left.results[0].uses):
                left.erase()
    return specs


def with_ops(text: str, specs: list[dict]) -> str:
    """The text of a module with `diffattn.attention` in place of the calls."""
    return _DECLARATION.sub("", _CALL.sub(lambda call: _op(specs[int(call[2])], *call.groups()), text)) if specs else text


def _op(spec: dict, result: str, number: str, operands: str, types: str, result_type: str) -> str:
    lines, of = [], {}
    prefix = f"%attention_{number}"
    # Types have commas inside of brackets alone if they have encodings, which torch-mlir does not write.
    values = list(zip(operands.split(", "), types.split(", ")))
    for name, sizes, (value, given) in zip(spec["names"], spec["sizes"], values):
        wanted = _refined(given, sizes)
        if wanted != given:
            lines.append(f"{prefix}_{name} = tensor.cast {value} : {given} to {wanted}")
            value = f"{prefix}_{name}"
        of[name] = value, wanted
    if len(values) > len(spec["names"]):
        lines += _check_lengths(prefix, *values[-1])
    made = _refined(result_type, spec["result"])
    q1, q1_type = of["q1"]
    dynamic = [axis for axis, size in enumerate(_sizes(made)) if size == "?"]
    for axis in dynamic:
        lines += [f"{prefix}_axis_{axis} = arith.constant {axis} : index",
                  f"{prefix}_size_{axis} = tensor.dim {q1}, {prefix}_axis_{axis} : {q1_type}"]
    lines.append(f"{prefix}_init = tensor.empty({', '.join(f'{prefix}_size_{axis}' for axis in dynamic)}) : {made}")
    ins = [of[name] for name in ("q1", "k1", "q2", "k2", "v")]
    clauses = [f"ins({', '.join(value for value, _ in ins)} : {', '.join(type_ for _, type_ in ins)})"]
    clauses += [f"{name}({value} : {type_})" for name, (value, type_) in list(of.items())[5:]]
    target = result if made == result_type else f"{prefix}_result"
    lines.append(f"{target} = diffattn.attention {' '.join(clauses)} outs({prefix}_init : {made}) {{{spec['attributes']}}} -> {made}")
    if target != result:
        lines.append(f"{result} = tensor.cast {target} : {made} to {result_type}")
    return "".join(f"    {line}\n" for line in lines)


def _check_lengths(prefix: str, negative: str, type_: str) -> list[str]:
    """The check of each call that no kv_len is negative; `negative`: how many are."""
    return [f"{prefix}_negative = tensor.extract {negative}[] : {type_}", f"{prefix}_zero = arith.constant 0 : i64",
            f"{prefix}_fits = arith.cmpi eq, {prefix}_negative, {prefix}_zero : i64",
            f'cf.assert {prefix}_fits, "kv_len: expected 0 to {2**63 - 1}, but got a negative number"']


def _sizes(type_: str) -> list[str]:
    """Of a tensor's type: its sizes, and the type of its elements last."""
    return type_.removeprefix("tensor<").removesuffix(">").split("x")


def _refined(type_: str, sizes: list[int | None]) -> str:
    """A tensor's type with the sizes that are known."""
    *given, element = _sizes(type_)
    return "tensor<" + "x".join([*(known if known != "?" or size is None else str(size) for known, size in zip(given, sizes)), element]) + ">"
