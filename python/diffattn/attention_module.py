"""The module that one attention is compiled from: its options as attributes of the op, and the types of its arguments."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Collection

import ml_dtypes
import numpy as np

from . import checks
from .array_facts import ArrayType
from .attention_operands import KEYS, OPERAND, OPTIONAL, POSITIONS, RESULTS, SAVED
from .errors import UsageError

_MLIR = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16", np.dtype(ml_dtypes.bfloat16): "bf16",
         np.dtype(np.bool_): "i1", np.dtype(np.int64): "i64", np.dtype(np.int32): "i32"}

#: The largest scale of the op (docs/spec.md).
_MAX_SCALE = 2.0**64

#: Checked options, by the arguments that they were given as; at most `_MOST_CHECKED`.
_checked: dict[tuple, tuple[str | None, ...]] = {}
_MOST_CHECKED = 1024
#: Options of these types are equal only if they mean the same, but for True and 1, 1.0 and 1, and the two zeros.
_PLAIN = frozenset((type(None), bool, int, float, str))


def options_of(scale=None, is_causal=False, window=None, softcap=None, lam_activation=None, norm=None, norm_eps=1e-5,
               norm_eps_mode="inside", out_scale=1.0, integral=False) -> tuple[str | None, ...]:
    """The op's attributes as a builtin's options, which MLIR writes so, exactly: enumerations are words. The first is the scale's; None
    stands for the default."""
    options = (scale, is_causal, softcap, lam_activation, norm, norm_eps, norm_eps_mode, out_scale, integral)
    sides = tuple(window) if type(window) in (tuple, list) else ()
    key = (options, type(window), sides, tuple(map(type, options)), tuple(map(type, sides)))
    # Other objects may change, or be equal to what they are not. Zero is equal to minus zero.
    known = _PLAIN.issuperset(key[3]) and _PLAIN.issuperset(key[4]) and (window is None or sides) and out_scale != 0
    checked = _checked.get(key) if known else None
    if checked is None:
        checked = _check_options(scale, is_causal, window, softcap, lam_activation, norm, norm_eps, norm_eps_mode, out_scale,
                                 integral)
        if known and len(_checked) < _MOST_CHECKED:
            _checked[key] = checked
    return checked


def float32_bits(name: str, value, expected="a finite number", holds=lambda _: True) -> bytes:
    """A number that float32 holds, rounded to it: the bytes of memory."""
    value = checks.number(name, value, expected, holds)
    try:
        bits = struct.pack("<f", value)
    except OverflowError:
        bits = b""
    if not bits or (value and not struct.unpack("<f", bits)[0]):
        raise checks.wrong(name, "a number that float32 holds", value)
    return bits


def _float32(*check) -> str:
    """A number as MLIR's exact bits; the arguments are those of `float32_bits`."""
    return f"0x{struct.unpack('<I', float32_bits(*check))[0]:08X} : f32"


def _scale(value) -> str:
    return _float32("scale", value, "a finite number of at most 2^64 in magnitude", lambda x: abs(x) <= _MAX_SCALE)


def _check_options(scale, is_causal, window, softcap, lam_activation, norm, norm_eps, norm_eps_mode, out_scale,
                   integral=False) -> tuple[str | None, ...]:
    result = [None if scale is None else f"scale = {_scale(scale)}"]
    if checks.flag("is_causal", is_causal):
        result.append("is_causal")
    if window is not None:
        if not isinstance(window, (tuple, list)) or len(window) != 2:
            raise checks.wrong("window", "(left, right)", window)
        try:
            sides = [-1 if side is None else checks.integer("window", side, -1) for side in window]
        except UsageError:
            raise checks.wrong("window", "sizes from 0, or None or -1 for no limit", window) from None
        if sides != [-1, -1]:
            result.append(f"window = array<i64: {sides[0]}, {sides[1]}>")
    if checks.flag("integral", integral):
        if any(option and option.startswith(("is_causal", "window")) for option in result):
            raise UsageError("integral: expected no is_causal and no window with it, because its mean is over all queries")
        result.append("integral")
    if softcap is not None:
        result.append(f"softcap = {_float32('softcap', softcap, 'a positive number', lambda x: x > 0)}")
    if checks.choice("lam_activation", lam_activation, (None, "sigmoid")):
        result.append('lambda_act = "sigmoid"')
    checks.choice("norm_eps_mode", norm_eps_mode, ("inside", "outside"))
    epsilon = _float32("norm_eps", norm_eps, "a number from 0", lambda x: x >= 0)
    if checks.choice("norm", norm, (None, "rms")):
        result += ['norm = "rms"', f"norm_eps = {epsilon}", f'norm_eps_mode = "{norm_eps_mode}"']
    result.append(f"out_scale = {_float32('out_scale', out_scale)}")
    return tuple(result)


