"""Arrays that lie on the device of an executable and are used there by its calls.

    cache = DeviceArray.zeros(executable, (2, 1, 64, 4, 32), np.float32)
    logits, cache = executable.call("decode", token, position, cache)

A call neither copies them to the device nor back. One that a function updates is updated in place.
"""

from __future__ import annotations

import ctypes
import math
import weakref

import numpy as np

from .arrays import CODES, dense_steps, names
from .errors import InputError


class Traffic(ctypes.Structure):
    """What an executable asked of its device since it was loaded."""

    _fields_ = [(name, ctypes.c_int64) for name in ("allocations", "bytes_in", "bytes_out", "bytes_within", "launches")]


class DeviceArray:
    """A dense row-major array on the device of `executable`: `shape`, `dtype`, `address`. Its contents are undefined until
    something is written there."""

    def __init__(self, executable, shape, dtype):
        self.executable, self.shape, self.dtype = executable, tuple(int(n) for n in shape), np.dtype(dtype)
        if self.dtype not in CODES:
            raise InputError(f"expected elements of {names()}, but got {self.dtype}")
        if any(n < 0 for n in self.shape):
            raise InputError(f"expected sizes of at least 0, but got {list(self.shape)}")
        address = ctypes.c_uint64()
        self._do("allocate", self.nbytes, ctypes.byref(address))
        self.address = address.value
        # It holds the executable, whose device must not go before its memory.
        self._finalizer = weakref.finalize(self, _release, executable, self.address)

    @classmethod
    def zeros(cls, executable, shape, dtype) -> DeviceArray:
        array = cls(executable, shape, dtype)
        array._do("fill", array.address, 0, array.nbytes)
        return array

    @classmethod
    def from_host(cls, executable, array) -> DeviceArray:
        """A copy of an array in memory of the host."""
        array = np.asarray(array)
        copy = cls(executable, array.shape, array.dtype)
        copy.write(array)
        return copy

    def write(self, array) -> None:
        """Copies an array of the same shape and type from memory of the host."""
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        if array.shape != self.shape or array.dtype != self.dtype:
            raise InputError(f"expected {list(self.shape)} of {self.dtype}, but got {list(array.shape)} of {array.dtype}")
        self._do("write", self.address, array.ctypes.data, self.nbytes)

    def to_host(self) -> np.ndarray:
        array = np.empty(self.shape, self.dtype)
        self._do("read", array.ctypes.data, self.address, self.nbytes)
        return array

    def grown(self, axis: int, size: int) -> DeviceArray:
        """A larger array on the device that has this one's elements first along `axis`, and zeros after them."""
        if size < self.shape[axis]:
            raise InputError(f"expected axis {axis} to grow from {self.shape[axis]}, but got {size}")
        larger = DeviceArray.zeros(self.executable, (*self.shape[:axis], size, *self.shape[axis + 1:]), self.dtype)
        row = math.prod(self.shape[axis + 1:]) * self.itemsize
        self._do("copy", larger.address, size * row, self.address, self.shape[axis] * row, self.shape[axis] * row,
                 math.prod(self.shape[:axis]))
        return larger

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

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes."""
        return tuple(step * self.itemsize for step in dense_steps(self.shape))

    def __array__(self, *_, **__):
        raise InputError("expected an array in memory of the host, but got one on a device; copy it by to_host()")

    def __repr__(self) -> str:
        return f"DeviceArray({list(self.shape)}, {self.dtype})"

    def _do(self, what, *arguments) -> None:
        self.executable.on_device(what, *arguments)


def _release(executable, address) -> None:
    # Without the lock of calls: the collector may come here in the middle of one, and freeing waits for the device itself.
    executable._lib.memory_free(executable._handle, address)
