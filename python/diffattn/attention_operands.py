"""The array operands of `diffattn.attention`, one row each: names, types, shapes, and what code is compiled for.

The one list of them beside the signatures: a call's checks (attention_plan.py), the module that is compiled (attention_module.py)
and the operator of PyTorch (torch/) follow from it.
"""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np

FLOATS = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
F32, I64, I32 = np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.int32)
#: Stands for q1's type among those that an operand may have.
AS_Q1 = None


class Operand(NamedTuple):
    #: The op's name for it, and the compiled function's.
    name: str
    #: Its name in errors, whose last word is its name as an argument.
    display_name: str
    #: Its shape by the names that docs/spec.md gives to sizes, and its types; None: it has several, which are checked by a rule of
    #: their own.
    axes: tuple[str, ...] | None = None
    dtypes: tuple = ()
    #: The axes, -1 for the last, whose sizes code is compiled for. Others may be any.
    fixed: tuple[int, ...] = ()
    #: Whether calls of packed sequences or of pages may have it.
    with_tables: bool = True

    @property
    def argument(self) -> str:
        return self.display_name.rpartition(" ")[2]


#: In the order of the op's clauses and of the compiled function's arguments.
OPERANDS = (
    Operand("q1", "q1", fixed=(1, -1)),
    Operand("k1", "k1", fixed=(1, -1)),
    Operand("q2", "q2", fixed=(1, -1)),
    Operand("k2", "k2", fixed=(1, -1)),
    Operand("v", "v", fixed=(1, -1)),
    Operand("lambda", "lam", fixed=(-1,)),
    Operand("bias", "attn_mask", fixed=(1,), with_tables=False),
    Operand("norm_weight", "norm_weight", ("dv",), (AS_Q1, F32), fixed=(-1,)),
    Operand("gate", "gate", ("B", "Hs", "Tq", "dv"), (AS_Q1,), fixed=(1, -1)),
    Operand("kv_len", "kv_len"),
    Operand("q_offset", "q_offset"),
    Operand("q_segments", "segment_ids: q_segments", ("B", "Tq"), (I64, I32), with_tables=False),
    Operand("kv_segments", "segment_ids: kv_segments", ("B", "Tk"), (I64, I32), with_tables=False),
    Operand("cu_seqlens_q", "cu_seqlens_q"),
    Operand("cu_seqlens_k", "cu_seqlens_k"),
    Operand("block_table", "block_table"),
    Operand("sink", "sink", ("Hs",), (AS_Q1, F32), fixed=(0,)),
    Operand("sink2", "sink2", ("Hn",), (AS_Q1, F32), fixed=(0,)),
    Operand("init", "out", fixed=(1, -1)),
    Operand("x", "x", fixed=(1, -1)),
    Operand("lse1", "return_lse: lse1", ("B", "Hs", "Tq"), (F32,), fixed=(1,)),
    Operand("lse2", "return_lse: lse2", ("B", "Hn", "Tq"), (F32,), fixed=(1,)),
    Operand("o2", "o2", fixed=(1, -1)),
)
#: Operands that a call writes.
RESULTS = ("init", "x", "lse1", "lse2", "o2")
OPERAND = {operand.name: operand for operand in OPERANDS}
NAMES = tuple(OPERAND)
#: The first ones, without which no call is, and the others, without the results.
REQUIRED, OPTIONAL = OPERANDS[:6], OPERANDS[6:-len(RESULTS)]
KEYS = ("k1", "k2", "v")
#: Operands of the second map, and the names of the others in a call of one map.
OF_MAP2, OF_ONE_MAP = ("q2", "k2", "lambda"), {"q1": "q", "k1": "k"}
#: One score of each head that is in its sums, and has no value.
SINKS = ("sink", "sink2")
#: One number for each sequence.
POSITIONS = ("kv_len", "q_offset")
#: Where sequences begin, and which pages are theirs.
TABLES = ("cu_seqlens_q", "cu_seqlens_k", "block_table")
#: The operands that have gradients, in the order of their destinations.
DIFFERENTIABLE = ("q1", "k1", "q2", "k2", "v", "lambda", "bias", "norm_weight", "gate")
#: Operands and options with which there are no gradients, and why.
WITHOUT_GRADIENTS = {"block_table": "keys in pages, which many sequences may share, have none",
                     "integral": "the mean over all queries has none",
                     **dict.fromkeys(SINKS, "sums with a term that is no key have none")}
#: Results that a forward call may have saved for the call of gradients, in the order of the op's clauses.
SAVED = ("lse1", "lse2", "x", "o2")
#: The arguments of the compiled function of gradients: operands, the gradient of the result, what the forward call saved, and
#: destinations, which are as their operands.
BACKWARD_NAMES = (*(name for name in NAMES if name not in (*SINKS, *RESULTS)), "d_out", *SAVED,
                  *(f"d_{name}" for name in DIFFERENTIABLE))
