"""`diffattn.attention`: one differential attention on arrays.

The arguments are named as in PyTorch's `scaled_dot_product_attention` and mean what docs/spec.md says. A call with new
types, head counts, widths or options compiles; other batches, lengths and strides of the same kind do not.
"""

from __future__ import annotations

import functools
import math
import os
import struct
import threading
import warnings
from typing import Any

import ml_dtypes
import numpy as np

from . import checks
from .arguments import ArrayLike
from .arrays import OnDevice, device_of, device_view
from .device import choose_stream, ordinal_of
from .runtime import Executable, InputError, UsageError, as_array

_MLIR = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16", np.dtype(ml_dtypes.bfloat16): "bf16",
         np.dtype(np.bool_): "i1", np.dtype(np.int64): "i64", np.dtype(np.int32): "i32"}
_FLOATS = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]

#: The largest position, and the largest scale of the op (docs/spec.md).
_HIGHEST, _MAX_SCALE = checks.MOST_INT64, 2.0**64

#: How many kinds of calls are kept compiled in this process; the one that was not used for longest makes room.
MOST_COMPILED = 256
_compiled: dict[tuple, Executable] = {}  # those used last at the end
_lock = threading.Lock()


def _forget_lock() -> None:
    """In a child of fork(): the thread that may have held it is not there."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)


def attention(q1: ArrayLike, k1: ArrayLike, q2: ArrayLike, k2: ArrayLike, v: ArrayLike, lam: ArrayLike, *, scale: float | None = None,
              is_causal: bool = False, window: tuple[int | None, int | None] | None = None, attn_mask: ArrayLike = None,
              softcap: float | None = None, lam_activation: str | None = None, norm: str | None = None, norm_weight: ArrayLike = None,
              norm_eps: float = 1e-5, norm_eps_mode: str = "inside", out_scale: float = 1.0, gate: ArrayLike = None,
              kv_len: ArrayLike = None, q_offset: ArrayLike = None, segment_ids: tuple[ArrayLike, ArrayLike] | None = None,
              integral: bool = False, target: str = "cpu", out: ArrayLike = None, stream: Any = None) -> Any:
    """(softmax(scale q1 k1^T) - lam softmax(scale q2 k2^T)) v for each head, as an array [B, Hs, Tq, dv].

    q1 [B, Hs, Tq, d], q2 [B, Hn, Tq, d], k1 [B, Hk1, Tk, d], k2 [B, Hk2, Tk, d], v [B, Hv, Tk, dv]: all float32, float16 or
    `ml_dtypes.bfloat16`, NumPy or DLPack, with any strides. A noise head serves Hs/Hn signal heads, a key or value head
    that many query heads. k2 given as the buffer and strides of k1 is read once.

    lam             a number, [Hs], [B, Tq, Hs] or [B, Tq, Hn]; with lam_activation="sigmoid" these are logits
    scale           1/sqrt(d) by default; at most 2^64 in magnitude
    is_causal       query i sees key j if j <= i + q_offset. The last query sees the last key: bottom-right, where
                    PyTorch's is_causal is top-left if Tq differs from Tk
    window          (left, right): also -right <= i + q_offset - j <= left; None or -1: no limit on that side
    attn_mask       boolean (True: visible) or additive, broadcast to [B, Hn, Tq, Tk]; one for both maps
    softcap         scores become softcap tanh(scores / softcap), before mask and bias
    norm            "rms": each head's output is divided by its root mean square, then times norm_weight [dv] if given;
                    norm_eps is added inside or outside of the root
    out_scale       multiplies the output (1 - lambda_init in most models)
    gate            logits [B, Hs, Tq, dv]: the output times their sigmoid
    kv_len          [B] or a number: keys that exist; q_offset [B] or a number: the first query's position, by default
                    (kv_len or Tk) - Tq; kv_len may exceed Tk, and positions may be negative
    segment_ids     (q_segments [B, Tq], kv_segments [B, Tk]), both int32 or both int64: a query sees only keys of its own
                    number. Positions do not begin anew with a segment
    integral        DINT (arXiv 2501.17486): each row also takes lam times the mean over all queries of softmax(scale q1 k1^T) v.
                    Without is_causal, window and segment_ids. No kernel computes it: slow, with a warning that says so
    target          "cpu", "cpu:<isa>", "cuda[:<chip>][@<n>]": a GPU, or "cuda-sim:<chip>": GPU kernels on a simulator, slow and
                    with every access checked
    out             where the result is written, and what is returned: [B, Hs, Tq, dv] with any strides, sharing no element with
                    another argument. Of q1's type, or float32: then the result of 16-bit operands is not rounded
    stream          with arrays on a device: the CUDA stream to launch on, a number or an object with `cuda_stream`; by default
                    PyTorch's current one for its tensors, the device's default stream for others

    With target cuda, DLPack arrays on the GPU are used where they lie. If q1 is one, the result lies there too: in `out`, or in
    a new tensor if q1 is PyTorch's. kv_len and q_offset are checked before the call, so they come from memory of the host.
    """
    given = dict(q1=q1, k1=k1, q2=q2, k2=k2, v=v, lam=lam, attn_mask=attn_mask, norm_weight=norm_weight, gate=gate, out=out)
    given.update(_segments(segment_ids))
    ordinal = ordinal_of(target)
    native = choose_stream({**given, "kv_len": kv_len, "q_offset": q_offset}, stream, ordinal)
    new_result = getattr(q1, "new_empty", None)
    # Before anything is read or converted.
    options = _options(scale, is_causal, window, softcap, lam_activation, norm, norm_eps, norm_eps_mode, out_scale, integral)
    if integral and segment_ids is not None:
        raise UsageError("integral: expected no segment_ids with it, because its mean is over all queries")
    if ordinal is not None:
        given = {name: x if device_of(x) is None else device_view(x, native, name) for name, x in given.items()}
    q1, k1, q2, k2, v, lam, attn_mask, norm_weight, gate, result, *segments = given.values()
    names = ("q1", "k1", "q2", "k2", "v")
    arrays = dict(zip(names, (_array(name, x) for name, x in zip(names, (q1, k1, q2, k2, v)))))
    sizes = _check_shapes(arrays)
    dtype = arrays["q1"].dtype
    arrays["lambda"] = _lambda(lam, sizes)
    if attn_mask is not None:
        arrays["bias"] = _mask(attn_mask, dtype, sizes)
    if norm_weight is not None:
        if norm is None:
            raise UsageError("norm_weight: expected norm='rms' with it")
        arrays["norm_weight"] = _typed("norm_weight", norm_weight, (dtype, np.dtype(np.float32)), (sizes["dv"],))
    if gate is not None:
        arrays["gate"] = _typed("gate", gate, (dtype,), (sizes["B"], sizes["Hs"], sizes["Tq"], sizes["dv"]))
    if kv_len is not None:
        arrays["kv_len"] = _positions("kv_len", kv_len, sizes, 0)
    if q_offset is not None:
        arrays["q_offset"] = _positions("q_offset", q_offset, sizes, -_HIGHEST - 1)
    for name, ids, length in zip(("q_segments", "kv_segments"), segments, ("Tq", "Tk")):
        arrays[name] = _typed(f"segment_ids: {name}", ids, (np.dtype(np.int64), np.dtype(np.int32)), (sizes["B"], sizes[length]))
    if segments and arrays["q_segments"].dtype != arrays["kv_segments"].dtype:
        raise InputError(f"segment_ids: kv_segments: expected {arrays['q_segments'].dtype} as q_segments, but got "
                         f"{arrays['kv_segments'].dtype}")
    attributes = _attributes(sizes, options)
    shape = (sizes["B"], sizes["Hs"], sizes["Tq"], sizes["dv"])
    if out is None and isinstance(arrays["q1"], OnDevice):
        if new_result is None:
            raise UsageError("out: expected an array on the device for the result, because q1 lies there and is not PyTorch's")
        out = new_result(shape)
        result = device_view(out, native, "out")
    elif out is None:
        out = result = np.empty(shape, dtype)
    else:
        if not isinstance(result, (np.ndarray, OnDevice)) and not hasattr(result, "__dlpack__"):
            raise checks.wrong("out", "an array to write into", out)
        _check_out(result, dtype, shape, arrays)
    arrays["init"] = as_array(result, "out")
    if arrays["init"].size == 0:
        _check_target(target)
        return out
    shared = _same_buffer(arrays["k1"], arrays["k2"])
    if shared:
        del arrays["k2"]
    types = {name: _memref(name, array) for name, array in arrays.items()}
    key = (tuple(types.items()), attributes, target)
    with _lock:
        executable = _compiled.pop(key, None)
        if executable is None:
            executable = Executable(_module(types, attributes, shared), target=target, name="attention")
            for diagnostic in executable.diagnostics:
                if diagnostic.kind == "missed":
                    warnings.warn(f"{diagnostic.message} ({diagnostic.category})", RuntimeWarning, stacklevel=2)
        _compiled[key] = executable
        if len(_compiled) > MOST_COMPILED:
            del _compiled[next(iter(_compiled))]
    executable.call("attention", *arrays.values(), stream=native)
    return out


@functools.lru_cache(maxsize=None)
def _check_target(target) -> None:
    """Refuses for an empty result what any other result would be refused for."""
    Executable("module {}", target=target, name="attention")


def _check_out(out, dtype, shape, arrays) -> None:
    array = _typed("out", out, (dtype, np.dtype(np.float32)), shape)
    if array.size == 0:
        return
    # From the closest elements to the farthest, each axis must step over all that the ones before it reach.
    reach = array.itemsize
    for step, size in sorted((abs(s), n) for s, n in zip(array.strides, shape) if n > 1):
        if step < reach:
            raise InputError(f"out: expected elements that share no memory, but got shape {list(shape)} with strides "
                             f"{list(array.strides)} bytes")
        reach += (size - 1) * step
    if isinstance(array, OnDevice):
        return
    if not array.flags.writeable:
        raise InputError("out: expected a writable array")
    for name, other in arrays.items():
        if not isinstance(other, OnDevice) and _share(array, other):
            raise InputError(f"out: expected an array that shares no element with {name}")


def _share(a: np.ndarray, b: np.ndarray) -> bool:
    try:
        return np.shares_memory(a, b, max_work=1_000_000)
    except RuntimeError:  # too hard to tell within that work
        return True


def _array(name, value) -> np.ndarray:
    array = as_array(value, name)
    if array.ndim != 4:
        raise InputError(f"{name}: expected rank 4, [batch, heads, length, width], but got shape {list(array.shape)}")
    if array.dtype not in _FLOATS:
        raise InputError(f"{name}: expected float32, float16 or bfloat16, but got {array.dtype}")
    return array


def _check_shapes(arrays) -> dict[str, int]:
    q1, k1, q2, k2, v = arrays.values()
    sizes = {"B": q1.shape[0], "Hs": q1.shape[1], "Tq": q1.shape[2], "d": q1.shape[3], "Hn": q2.shape[1],
             "Hk1": k1.shape[1], "Hk2": k2.shape[1], "Hv": v.shape[1], "Tk": k1.shape[2], "dv": v.shape[3]}
    wanted = {"k1": ("B", "Hk1", "Tk", "d"), "q2": ("B", "Hn", "Tq", "d"), "k2": ("B", "Hk2", "Tk", "d"),
              "v": ("B", "Hv", "Tk", "dv")}
    for name, axes in wanted.items():
        if arrays[name].dtype != q1.dtype:
            raise InputError(f"{name}: expected {q1.dtype} as q1, but got {arrays[name].dtype}")
        expected = tuple(sizes[axis] for axis in axes)
        if arrays[name].shape != expected:
            raise InputError(f"{name}: expected shape [{', '.join(axes)}] = {list(expected)}, but got "
                             f"{list(arrays[name].shape)}")
    for many, of, few, name in (("Hs", "q1", "Hn", "q2"), ("Hs", "q1", "Hk1", "k1"), ("Hn", "q2", "Hk2", "k2"),
                                ("Hs", "q1", "Hv", "v")):
        if sizes[few] == 0 or sizes[many] % sizes[few]:
            raise InputError(f"{name}: expected {many} to be a multiple of {few}, a divisor of the {sizes[many]} heads of {of}, "
                             f"but got {sizes[few]}")
    if sizes["d"] == 0:
        raise InputError("q1: expected a width d of at least 1, but got 0")
    return sizes


def _typed(name, value, dtypes, shape) -> np.ndarray:
    array = as_array(value, name)
    if array.dtype not in dtypes:
        raise InputError(f"{name}: expected {' or '.join(str(d) for d in dict.fromkeys(dtypes))}, but got {array.dtype}")
    if array.shape != shape:
        raise InputError(f"{name}: expected shape {list(shape)}, but got {list(array.shape)}")
    return array


def _lambda(lam, sizes) -> np.ndarray:
    if isinstance(lam, (bool, int, float, np.generic)):
        _f32("lam", lam)
        return np.array(checks.number("lam", lam), np.float32)
    array = as_array(lam, "lam")
    if array.dtype not in [*_FLOATS, np.dtype(np.float64)] and not (array.ndim == 0 and array.dtype.kind in "iu"):
        raise InputError(f"lam: expected floats, but got {array.dtype}")
    forms = [(), (sizes["Hs"],), (sizes["B"], sizes["Tq"], sizes["Hs"]), (sizes["B"], sizes["Tq"], sizes["Hn"])]
    if array.shape not in forms:
        raise InputError(f"lam: expected a number or shape {' or '.join(str(list(f)) for f in forms[1:])}, but got "
                         f"{list(array.shape)}")
    if isinstance(array, OnDevice):
        return _typed("lam", array, (np.dtype(np.float32),), array.shape)
    with np.errstate(over="ignore"):
        rounded = array.astype(np.float32, copy=False)
    if array.dtype == np.float64 and not np.array_equal(np.isfinite(rounded), np.isfinite(array)):
        raise InputError("lam: expected numbers that float32 holds, but got larger ones")
    return rounded


def _mask(mask, dtype, sizes) -> np.ndarray:
    array = as_array(mask, "attn_mask")
    if array.dtype not in (np.dtype(np.bool_), np.dtype(np.float32), dtype):
        raise InputError(f"attn_mask: expected bool, float32 or {dtype}, but got {array.dtype}")
    full = (sizes["B"], sizes["Hn"], sizes["Tq"], sizes["Tk"])
    if array.ndim < 2 or array.ndim > 4:
        raise InputError(f"attn_mask: expected rank 2 to 4, but got shape {list(array.shape)}")
    array = _leading_axes(array)
    if array.shape[3] != full[3] or any(n not in (1, m) for n, m in zip(array.shape, full)):
        raise InputError(f"attn_mask: expected a shape that broadcasts to [B, Hn, Tq, Tk] = {list(full)} with all keys, but "
                         f"got {list(array.shape)}")
    return array


def _leading_axes(array):
    """The array with axes of 1 before its own, as one of rank 4."""
    more = 4 - array.ndim
    if isinstance(array, OnDevice):
        return OnDevice(array.address, (1,) * more + array.shape, array.dtype, (0,) * more + array.strides, array)
    return array.reshape((1,) * more + array.shape)


def _segments(segment_ids) -> dict:
    if segment_ids is None:
        return {}
    if not isinstance(segment_ids, (tuple, list)) or len(segment_ids) != 2 or any(ids is None for ids in segment_ids):
        raise checks.wrong("segment_ids", "(q_segments, kv_segments)", segment_ids)
    return dict(zip(("q_segments", "kv_segments"), segment_ids))


def _positions(name, value, sizes, low) -> np.ndarray:
    if device_of(value) is not None:
        raise InputError(f"{name}: expected a number or an array in memory of the host, because it is checked before the call, "
                         "but got an array on a device")
    array = as_array(value, name)
    if array.dtype.kind not in "iu":
        raise InputError(f"{name}: expected integers, but got {array.dtype}")
    if array.shape not in ((), (sizes["B"],)):
        raise InputError(f"{name}: expected a number or shape [{sizes['B']}], but got {list(array.shape)}")
    # Before they become int64, which holds less than uint64 does.
    if array.size and (int(array.min()) < low or int(array.max()) > _HIGHEST):
        raise InputError(f"{name}: expected {low} to {_HIGHEST}, but got {array.min()} to {array.max()}")
    return np.ascontiguousarray(np.broadcast_to(array.astype(np.int64), (sizes["B"],)))


def _f32(name, value, expected="a finite number", holds=lambda _: True) -> str:
    """A float as MLIR's exact bits."""
    value = checks.number(name, value, expected, holds)
    try:
        bits = struct.pack("<f", value)
    except OverflowError:
        bits = b""
    if not bits or (value and not struct.unpack("<f", bits)[0]):
        raise checks.wrong(name, "a number that float32 holds", value)
    return f"0x{struct.unpack('<I', bits)[0]:08X} : f32"


