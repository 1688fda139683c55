"""`torch.ops.diffattn.attention` in graphs that are compiled, where it becomes one op of the dialect.

Its decomposition converts the operands to what the dialect's op takes, and puts them with its attributes into one node of
`torch.ops.diffattn._attention`, which nothing takes apart: the builtin `attention`.
"""

from __future__ import annotations

import json

import torch

from ..array_facts import IN_ELEMENTS, ArrayType
from ..arrays import DTYPES
from ..attention_module import builtin_options, fixed_axes, options_of
from ..attention_operands import OPTIONAL, POSITIONS, TABLES
from ..attention_plan import check_arguments
from ..errors import CompileError, InputError
from .gradient import has_second_map
from .graph import hint
from .op import add_operator
from .tensors import CODE_OF

#: `spec` is JSON: the options as text of MLIR, among them the names of the operands, the known sizes of the operands and of the result
#: (null: any), and which operand is v.
SCHEMA = "_attention(str spec, Tensor[] operands) -> Tensor"


def _fake(spec, operands):
    q1, v = operands[0], operands[json.loads(spec)["v"]]
    return q1.new_empty((*q1.shape[:3], v.shape[3]))


add_operator(SCHEMA, _fake)

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def attention(exported: bool):
    """The decomposition. `exported`: sizes that are symbols stay such; else heads, widths and windows become numbers, with a guard."""

    def decompose(q1, k1, q2, k2, v, lam, *, scale=None, is_causal=False, window=None, softcap=None, lam_activation=None, norm=None,
                  norm_eps=1e-5, norm_eps_mode="inside", out_scale=1.0, integral=False, target=None, **optional):
        has_second_map(q2, k2, lam, lam_activation=lam_activation, integral=integral)
        if target is not None:
            raise CompileError(f"target: expected None in a graph that is compiled, whose own target it has, but got {target!r}")
        others = {operand.name: optional.get(operand.argument) for operand in OPTIONAL}
        if (others["q_segments"] is None) != (others["kv_segments"] is None):
            raise InputError("segment_ids: expected q_segments and kv_segments together, but got one of them")
        if exported and not all(isinstance(side, int) for side in window or ()):
            raise CompileError("window: expected numbers, but got one of dynamic_shapes")
        window = None if window is None else [int(side) for side in window]
        options = options_of(scale, is_causal, window, softcap, lam_activation, norm, norm_eps, norm_eps_mode, out_scale, integral)
        batch = q1.shape[0]
        tables = [name for name in TABLES if others[name] is not None]
        if "cu_seqlens_q" in tables:
            batch = others["cu_seqlens_q"].shape[0] - 1
        for name in POSITIONS:
            others[name] = _positions(name, others[name], batch)
        given = {"q1": q1, "k1": k1, "q2": q2, "k2": k2, "v": v, "lambda": None if lam is None else _lambda(lam), **others}
        given = {name: tensor for name, tensor in given.items() if tensor is not None}
        _check(given, options)
        while "bias" in given and given["bias"].dim() < 4:
            given["bias"] = given["bias"].unsqueeze(0)
        sizes = {name: _known(name, tensor, exported, tables) for name, tensor in given.items()}
        spec = {"options": builtin_options(sizes["q1"][3], options, tuple(given)), "sizes": list(sizes.values()),
                "result": [*sizes["q1"][:3], sizes["v"][3]], "v": list(given).index("v")}
        return torch.ops.diffattn._attention(json.dumps(spec), list(given.values()))

    return decompose


def _lambda(lam):
    if lam.dtype not in _FLOATS and not (lam.dim() == 0 and not lam.dtype.is_complex and lam.dtype != torch.bool):
        raise InputError(f"lam: expected floats, but got {lam.dtype}")
    return lam.to(torch.float32)


def _positions(name: str, value, batch):
    """int64 positions, one for each sequence of the batch."""
    if value is None:
        return None
    if value.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        raise InputError(f"{name}: expected integers, but got {value.dtype}")
    size = [hint(n) for n in value.shape]
    if size and size != [hint(batch)]:
        raise InputError(f"{name}: expected a number or shape [{batch}], but got {list(value.shape)}")
    value = value.to(torch.int64)
    return value if size else value.expand([batch])


def _check(given, options) -> None:
    """Checks arguments as a call does, for the sizes that the graph was traced with."""
    types = {}
    for name, tensor in given.items():
        sizes = tuple(hint(size) for size in tensor.shape)
        if None in sizes:
            return  # sizes that data decides: compiled code checks them
        if tensor.dtype not in CODE_OF:
            raise InputError(f"{name}: expected elements of {', '.join(map(str, CODE_OF))}, but got {tensor.dtype}")
        types[name] = ArrayType((DTYPES[CODE_OF[tensor.dtype]], sizes, (1,) * len(sizes), IN_ELEMENTS))
    check_arguments(types, options, "kv_len" in given)


def _known(name: str, tensor, exported: bool, tables) -> list[int | None]:
    """Sizes of a tensor, None for those that may be any."""
    fixed, sizes = fixed_axes(name, tensor.dim(), tables), list(tensor.shape)
    for axis, size in enumerate(sizes):
        if not isinstance(size, int):
            if axis in fixed and exported:
                raise CompileError(f"{name}: expected numbers of heads and widths that are known, but axis {axis} of torch.ops.diffattn."
                                   "attention is one of dynamic_shapes")
            sizes[axis] = int(size) if axis in fixed else None
    return sizes
