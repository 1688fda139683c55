"""Arrays that lie on the device of an executable and are used there by its calls.

    cache = DeviceArray.zeros(executable, (2, 1, 64, 4, 32), np.float32)
    logits, cache = executable.call("decode", token, position, cache)

A call neither copies them to the device nor back. One that a function updates is updated in place.
"""

from __future__ import annotations

import ctypes
import math
import sys
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import checks
from .arguments import ArrayLike
from .arrays import CODES, OnDevice, as_array, dense_steps, device_of, names
from .errors import InputError, UsageError

if TYPE_CHECKING:
    from .calls import CompiledCode


class Traffic(ctypes.Structure):
    """Counts of what an executable asked of its device since it was loaded. A graph counts as one launch."""

    allocations: int
    bytes_in: int
    bytes_out: int
    bytes_within: int
    launches: int

    _fields_ = [(name, ctypes.c_int64) for name in ("allocations", "bytes_in", "bytes_out", "bytes_within", "launches")]


def element_type(dtype) -> np.dtype:
    """A type that elements of arrays may have."""
    try:
        known = np.dtype(dtype)
    except TypeError:
        known = None
    if dtype is None or known not in CODES:
        raise InputError(f"dtype: expected elements of {names()}, but got {checks.shown(dtype) if known is None else known}")
    return known


class DeviceArray(OnDevice):
    """A dense row-major array on the device of `executable`: `shape`, `dtype`, `address`. Its contents are undefined until
    something is written there."""

    def __init__(self, executable: CompiledCode, shape: Iterable[int], dtype: Any) -> None:
        shape, dtype = checks.sizes("shape", shape), element_type(dtype)
        super().__init__(0, shape, dtype, [step * dtype.itemsize for step in dense_steps(shape)])
        self.executable = executable
        if self.nbytes > checks.MOST_INT64:
            raise InputError(f"shape: expected sizes that memory can hold, but got {list(self.shape)}")
        address = ctypes.c_uint64()
        self._do("allocate", self.nbytes, ctypes.byref(address))
        self.address = address.value
        # It holds the executable, whose device must not go before its memory.
        self._finalizer = weakref.finalize(self, _release, executable, self.address)

    @classmethod
    def zeros(cls, executable: CompiledCode, shape: Iterable[int], dtype: Any) -> DeviceArray:
        array = cls(executable, shape, dtype)
        array._do("fill", array.address, 0, array.nbytes)
        return array

    @classmethod
    def from_host(cls, executable: CompiledCode, array: ArrayLike) -> DeviceArray:
        """A copy of an array in memory of the host."""
        array = as_array(array)
        copy = cls(executable, array.shape, array.dtype)
        copy.write(array)
        return copy

    def write(self, array: ArrayLike) -> None:
        """Copies an array of the same shape and type from memory of the host."""
        array = as_array(array)
        if isinstance(array, OnDevice):
            raise InputError("array: expected one in memory of the host, but got one on a device")
        array = np.ascontiguousarray(array).reshape(array.shape)
        if array.shape != self.shape or array.dtype != self.dtype:
            raise InputError(f"array: expected {list(self.shape)} of {self.dtype}, but got {list(array.shape)} of {array.dtype}")
        self._do("write", self.address, array.ctypes.data, self.nbytes)

    def to_host(self) -> np.ndarray:
        array = np.empty(self.shape, self.dtype)
        self._do("read", array.ctypes.data, self.address, self.nbytes)
        return array

    def grown(self, axis: int, size: int) -> DeviceArray:
        """A larger array on the device that has this one's elements first along `axis`, and zeros after them."""
        axis = checks.integer("axis", axis, 0, max(self.ndim - 1, 0))
        size = checks.integer("size", size)
        if size < self.shape[axis]:
            raise InputError(f"size: expected axis {axis} to grow from {self.shape[axis]}, but got {size}")
        larger = DeviceArray.zeros(self.executable, (*self.shape[:axis], size, *self.shape[axis + 1:]), self.dtype)
        row = math.prod(self.shape[axis + 1:]) * self.itemsize
        self._do("copy", larger.address, size * row, self.address, self.shape[axis] * row, self.shape[axis] * row,
                 math.prod(self.shape[:axis]))
        return larger

    def _do(self, what, *arguments) -> None:
        self.executable.on_device(what, *arguments)


#: CU_STREAM_LEGACY: the device's default stream, by a name that DLPack takes too.
DEFAULT_STREAM = 1


def choose_stream(values: dict, stream, ordinal: int | None) -> int | None:
    """`values` are arrays by their names in messages. The CUstream that a call on `values` is launched on, as a number: `stream` (a number, or an object with `cuda_stream`),
    else PyTorch's current one if a tensor of its is among them, else the device's default stream; None, the executable's own, if
    none of them is a DLPack array on a device. `ordinal` is the executable's device, None for the CPU."""
    if ordinal is None:
        if stream is not None:
            raise UsageError("stream: expected none with code for the CPU")
        return None  # an array on a device gets its error with its name
    foreign = {name: (value, number) for name, value in values.items() if (number := device_of(value)) is not None}
    for name, (_, number) in foreign.items():
        if number != ordinal:
            raise InputError(f"{name}: expected an array on device {ordinal}, for which the code was loaded, but got one on device "
                             f"{number}")
    if stream is not None:
        number = getattr(stream, "cuda_stream", stream)
        if type(number) is not int or not 0 <= number < 1 << 64:
            raise checks.wrong("stream", "a CUstream as a number, or an object with cuda_stream", stream)
        return number or DEFAULT_STREAM
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(value, torch.Tensor) for value, _ in foreign.values()):
        return torch.cuda.current_stream(ordinal).cuda_stream or DEFAULT_STREAM
    return DEFAULT_STREAM if foreign else None


def ordinal_of(target: str) -> int | None:
    """The number of the device that a target names; None for the CPU."""
    if not checks.text("target", target).startswith("cuda"):
        return None
    number = target.partition("@")[2] or "0"
    if not (number.isascii() and number.isdigit() and int(number) <= checks.MOST_INT32):
        raise UsageError(f"target: expected the number of a GPU after '@', but got {checks.shown(target)}")
    return int(number)


def name_arguments(entry: str, arrays) -> dict:
    """Arrays under the names that messages call them by; the compiled libraries use the same."""
    return {f"argument {i} of '{entry}'": array for i, array in enumerate(arrays)}


def _release(executable, address) -> None:
    # Without the lock of calls: the collector may come here in the middle of one, and freeing waits for the device itself.
    executable._lib.memory_free(executable._handle, address)