def _scale(value) -> str:
    return _f32("scale", value, "a finite number of at most 2^64 in magnitude", lambda x: abs(x) <= _MAX_SCALE)


def _options(scale, is_causal, window, softcap, lam_activation, norm, norm_eps, norm_eps_mode, out_scale,
             integral=False) -> list[str | None]:
    """Attributes of the op, the scale first: None stands for the default."""
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
        result.append(f"softcap = {_f32('softcap', softcap, 'a positive number', lambda x: x > 0)}")
    if checks.choice("lam_activation", lam_activation, (None, "sigmoid")):
        result.append("lambda_act = #diffattn.activation<sigmoid>")
    checks.choice("norm_eps_mode", norm_eps_mode, ("inside", "outside"))
    epsilon = _f32("norm_eps", norm_eps, "a number from 0", lambda x: x >= 0)
    if checks.choice("norm", norm, (None, "rms")):
        result += ["norm = #diffattn.norm<rms>", f"norm_eps = {epsilon}", f"norm_eps_mode = #diffattn.eps_mode<{norm_eps_mode}>"]
    result.append(f"out_scale = {_f32('out_scale', out_scale)}")
    return result


def _attributes(sizes, options) -> str:
    scale, *others = options
    return ", ".join([scale or f"scale = {_scale(1.0 / math.sqrt(sizes['d']))}", *others])


