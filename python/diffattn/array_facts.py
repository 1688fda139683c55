"""Facts of an array that a call needs, read cheaply: its kind of memory, type, shape, strides, and address.

    spec, address, owner = facts_of(value, "q1")

`spec` is all that code is compiled for and checked by, and can be hashed: calls whose arrays have equal specs differ in
addresses and contents alone. `owner` keeps the memory alive and is an array that `as_array` takes.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .arrays import BFLOAT16, OnDevice, as_array, device_of, device_view
from .errors import InputError

#: How the strides of a spec count, and where its array lies. A spec is (dtype, shape, strides, one of these).
IN_BYTES, IN_ELEMENTS, ON_DEVICE = range(3)


class ArrayType:
    """A spec by the names that NumPy has for its parts, but with `steps`: strides in elements."""

    __slots__ = ("_span", "dtype", "ndim", "on_device", "shape", "steps")

    def __init__(self, spec: tuple, name: str = "array"):
        self.dtype, self.shape, strides, kind = spec
        self.ndim, self.on_device, self._span = len(self.shape), kind == ON_DEVICE, None
        if kind == IN_ELEMENTS:
            self.steps = strides
        else:
            size = self.dtype.itemsize
            if any(stride % size for stride in strides):
                raise InputError(f"{name}: expected strides of whole elements, but got {strides} bytes")
            self.steps = tuple(stride // size for stride in strides)

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape

    def of_rank(self, rank: int) -> ArrayType:
        """This type with axes of size 1 and stride 0 before its own, up to `rank` axes."""
        wider, more = ArrayType.__new__(ArrayType), rank - self.ndim
        wider.dtype, wider.ndim, wider.on_device, wider._span = self.dtype, rank, self.on_device, None
        wider.shape, wider.steps = (1,) * more + tuple(self.shape), (0,) * more + tuple(self.steps)
        return wider

    def span(self) -> tuple[int, int]:
        """Lowest and highest byte of its elements, relative to its address."""
        # Calls ask for that of each array of their plan.
        if self._span is None:
            size = self.dtype.itemsize
            reaches = [(n - 1) * s * size for n, s in zip(self.shape, self.steps)]
            self._span = (0, 0) if self.is_empty else (sum(r for r in reaches if r < 0), sum(r for r in reaches if r > 0) + size)
        return self._span


def facts_of(value: Any, name: str) -> tuple[tuple, int, Any]:
    """Spec, address and owner of an array, a scalar, or anything that `as_array` takes; `name` is what errors call it."""
    read = _READERS.get(type(value))
    facts = read(value) if read else None
    return facts or _slow_facts(value, name)


def facts_for(value: Any, name: str, ordinal: int | None, stream: int | None) -> tuple[tuple, int, Any]:
    """Facts of an array for code on the device `ordinal`, None: the CPU. An array on a device is used there, on `stream`."""
    if ordinal is not None and device_of(value) is not None:
        value = device_view(value, stream, name)
    return facts_of(value, name)


def is_tensor(value: Any) -> bool:
    """Whether it is PyTorch's, which is never imported for that."""
    if type(value) in _tensor_types:
        return True
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return isinstance(tensor, type) and isinstance(value, tensor)


def _numpy_facts(array: np.ndarray) -> tuple[tuple, int, Any]:
    return (array.dtype, array.shape, array.strides, IN_BYTES), array.ctypes.data, array


def _slow_facts(value: Any, name: str) -> tuple[tuple, int, Any]:
    cls = type(value)
    if cls not in _READERS and (cls.__module__, cls.__name__) in _TORCH_CLASSES:
        _tensor_types.add(cls)
        _READERS[cls] = _tensor_reader(sys.modules["torch"])
        return facts_of(value, name)
    array = as_array(value, name)
    if isinstance(array, OnDevice):
        return (array.dtype, array.shape, array.strides, ON_DEVICE), array.address, array
    return _numpy_facts(array)


#: Classes of PyTorch whose objects hold their values as the class says. A subclass may mean something else by its memory: DLPack
#: decides.
_TORCH_CLASSES = (("torch", "Tensor"), ("torch.nn.parameter", "Parameter"))
_tensor_types: set[type] = set()
#: Readers by exact type; None is given for other values, which `as_array` reads or refuses.
_READERS: dict[type, Any] = {np.ndarray: _numpy_facts}


def _tensor_reader(torch):
    dtypes = {torch.float32: np.dtype(np.float32), torch.float16: np.dtype(np.float16), torch.bfloat16: BFLOAT16,
              torch.float64: np.dtype(np.float64), torch.int64: np.dtype(np.int64), torch.int32: np.dtype(np.int32),
              torch.bool: np.dtype(np.bool_), torch.int8: np.dtype(np.int8), torch.uint8: np.dtype(np.uint8),
              torch.int16: np.dtype(np.int16)}
    is_grad_enabled = torch.is_grad_enabled

    def read(tensor) -> tuple[tuple, int, Any] | None:
        dtype = dtypes.get(tensor.dtype)
        if dtype is None or not tensor.is_cpu or tensor.is_neg() or (tensor.requires_grad and is_grad_enabled()):
            return None
        try:
            return (dtype, tensor.shape, tensor.stride(), IN_ELEMENTS), tensor.data_ptr(), tensor
        except RuntimeError:  # without strides or memory: sparse tensors, and those that transforms of functions trace with
            return None

    return read