@functools.lru_cache(maxsize=1024)
def attributes_of(width: int, options: tuple[str | None, ...]) -> str:
    """All attributes of the op, the scale's default included, for heads of `width`."""
    return ", ".join(_AS_ATTRIBUTES.get(option, option) for option in _with_scale(width, options))


@functools.lru_cache(maxsize=1024)
def builtin_options(width: int, options: tuple[str | None, ...], operands: tuple[str, ...]) -> str:
    """The options of the builtin `attention` (docs/spec.md, import_c5) of operands with these names, for heads of `width`."""
    names = ", ".join(f'"{name}"' for name in operands)
    return "{" + ", ".join([f"operands = [{names}]", *_with_scale(width, options)]) + "}"


def _with_scale(width: int, options: tuple[str | None, ...]) -> list[str]:
    scale, *others = options
    return [scale or f"scale = {_scale(1.0 / math.sqrt(width))}", *others]


#: Enumerations, which the op has types for.
_AS_ATTRIBUTES = {'lambda_act = "sigmoid"': "lambda_act = #diffattn.activation<sigmoid>", 'norm = "rms"': "norm = #diffattn.norm<rms>",
                  'norm_eps_mode = "inside"': "norm_eps_mode = #diffattn.eps_mode<inside>",
                  'norm_eps_mode = "outside"': "norm_eps_mode = #diffattn.eps_mode<outside>"}


def size_bounds(queries: int, keys: int) -> str:
    """An attribute that leaves out the code of kernels that a call of such sizes does not take: those for few queries, or those for
    many. Half of the code is left, which takes half as long to compile; calls of either kind are compiled when the first one comes."""
    from .runtime import library

    return f", size_bounds = #diffattn.size_bounds<{library().call_size_bounds(queries, keys).decode()}>"


def memref(name: str, array: ArrayType, tables: tuple[str, ...] = ()) -> str:
    """The type to compile for an array of the operand `name`: batch, lengths and strides stay open; head counts, widths, the one batch of
    packed sequences and the rows of a page do not. `tables`: those of TABLES that are given."""
    if name in POSITIONS:
        return f"memref<?x{_MLIR[array.dtype]}>"
    shape, fixed = array.shape, fixed_axes(name, array.ndim, tables)
    # An axis of 1 of a mask is one mask for all.
    sizes = tuple(size if axis in fixed or (name == "bias" and axis in (0, 2) and size == 1) else None
                  for axis, size in enumerate(shape))
    # Vectors are loaded at once where the last axis is dense.
    return _memref(array.dtype, tuple(sizes), array.ndim == 0 or array.steps[-1] == 1 or shape[-1] == 1)


def fixed_axes(name: str, rank: int, tables: Collection[str]) -> set[int]:
    """The axes of an operand of this rank whose sizes code is compiled for."""
    fixed = {axis % rank for axis in OPERAND[name].fixed if rank}
    is_key = name in KEYS
    if rank == 4 and ("cu_seqlens_k" if is_key else "cu_seqlens_q") in tables:
        fixed.add(0)
    if is_key and "block_table" in tables:
        fixed.add(2)
    return fixed


@functools.lru_cache(maxsize=1024)
def _memref(dtype: np.dtype, sizes: tuple[int | None, ...], is_dense: bool) -> str:
    """The memref type of an array; a size of None is dynamic."""
    if not sizes:
        return f"memref<{_MLIR[dtype]}>"
    shape = "".join("?x" if size is None else f"{size}x" for size in sizes)
    strides = ", ".join(["?"] * (len(sizes) - 1) + ["1" if is_dense else "?"])
    return f"memref<{shape}{_MLIR[dtype]}, strided<[{strides}], offset: ?>>"


@functools.lru_cache(maxsize=1024)
def module(types: tuple[tuple[str, str], ...], attributes: str, shared: bool, more: tuple[tuple[str, str], ...] = (), before: str = "") -> str:
    """The function `attention` of arguments with these names and types, of one map without q2, k2 and lambda; `shared`: k1 is k2 too,
    which is not among them. `more`: arguments behind those, which the ops of `before` use."""
    type_of = dict(types)
    outs = " ".join([f"outs(%init : {type_of['init']})", *(f"{name}(%{name} : {type_of[name]})" for name in RESULTS[1:] if name in type_of)])
    return _function("attention", types, ("lambda", *_OPTIONAL), outs, attributes, shared, more, before)


