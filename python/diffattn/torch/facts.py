"""What every call asks of tensors, of which weights may be hundreds: read by compiled code, which takes less time than Python's."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence

import torch

from ..arrays import Array
from ..errors import LibraryError
from ..library import library_folder


class _GetSet(ctypes.Structure):
    """CPython's PyGetSetDef."""

    _fields_ = [("name", ctypes.c_char_p), ("get", ctypes.c_void_p), ("set", ctypes.c_void_p), ("doc", ctypes.c_char_p),
                ("closure", ctypes.c_void_p)]


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = [("name", ctypes.c_char_p), ("get", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


class _Descriptor(ctypes.Structure):
    """CPython's PyGetSetDescrObject and PyMethodDescrObject."""

    _fields_ = [("head", ctypes.c_void_p * 2), ("type", ctypes.c_void_p), ("name", ctypes.c_void_p), ("qualified", ctypes.c_void_p),
                ("definition", ctypes.c_void_p)]


class _Exchange(ctypes.Structure):
    """DLPackExchangeAPI, version 1."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("older", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
                ("export", ctypes.c_void_p), ("import_", ctypes.c_void_p), ("view", ctypes.c_void_p)]


#: The flag of methods without arguments.
_NO_ARGUMENTS = 4


class _Readers:
    """The compiled functions, and the functions of PyTorch that they call."""

    def __init__(self):
        # Functions that call into Python keep its lock.
        library = ctypes.PyDLL(str(library_folder("libDiffAttnC.so") / "libDiffAttnC.so"))
        self.array_facts, self.attribute_numbers = library.diffattn_array_facts, library.diffattn_attribute_numbers
        self.describe_arrays, pointer = library.diffattn_describe_arrays, ctypes.c_void_p
        self.describe_arrays.argtypes = [pointer, pointer, pointer, ctypes.c_int32, pointer]
        self.array_facts.argtypes = [pointer, pointer, ctypes.c_int32, pointer, ctypes.c_int64, pointer]
        self.attribute_numbers.argtypes = [pointer, pointer, pointer, pointer, pointer, ctypes.c_int32, pointer]
        self.view, self.items = _view(), _items()
        version, storage = _definition("_version", _GetSet), _definition("untyped_storage", _Method)
        if storage.flags != _NO_ARGUMENTS:
            raise _unknown("untyped_storage")
        self.version, self.version_closure, self.storage = version.get, version.closure, storage.get
        self.to_int64, self.release = (ctypes.cast(function, pointer).value for function in (ctypes.pythonapi.PyLong_AsLongLong,
                                                                                       ctypes.pythonapi.Py_DecRef))


_readers = functools.lru_cache(maxsize=None)(_Readers)


def _definition(name: str, kind):
    """How CPython describes an attribute of tensors, which is checked by its name."""
    base = torch._C.TensorBase
    found = _Descriptor.from_address(id(base.__dict__[name]))
    if found.type != id(base) or not found.definition:
        raise _unknown(name)
    definition = kind.from_address(found.definition)
    if definition.name != name.encode() or not definition.get:
        raise _unknown(name)
    return definition


def _view() -> int:
    """The function that describes a tensor in a DLTensor."""
    api = ctypes.pythonapi
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    address = get(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    while address:
        exchange = _Exchange.from_address(address)
        if exchange.major == 1 and exchange.view:
            return exchange.view
        address = exchange.older
    raise _unknown("__dlpack_c_exchange_api__")


def _items() -> int:
    """Where the addresses of its items lie in a tuple of CPython."""
    probe, at = (object(), object()), tuple.__basicsize__
    if ctypes.string_at(id(probe) + at, 16) != struct.pack("2P", *map(id, probe)):
        raise LibraryError("expected tuples of CPython, but got others")
    return at


def _unknown(name: str) -> LibraryError:
    return LibraryError(f"torch.Tensor.{name}: expected CPython with a lock and PyTorch 2.10 or later, whose tensors are known, but got others")


def identity(values: tuple) -> bytes:
    """Which objects they are: their addresses."""
    return ctypes.string_at(id(values) + _readers().items, len(values) * ctypes.sizeof(ctypes.c_void_p))


def as_arguments(values: tuple, codes: ctypes.Array[ctypes.c_int32]) -> ctypes.Array[Array]:
    """Tensors as arguments for the C interface, of elements `codes`; they must stay alive. A negative code: the value is no tensor, and
    is left out."""
    readers, count = _readers(), len(codes)
    arrays = (Array * max(count, 1))()
    readers.describe_arrays(readers.view, id(values) + readers.items, codes, count, arrays)
    return arrays


class Facts:
    """What changes when the elements of tensors may have: addresses, types, sizes, strides, versions, and who their storages are. Tensors
    of inference mode have no version."""

    def __init__(self, tensors: Sequence[torch.Tensor]):
        # Storages are kept, so that another one is not taken for them. The tensors are not: whoever asks has them.
        self._storages = [tensor.untyped_storage() for tensor in tensors]
        self._count = len(tensors)
        self._objects = (ctypes.c_void_p * self._count)(*map(id, tensors))
        versioned = [id(tensor) for tensor in tensors if not tensor.is_inference()]
        self._versioned, self._versioned_count = (ctypes.c_void_p * max(len(versioned), 1))(*versioned), len(versioned)
        room = sum(4 + 2 * tensor.dim() for tensor in tensors)
        self._room, self._size = room, ctypes.c_int64()
        self._numbers = (ctypes.c_int64 * (room + self._count + self._versioned_count))()
        at = ctypes.addressof(self._numbers)
        self._places = at, at + 8 * room, at + 8 * (room + self._count)
        self._known = self._read()

    def still_hold(self) -> bool:
        """Whether they are as they were. The tensors must be alive."""
        try:
            return self._read() == self._known
        except (RuntimeError, BufferError):  # a tensor without memory, in another's place
            return False

    def _read(self) -> tuple:
        """In a call's time: each step asks one thing of all tensors."""
        c, (facts, storages, versions) = _readers(), self._places
        status = c.array_facts(c.view, self._objects, self._count, facts, self._room, ctypes.byref(self._size))
        status |= c.attribute_numbers(c.storage, None, None, c.release, self._objects, self._count, storages)
        status |= c.attribute_numbers(c.version, c.version_closure, c.to_int64, c.release, self._versioned, self._versioned_count, versions)
        return status, self._size.value, bytes(self._numbers)