def _same_buffer(a, b) -> bool:
    return a.shape == b.shape and a.strides == b.strides and _address(a) == _address(b)


def _address(array) -> int:
    return array.address if isinstance(array, OnDevice) else array.ctypes.data


def _memref(name, array: np.ndarray) -> str:
    """The type to compile for: batch, lengths and strides stay open, head counts and widths do not."""
    element = _MLIR[array.dtype]
    if array.ndim == 0:
        return f"memref<{element}>"
    if name in ("kv_len", "q_offset"):
        return f"memref<?x{element}>"
    if name == "bias":  # an axis of 1 is one mask for all
        open_axes = {axis for axis in (0, 2, 3) if axis == 3 or array.shape[axis] != 1}
    elif name == "lambda":
        open_axes = {0, 1} if array.ndim == 3 else set()
    else:
        open_axes = {4: {0, 2}, 2: {0, 1}}.get(array.ndim, set())
    sizes = "".join(f"{'?' if axis in open_axes else size}x" for axis, size in enumerate(array.shape))
    # Vectors are loaded at once where the last axis is dense.
    last = "1" if array.strides[-1] == array.itemsize or array.shape[-1] == 1 else "?"
    strides = ", ".join(["?"] * (array.ndim - 1) + [last])
    return f"memref<{sizes}{element}, strided<[{strides}], offset: ?>>"


def _module(types, attributes, shared) -> str:
    arguments = ", ".join(f"%{name}: {t}" for name, t in types.items())
    keys2 = "k1" if shared else "k2"
    ins = ("q1", "k1", "q2", keys2, "v")
    clauses = [f"ins({', '.join('%' + n for n in ins)} : {', '.join(types[n] for n in ins)})",
               f"lambda(%lambda : {types['lambda']})"]
    clauses += [f"{n}(%{n} : {types[n]})" for n in ("bias", "norm_weight", "gate", "kv_len", "q_offset", "q_segments", "kv_segments")
                if n in types]
    return (f"func.func @attention({arguments}) {{\n  diffattn.attention {' '.join(clauses)}\n"
            f"    outs(%init : {types['init']}) {{{attributes}}}\n  return\n}}\n")