@functools.lru_cache(maxsize=1024)
def storing_module(types: tuple[tuple[str, str], ...], attributes: str, shared: bool, dtype: np.dtype, pages: tuple[tuple[int, ...], ...]) -> str:
    """`module` of keys and values in pages, where its function stores new ones before it reads them. `pages`: heads, rows S and width of
    k1, of k2 unless it is `shared`, and of v, whose elements are of `dtype`. Arguments behind those of `types`:

    slots         [T] int64: where token t is stored, row slots[t] % S of page slots[t] / S; below 0: nowhere
    new_keys      [T, Hk1 + Hk2, d], with `shared` [T, Hk1, d]
    new_values    [T, Hv, dv]
    """
    names = [name for name in KEYS if name != "k2" or not shared]
    type_of, rows, key_heads = dict(types), pages[0][1], sum(heads for heads, _, _ in pages[:-1])
    new = {"keys": _memref(dtype, (None, key_heads, pages[0][2]), True), "values": _memref(dtype, (None, pages[-1][0], pages[-1][2]), True)}
    copies, first = [], 0
    for name, (heads, _, width) in zip(names, pages):
        of, begin = ("values", 0) if name == "v" else ("keys", first)
        copied = _memref(dtype, (heads, width), True)
        copies += [f"%{name}_new = memref.subview %new_{of}[%token, {begin}, 0] [1, {heads}, {width}] [1, 1, 1] : {new[of]} to {copied}",
                   f"%{name}_place = memref.subview %{name}[%page, 0, %row, 0] [1, {heads}, 1, {width}] [1, 1, 1, 1] : {type_of[name]} to {copied}",
                   f"memref.copy %{name}_new, %{name}_place : {copied} to {copied}"]
        first += heads
    slots = "memref<?xi64>"
    before = "\n".join([
        "  %zero = arith.constant 0 : index", "  %one = arith.constant 1 : index", f"  %rows = arith.constant {rows} : index",
        f"  %tokens = memref.dim %slots, %zero : {slots}", "  scf.for %token = %zero to %tokens step %one {",
        f"    %number = memref.load %slots[%token] : {slots}", "    %slot = arith.index_cast %number : i64 to index",
        "    %is_stored = arith.cmpi sge, %slot, %zero : index", "    scf.if %is_stored {", "      %page = arith.divui %slot, %rows : index",
        "      %row = arith.remui %slot, %rows : index", *("      " + line for line in copies), "    }", "  }", ""])
    more = (("slots", slots), ("new_keys", new["keys"]), ("new_values", new["values"]))
    return module(types, attributes, shared, more, before)


@functools.lru_cache(maxsize=1024)
def backward_module(types: tuple[tuple[str, str], ...], attributes: str, shared: bool) -> str:
    """The function `attention_backward` of arguments with these names and types, those of destinations, `d_q1` and so on, included;
    `shared`: k1 is k2 too, which is not among them, and the destination of k1 is that of both."""
    outs = " ".join(f"{name}(%{name} : {t})" for name, t in types if name.startswith("d_") and name != "d_out")
    return _function("attention_backward", types, ("d_out", "lambda", *_OPTIONAL, *SAVED), f"outs({outs})", attributes, shared)


_OPTIONAL = tuple(operand.name for operand in OPTIONAL)


def _function(op: str, types: tuple[tuple[str, str], ...], clauses: tuple[str, ...], outs: str, attributes: str, shared: bool,
              more: tuple[tuple[str, str], ...] = (), before: str = "") -> str:
    """A function of the op's name that is one op; those of `clauses` that have types become its clauses. `more`: arguments behind those,
    which the ops of `before` use."""
    type_of = dict(types)
    arguments = ", ".join(f"%{name}: {t}" for name, t in (*types, *more))
    ins = ("q1", "k1", "q2", "k1" if shared else "k2", "v") if "q2" in type_of else ("q1", "k1", "v")
    written = [f"ins({', '.join('%' + n for n in ins)} : {', '.join(type_of[n] for n in ins)})"]
    written += [f"{n}(%{n} : {type_of[n]})" for n in clauses if n in type_of]
    return (f"func.func @{op}({arguments}) {{\n{before}  diffattn.{op} {' '.join(written)}\n"
            f"    {outs} {{{attributes}}}\n  return\n}}\n")
