"""Arrays as compiled code takes them, and the types that ctypes needs for it.

bfloat16 is `ml_dtypes.bfloat16` where that package is installed, otherwise NumPy's two-byte void, as in .npy files.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from . import checks
from .errors import InputError, UsageError

try:
    import ml_dtypes

    BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    BFLOAT16 = np.dtype("V2")

MOST_RANK = 16
#: Added to the type's code of an array whose address is the device's.
ON_DEVICE = 256

#: In the order of diffattn_dtype.
DTYPES = [np.dtype(t) for t in (np.float32, np.float16, BFLOAT16, np.float64, np.int64, np.int32, np.bool_,
                                np.int8, np.uint8, np.int16)]
CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_KINDS = ("tensor", "memref", "scalar", "unsupported")


class Array(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64))]


class Result(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("argument", ctypes.c_int32), ("dtype", ctypes.c_int32),
                ("rank", ctypes.c_int32), ("shape", ctypes.c_int64 * MOST_RANK)]


class Type(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("in_place", ctypes.c_int32), ("shape", ctypes.c_int64 * MOST_RANK)]


class OnDevice:
    """An array on a device: `address`, `shape`, `dtype` and `strides` (in bytes) as NumPy has them. The host cannot read it."""

    def __init__(self, address: int, shape: Iterable[int], dtype: Any, strides: Iterable[int], owner: object = None) -> None:
        self.address, self.shape, self.dtype, self.strides = address, tuple(shape), np.dtype(dtype), tuple(strides)
        self._owner = owner

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise InputError("expected an array in memory of the host, but got one on a device; copy it to the host first")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.shape)}, {self.dtype})"


#: kDLCUDA and kDLCUDAManaged.
_DL_DEVICES = (2, 13)


def device_of(value) -> int | None:
    """The number of the CUDA device that a DLPack array lies on; None: in memory of the host, or no such array."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return None
    try:
        kind, number = value.__dlpack_device__()
    except Exception:  # what cannot be exported is refused when it is read, by its name
        return None
    return int(number) if int(kind) in _DL_DEVICES else None


def device_view(value, stream: int, name: str = "array") -> OnDevice:
    """A DLPack array on a device, without a copy. What the array's own stream was given is done before what `stream`, a CUstream,
    is given from now on: the array's library sees to it. `name` is what errors call the array."""
    capsule, tensor, dtype = _open_dlpack(value, name, stream=stream)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    steps = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else dense_steps(shape)
    return OnDevice((tensor.data or 0) + tensor.byte_offset, shape, dtype, [s * dtype.itemsize for s in steps],
                    (capsule, value))


def as_array(value, name: str = "array") -> np.ndarray | OnDevice:
    """`value` as a NumPy array without a copy: an array, a scalar, or anything with `__dlpack__` in memory of the host. An
    `OnDevice` is left as it is. `name` is what errors call the array."""
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f"{name}: expected an array without a mask, but got a masked one; fill it first, with filled(...)")
    if isinstance(value, (np.ndarray, OnDevice)):
        return value
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value, name)
    try:
        return np.asarray(value)
    except Exception as error:  # an object of the caller's may raise anything
        raise InputError(f"{name}: expected an array, but got {checks.shown(value)}: {error}") from error


def number_as(value, dtype: np.dtype, name: str) -> np.ndarray:
    """A number without a type of its own as a 0-d array: exactly for integers and truth values, rounded for floats."""
    try:
        if dtype.kind == "b":
            return np.array(checks.flag(name, value))
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return np.array(checks.integer(name, value, int(limits.min), int(limits.max)), dtype)
        if dtype == np.dtype("V2"):
            raise InputError(f"{name}: expected an array of bfloat16, because the package ml_dtypes is not there to convert a number")
        special = isinstance(value, (float, np.floating)) and not math.isfinite(value)
        number = float(value) if special else checks.number(name, value, "a number")
    except UsageError as error:
        raise InputError(str(error)) from None
    with np.errstate(over="ignore"):
        array = np.array(number).astype(dtype)
    if not special and not math.isfinite(float(array)):
        raise InputError(f"{name}: expected a number that {dtype} holds, but got {checks.shown(value)}")
    return array


def _exportable(value, name: str):
    """A tensor of PyTorch whose memory is what it means; other arrays as they are."""
    # PyTorch exports the memory of such views without what is still to be done to it.
    for bit, resolve in (("is_neg", "resolve_neg"), ("is_conj", "resolve_conj")):
        has_bit = getattr(value, bit, None)
        if callable(has_bit) and has_bit():
            raise InputError(f"{name}: expected a tensor whose memory holds its values, but got a lazy view; call {resolve}() "
                             "first")
    if not getattr(value, "requires_grad", False):
        return value
    torch = sys.modules.get("torch")
    if torch is None or torch.is_grad_enabled():
        raise InputError(f"{name}: expected a tensor without gradient, because no gradient flows back through compiled code; call "
                         "under torch.no_grad(), or give tensor.detach()")
    return value.detach()


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_DL_DTYPES = {(2, 32): np.float32, (2, 16): np.float16, (4, 16): BFLOAT16, (2, 64): np.float64,
              (0, 64): np.int64, (0, 32): np.int32, (6, 8): np.bool_, (0, 8): np.int8, (1, 8): np.uint8, (0, 16): np.int16,
              (1, 16): np.uint16, (1, 32): np.uint32, (1, 64): np.uint64}


