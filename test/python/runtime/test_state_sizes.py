"""Ops on states of online attention with sizes known only at run time: every axis of every operand is checked before anything is
read or written, and the message names an argument whose size is wrong."""
import re

import numpy as np
import pytest

from diffattn.runtime import Executable, RunError

B, H, HN, T, TK, D, DV = 2, 4, 2, 5, 7, 8, 6
STATE = {"max": (B, H, T), "sum": (B, H, T), "acc": (B, H, T, DV)}
#: Operands with their sizes, and the op. `outs` are updated.
OPS = {
    "merge": ({**STATE, **{f"init_{name}": shape for name, shape in STATE.items()}}, ["init_max", "init_sum", "init_acc"],
              "diffattn.merge ins(%max, %sum, %acc : {max}, {sum}, {acc})\n"
              "    outs(%init_max, %init_sum, %init_acc : {init_max}, {init_sum}, {init_acc})"),
    "finalize": ({"sum1": (B, H, T), "acc1": (B, H, T, DV), "sum2": (B, HN, T), "acc2": (B, HN, T, DV), "lam": (H,), "weight": (DV,),
                  "gate": (B, H, T, DV), "init": (B, H, T, DV)}, ["init"],
                 "diffattn.finalize ins(%sum1, %acc1, %sum2, %acc2 : {sum1}, {acc1}, {sum2}, {acc2}) lambda(%lam : {lam})\n"
                 "    norm_weight(%weight : {weight}) gate(%gate : {gate}) outs(%init : {init}) {{norm = #diffattn.norm<rms>}}"),
    "online_attention": ({"q1": (B, H, T, D), "k1": (B, HN, TK, D), "q2": (B, HN, T, D), "k2": (B, 1, TK, D), "v": (B, HN, TK, DV),
                          "bias": (B, HN, T, TK), "max1": (B, H, T), "sum1": (B, H, T), "acc1": (B, H, T, DV), "max2": (B, HN, T),
                          "sum2": (B, HN, T), "acc2": (B, HN, T, DV)}, ["max1", "sum1", "acc1", "max2", "sum2", "acc2"],
                         "diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : {q1}, {k1}, {q2}, {k2}, {v}) bias(%bias : {bias})\n"
                         "    outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : {max1}, {sum1}, {acc1}, {max2}, {sum2}, {acc2})\n"
                         "    {{scale = 0.25 : f32}}"),
}
#: Sizes that the op wants to be known.
KNOWN = {("finalize", "acc1", 3), ("finalize", "acc2", 3), ("finalize", "weight", 0), ("finalize", "gate", 3), ("finalize", "init", 3)}
#: Sizes that are right besides: a bias may be the same for all of an axis.
ALSO_RIGHT = {("online_attention", "bias", axis, 1) for axis in range(3)}


def module(name, form):
    """A function of the op on tensors or memrefs of which no size is known but the numbers of heads and what is `KNOWN`."""
    operands, updated, text = OPS[name]
    types = {}
    for operand, shape in operands.items():
        sizes = "".join(f"{n}x" if axis == 1 or (name, operand, axis) in KNOWN else "?x" for axis, n in enumerate(shape))
        types[operand] = f"{form}<{sizes}f32>"
    results = ", ".join(types[operand] for operand in updated)
    arguments = ", ".join(f"%{operand}: {kind}" for operand, kind in types.items())
    op = text.format(**types)
    if form == "memref":
        return f"func.func @f({arguments}) {{\n  {op}\n  return\n}}"
    count = f":{len(updated)}" if len(updated) > 1 else ""
    names = ", ".join(f"%r#{i}" for i in range(len(updated))) if count else "%r"
    return f"func.func @f({arguments}) -> ({results}) {{\n  %r{count} = {op} -> {results}\n  return {names} : {results}\n}}"


@pytest.mark.parametrize("form", ["tensor", "memref"])
@pytest.mark.parametrize("name", OPS)
def test_each_size_is_checked(name, form):
    operands, _, _ = OPS[name]
    code = Executable(module(name, form), cache=False)
    arrays = lambda shapes: [np.ones(shape, np.float32) for shape in shapes.values()]
    code.call("f", *arrays(operands))
    for number, (operand, shape) in enumerate(operands.items()):
        for axis in range(len(shape)):
            for size in (0, 1, shape[axis] - 1, shape[axis] + 1, 2 * shape[axis]):
                if size == shape[axis] or (name, operand, axis, size) in ALSO_RIGHT:
                    continue
                lied = dict(operands)
                lied[operand] = (*shape[:axis], size, *shape[axis + 1:])
                given = arrays(lied)
                with pytest.raises((RunError, ValueError)) as error:
                    code.call("f", *given)
                # It, or what it does not fit.
                message = str(error.value)
                assert re.match(r"argument \d+ of 'f': expected ", message) and re.search(rf"argument {number}\b", message), (operand, axis, size, message)
                assert all((array == 1).all() for array in given), "nothing was written"
