"""Attention nodes of a graph as ops of the dialect, in text."""

from __future__ import annotations


def attention_op(spec: dict, number: str, values: list[tuple[str, str]], result: str, result_type: str) -> list[str]:
    """The lines that make `result` of `values`, each with its type."""
    lines, of = [], {}
    prefix = f"%attention_{number}"
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
    dynamic = [axis for axis, size in enumerate(sizes_of(made)) if size == "?"]
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
    return lines


def _check_lengths(prefix: str, negative: str, type_: str) -> list[str]:
    """The check of each call that no kv_len is negative; `negative`: how many are."""
    return [f"{prefix}_negative = tensor.extract {negative}[] : {type_}", f"{prefix}_zero = arith.constant 0 : i64",
            f"{prefix}_fits = arith.cmpi eq, {prefix}_negative, {prefix}_zero : i64",
            f'cf.assert {prefix}_fits, "kv_len: expected 0 to {2**63 - 1}, but got a negative number"']


def sizes_of(type_: str) -> list[str]:
    """Of a tensor's type: its sizes, and the type of its elements last."""
    return type_.removeprefix("tensor<").removesuffix(">").split("x")


def _refined(type_: str, sizes: list[int | None]) -> str:
    """A tensor's type with the sizes that are known."""
    *given, element = sizes_of(type_)
    return "tensor<" + "x".join([*(known if known != "?" or size is None else str(size) for known, size in zip(given, sizes)), element]) + ">"