def _refuse_without_values(value, name: str) -> None:
    """Arrays of JAX whose memory is gone, and what it traces functions with."""
    is_deleted = getattr(value, "is_deleted", None)
    tracer = getattr(getattr(sys.modules.get("jax"), "core", None), "Tracer", None)
    if isinstance(tracer, type) and isinstance(value, tracer):
        raise InputError(f"{name}: expected an array that has values, but got one that JAX traces a function with; compiled code is called "
                         "outside of jax.jit, jax.grad and jax.vmap")
    if callable(is_deleted) and is_deleted():
        raise InputError(f"{name}: expected an array that has its memory, but got one that was deleted, as JAX deletes what is donated to a call")


def _from_dlpack(value, name: str) -> np.ndarray:
    _refuse_without_values(value, name)
    # numpy.from_dlpack refuses bfloat16, so the capsule is read here. It stays alive as long as the array does.
    try:
        on_host = not hasattr(value, "__dlpack_device__") or int(value.__dlpack_device__()[0]) == 1
    except Exception as error:
        raise _not_exported(name, error) from error
    if not on_host:
        raise InputError(f"{name}: expected an array in host memory, but got one on a device; copy it to the CPU first")
    capsule, tensor, dtype = _open_dlpack(value, name)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if 0 in shape:
        return np.empty(shape, dtype)
    steps = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else dense_steps(shape)
    # From the lowest to the highest byte that the view reaches.
    low = sum(min(0, (n - 1) * s) for n, s in zip(shape, steps))
    high = sum(max(0, (n - 1) * s) for n, s in zip(shape, steps)) + 1
    address = tensor.data + tensor.byte_offset + low * dtype.itemsize
    memory = (ctypes.c_char * ((high - low) * dtype.itemsize)).from_address(address)
    memory.owner = (capsule, value)
    return np.ndarray(shape, dtype, memory, -low * dtype.itemsize, tuple(s * dtype.itemsize for s in steps))


def _not_exported(name: str, error: Exception) -> InputError:
    """Each library has its own classes for what it cannot export."""
    return InputError(f"{name}: expected an array that can be exported by DLPack, but got: {error}")


def _open_dlpack(value, name: str, **options) -> tuple[object, _DLTensor, np.dtype]:
    """The capsule of an array, which must be kept as long as its memory is used, and what it holds."""
    value = _exportable(value, name)
    try:
        capsule = value.__dlpack__(**options)
    except Exception as error:
        raise _not_exported(name, error) from error
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor"))
    dtype = _DL_DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise InputError(f"{name}: expected elements of {names()}, but got DLPack type code {tensor.code} with {tensor.bits} bits")
    return capsule, tensor, np.dtype(dtype)


def aligned_zeros(shape: Iterable[int], dtype) -> np.ndarray:
    """Zeros that begin with a line of the CPU's caches, where NumPy's large arrays begin 16 bytes behind one: rows of whole lines, as those
    of one head, then touch no line more than they fill."""
    shape, dtype, line = tuple(shape), np.dtype(dtype), 64
    memory = np.zeros(math.prod(shape) * dtype.itemsize + line, np.uint8)
    begin = -memory.ctypes.data % line
    return np.ndarray(shape, dtype, memory, begin)


def dense_steps(shape) -> tuple[int, ...]:
    """Row-major strides in elements."""
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return tuple(reversed(steps))


def names() -> str:
    return ", ".join(str(d) for d in DTYPES)


@functools.lru_cache(maxsize=64)
def array_type(element: type, count: int) -> type:
    """`element * count`, kept: ctypes makes a type anew where nothing has it."""
    return element * count


class _Owner:
    """Gives memory back when nobody uses it any more: weakref.finalize costs a small call a tenth of its time."""

    __slots__ = ("_data", "_free")

    def __init__(self, data: int, free) -> None:
        # Made now: names of modules may be gone when the interpreter ends.
        self._data, self._free = ctypes.c_void_p(data), free

    def __del__(self) -> None:
        self._free(self._data)


def owned(result: Result, free) -> np.ndarray:
    """A result's memory as an array that gives it to `free` in the end."""
    dtype = DTYPES[result.dtype]
    shape = tuple(result.shape[: result.rank])
    count = math.prod(shape)
    memory = array_type(ctypes.c_char, max(count * dtype.itemsize, 1)).from_address(result.data)
    memory.owner = _Owner(result.data, free)
    return np.frombuffer(memory, dtype, count=count).reshape(shape)


class ValueType:
    """The type of an argument or result: `dtype` (NumPy), `shape` (None: any size), `kind`, `in_place`."""

    def __init__(self, raw: Type) -> None:
        self.kind = _KINDS[raw.kind]
        self.dtype = DTYPES[raw.dtype]
        self.shape: tuple[int | None, ...] = tuple(None if n < 0 else n for n in raw.shape[: raw.rank])
        self.in_place = bool(raw.in_place)

    def __repr__(self) -> str:
        sizes = "".join(f"{'?' if n is None else n}x" for n in self.shape)
        return f"{self.kind}<{sizes}{self.dtype}>"
