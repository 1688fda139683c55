"""What every call asks of tensors, of which weights may be hundreds: read by compiled code, which takes less time than Python's."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence

import torch

from ..arrays import Array, array_type
from ..errors import LibraryError
from ..library import library_folder


class _GetSet(ctypes.Structure):
    """CPython's PyGetSetDef."""

    _fields_ = [("name", ctypes.c_char_p), ("get", ctypes.c_void_p), ("set", ctypes.c_void_p), ("doc", ctypes.c_char_p),
                ("closure", ctypes.c_void_p)]


class _Descriptor(ctypes.Structure):
    """CPython's PyGetSetDescrObject."""

    _fields_ = [("head", ctypes.c_void_p * 2), ("type", ctypes.c_void_p), ("name", ctypes.c_void_p), ("qualified", ctypes.c_void_p),
                ("definition", ctypes.c_void_p)]


class _Exchange(ctypes.Structure):
    """DLPackExchangeAPI, version 1."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("older", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
                ("export", ctypes.c_void_p), ("import_", ctypes.c_void_p), ("view", ctypes.c_void_p)]


class _Reader(ctypes.Structure):
    """diffattn_object_reader."""

    _fields_ = [("view", ctypes.c_void_p), ("get", ctypes.c_void_p), ("closure", ctypes.c_void_p), ("to_int64", ctypes.c_void_p),
                ("release", ctypes.c_void_p), ("outer", ctypes.c_int64), ("inner", ctypes.c_int64)]


class _Readers:
    """The compiled functions, and the functions of PyTorch that they call."""

    def __init__(self):
        # Functions that call into Python keep its lock.
        library = ctypes.PyDLL(str(library_folder("libDiffAttnC.so") / "libDiffAttnC.so"))
        self.object_facts, self.describe_arrays, pointer = library.diffattn_object_facts, library.diffattn_describe_arrays, ctypes.c_void_p
        self.describe_arrays.argtypes = [pointer, pointer, pointer, ctypes.c_int32, pointer]
        self.object_facts.argtypes = [pointer, pointer, pointer, ctypes.c_int32, pointer, ctypes.c_int64, pointer]
        self.view, self.items = _view(), _items()
        version = _definition("_version")
        to_int64, release = (ctypes.cast(function, pointer).value for function in (ctypes.pythonapi.PyLong_AsLongLong,
                                                                                  ctypes.pythonapi.Py_DecRef))
        self._reader = _Reader(self.view, version.get, version.closure, to_int64, release, *_storage_place())
        self.reader = ctypes.addressof(self._reader)


_readers = functools.lru_cache(maxsize=None)(_Readers)


def _definition(name: str) -> _GetSet:
    """How CPython describes an attribute of tensors, which is checked by its name."""
    base = torch._C.TensorBase
    found = _Descriptor.from_address(id(base.__dict__[name]))
    if found.type != id(base) or not found.definition:
        raise _unknown(name)
    definition = _GetSet.from_address(found.definition)
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


def _storage_place() -> tuple[int, int]:
    """Where a tensor points to its implementation, and where in that its storage's address lies: to ask for storages by name would take
    as long as all else. Found by what PyTorch says of one tensor, and checked on others, of which one gets another storage."""
    one, other = torch.empty(1), torch.nn.Parameter(torch.empty(2))
    outer = _word_at(id(one), range(object.__basicsize__, torch._C.TensorBase.__basicsize__ - 7, 8), one._cdata)
    # A TensorImpl is larger.
    inner = None if outer is None else _word_at(one._cdata, range(8, 64, 8), one.untyped_storage()._cdata)
    for _ in range(2):
        if inner is None or _word(_word(id(other) + outer) + inner) != other.untyped_storage()._cdata:
            raise _unknown("untyped_storage")
        other.data = torch.empty(3)
    return outer, inner


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _word_at(address: int, offsets: range, wanted: int) -> int | None:
    return next((offset for offset in offsets if _word(address + offset) == wanted), None)


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
    arrays = array_type(Array, max(count, 1))()
    readers.describe_arrays(readers.view, id(values) + readers.items, codes, count, arrays)
    return arrays


class Facts:
    """What changes when the elements of tensors may have: addresses, types, sizes, strides, versions, and who their storages are. Tensors
    of inference mode have no version."""

    def __init__(self, tensors: Sequence[torch.Tensor]):
        # Storages are kept, so that another one is not taken for them. The tensors are not: whoever asks has them.
        self._storages = [tensor.untyped_storage() for tensor in tensors]
        count = len(tensors)
        objects = (ctypes.c_void_p * count)(*map(id, tensors))
        versioned = (ctypes.c_int32 * count)(*(not tensor.is_inference() for tensor in tensors))
        room, self._size = sum(6 + 2 * tensor.dim() for tensor in tensors), ctypes.c_int64()
        self._numbers = (ctypes.c_int64 * room)()
        readers = _readers()
        self._read_all = readers.object_facts
        self._query = (readers.reader, objects, versioned, count, self._numbers, room, ctypes.byref(self._size))
        self._known = self._read()

    def still_hold(self) -> bool:
        """Whether they are as they were. The tensors must be alive."""
        try:
            return self._read() == self._known
        except (RuntimeError, BufferError):  # a tensor without memory, in another's place
            return False

    def _read(self) -> tuple:
        return self._read_all(*self._query), self._size.value, bytes(self._numbers)
