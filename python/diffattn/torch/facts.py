"""Facts of tensors that every call reads, of hundreds of weights too: compiled code reads them in less time than Python.

It calls what is documented: of PyTorch DLPack's exchange API (in `dlpack.h`), `_version` and `untyped_storage`; of CPython its C API.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Collection, Sequence

import torch

from ..arrays import Array, array_type
from ..errors import LibraryError
from ..library import library_folder

#: Py_tp_descr_get of CPython's stable ABI (typeslots.h): the function that an attribute of a class gives its value by.
_DESCR_GET = 54
#: diffattn_object_question.
_ASK_ATTRIBUTE, _ASK_FUNCTION = 1, 2


class _Exchange(ctypes.Structure):
    """DLPackExchangeAPI, version 1."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("older", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
                ("export", ctypes.c_void_p), ("import_", ctypes.c_void_p), ("view", ctypes.c_void_p)]


class _Reader(ctypes.Structure):
    """diffattn_object_reader."""

    _fields_ = [("view", ctypes.c_void_p), ("item", ctypes.c_void_p), ("get", ctypes.c_void_p), ("attribute", ctypes.py_object),
                ("call", ctypes.c_void_p), ("function", ctypes.py_object), ("to_int64", ctypes.c_void_p), ("release", ctypes.c_void_p)]


class _Readers:
    """The compiled functions, and the functions of PyTorch and CPython that they call."""

    def __init__(self):
        # Functions that call into Python keep its lock.
        library = ctypes.PyDLL(str(library_folder("libDiffAttnC.so") / "libDiffAttnC.so"))
        self.object_facts, self.facts_hold = library.diffattn_object_facts, library.diffattn_object_facts_hold
        self.describe_arrays = library.diffattn_describe_arrays
        pointer, tuple_, count, size = ctypes.c_void_p, ctypes.py_object, ctypes.c_int32, ctypes.c_int64
        self.object_facts.argtypes = [pointer, pointer, pointer, count, pointer, size, pointer]
        self.facts_hold.argtypes = [pointer, tuple_, pointer, pointer, count, pointer, size]
        self.describe_arrays.argtypes = [pointer, tuple_, pointer, count, pointer]
        view, get, api = _view(), _getter("_version"), ctypes.pythonapi
        item, call, to_int64, release = (ctypes.cast(function, pointer).value for function in (
            api.PyTuple_GetItem, api.PyObject_CallOneArg, api.PyLong_AsLongLong, api.Py_DecRef))
        self._reader = _Reader(view, item, get, torch.Tensor._version, call, torch.Tensor.untyped_storage, to_int64, release)
        self.reader = ctypes.addressof(self._reader)


_readers = functools.lru_cache(maxsize=None)(_Readers)


def _view() -> int:
    """The function that describes a tensor in a DLTensor."""
    name = "__dlpack_c_exchange_api__"
    capsule, address = getattr(torch.Tensor, name, None), None
    if capsule is not None:
        get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
        address = get(capsule, b"dlpack_exchange_api")
    while address:
        exchange = _Exchange.from_address(address)
        if exchange.major == 1 and exchange.view:
            return exchange.view
        address = exchange.older
    raise _unknown(name)


def _getter(name: str) -> int:
    """The function that gives the attribute's value for a tensor: that of its property, so that no name has to be looked up."""
    slot = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_int)(("PyType_GetSlot", ctypes.pythonapi))
    address = slot(type(getattr(torch.Tensor, name, None)), _DESCR_GET)
    if not address:
        raise _unknown(name)
    return address


def _unknown(name: str) -> LibraryError:
    return LibraryError(f"torch.Tensor.{name}: expected that of PyTorch 2.10 or later, but got another")


def as_arguments(values: tuple, codes: ctypes.Array[ctypes.c_int32]) -> ctypes.Array[Array]:
    """Tensors as arguments for the C interface, of elements `codes`; they must stay alive. A negative code: the value is no tensor, and
    is left out."""
    readers, count = _readers(), len(codes)
    arrays = array_type(Array, max(count, 1))()
    readers.describe_arrays(readers.reader, values, codes, count, arrays)
    return arrays


class Facts:
    """Facts of tensors that change when their elements may have: addresses, types, sizes, strides, versions, and who their storages are. Tensors
    of inference mode have no version. Those whose numbers are in `in_place` are read where they lie by whoever asks: their elements may
    change, and neither versions nor storages count."""

    def __init__(self, tensors: Sequence[torch.Tensor], in_place: Collection[int] = ()):
        # Storages are kept, so that another one is not taken for them: one has one object of Python as long as that lives. The tensors
        # are not kept: whoever asks has them.
        self._storages = [tensor.untyped_storage() for number, tensor in enumerate(tensors) if number not in in_place]
        count, readers = len(tensors), _readers()
        objects, asked = (ctypes.c_void_p * count)(*map(id, tensors)), (ctypes.c_int32 * count)()
        for number, tensor in enumerate(tensors):
            if number not in in_place:
                asked[number] = _ASK_FUNCTION if tensor.is_inference() else _ASK_FUNCTION | _ASK_ATTRIBUTE
        room, size = sum(6 + 2 * tensor.dim() for tensor in tensors), ctypes.c_int64()
        self.numbers = (ctypes.c_int64 * room)()
        readers.object_facts(readers.reader, objects, asked, count, self.numbers, room, ctypes.byref(size))
        self._hold, self._reader, self._count = readers.facts_hold, readers.reader, count
        self._known = (objects, asked, count, self.numbers, size.value)

    def still_hold(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Whether these are the tensors, and as they were."""
        try:
            return len(tensors) == self._count and bool(self._hold(self._reader, tensors, *self._known))
        except (RuntimeError, BufferError):  # a tensor without memory, in another's place
            return False
