"""Additions of a front door to the MLIR that its importer printed: attributes of arguments, and functions that stand for ops of ours.

docs/spec.md has the contract (import_c1 on); the stage `imported` of the compiler reads it. `ir` is the importer's own bindings of MLIR:
each library has a copy, and their objects do not mix.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def mark_arguments(ir, function, weights: Mapping[int, str], written: Collection[int] = (),
                   sizes: Mapping[int, str | Sequence[str | int | None]] | None = None) -> None:
    """Marks arguments of `function`, an operation of `ir`, by their numbers: those that are weights with their names, those whose memory may
    be written to, and the names of sizes. An argument that is a number has one name, a tensor a name, a number or None for each axis."""
    marks: list[dict] = [{} for _ in function.regions[0].blocks[0].arguments]
    for number, name in weights.items():
        marks[number]["diffattn.weight"] = ir.StringAttr.get(name)
    for number in written:
        if number not in weights:
            marks[number]["diffattn.writable"] = ir.UnitAttr.get()
    for number, named in (sizes or {}).items():
        marks[number]["diffattn.size"] = _size(ir, named) if isinstance(named, str) else ir.ArrayAttr.get([_size(ir, one) for one in named])
    if any(marks):
        function.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in marks])


def _size(ir, size):
    if size is None:
        return ir.UnitAttr.get()
    return ir.StringAttr.get(size) if isinstance(size, str) else ir.IntegerAttr.get(ir.IntegerType.get_signless(64), size)


def declare_builtin(ir, module, name: str, options, arguments: Sequence, results: Sequence):
    """Declares in `module` a function of these types that stands for builtin `name` with `options`, a DictAttr; gives the operation. There
    is one for each call, which may have types of its own."""
    taken = {ir.StringAttr(op.attributes["sym_name"]).value for op in module.body.operations if "sym_name" in op.attributes}
    number = 0
    while (symbol := f"diffattn_{name}_{number}") in taken:
        number += 1
    with ir.InsertionPoint(module.body):
        return ir.Operation.create("func.func", regions=1, attributes={
            "sym_name": ir.StringAttr.get(symbol), "sym_visibility": ir.StringAttr.get("private"),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(list(arguments), list(results))),
            "diffattn.builtin": ir.StringAttr.get(name), "diffattn.options": options})


def call_builtin(ir, declared, operands: Sequence, results: Sequence):
    """A call of a declared builtin, where the insertion point is."""
    symbol = ir.StringAttr(declared.attributes["sym_name"]).value
    return ir.Operation.create("func.call", list(results), list(operands), {"callee": ir.FlatSymbolRefAttr.get(symbol)})
