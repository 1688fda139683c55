"""Calls of compiled functions: what modules in memory and bundles have in common.

The C interfaces of both (DiffAttn.h, Bundle.h) have the same functions under another prefix.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from . import checks, tracing
from .arguments import ArrayLike
from .arrays import (CODES, ON_DEVICE, Array, OnDevice, Result, Type, ValueType, aligned_zeros, array_type, as_array, device_of,
                     device_view, names, number_as, owned)
from .device import DeviceArray, Traffic, choose_stream, name_arguments
from .errors import ERRORS, DiffAttnError, InputError, LibraryError
from .graph_capture import CapturedGraph
from .library import load_library


#: How many kinds of calls keep the description of their arguments.
MOST_KINDS = 64

#: Data of the caller, bytes done, bytes in all.
Progress = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
#: As `Progress`, but a result of 0 stops the work.
GoOn = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class ProgressCallback:
    """`progress(done, total)`, or None, for the C interface. An exception cannot pass through C: the first one, also the
    KeyboardInterrupt of a Ctrl-C that came meanwhile, stops the work, and `check` raises it.

        with callback:
            status = library.function(..., callback.c, ...)
        callback.check(library, status)
    """

    def __init__(self, progress):
        self._progress, self._error = checks.callback("progress", progress), None
        self._hooked, self.c = None, GoOn() if progress is None else GoOn(self._call)

    def __enter__(self) -> ProgressCallback:
        # A signal's handler may raise before `_call` has reached its `try`: then ctypes tells this hook. Handlers run in the main
        # thread alone, so no other thread's hook is in the way.
        if threading.current_thread() is threading.main_thread():
            self._hooked, sys.unraisablehook = sys.unraisablehook, self._keep
        return self

    def __exit__(self, *_) -> None:
        if self._hooked is not None:
            sys.unraisablehook, self._hooked = self._hooked, None

    def _keep(self, unraisable) -> None:
        if unraisable.object == self._call or (unraisable.object is None and "ctypes callback" in (unraisable.err_msg or "")):
            self._error = self._error or unraisable.exc_value
        else:
            self._hooked(unraisable)

    def _call(self, _, done: int, total: int) -> int:
        try:
            self._progress(done, total)
            return 1
        except BaseException as error:
            self._error = self._error or error
            return 0

    def check(self, library: CLibrary, status: int) -> None:
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame
        library.check(status)


def load_runtime(folder) -> ctypes.CDLL:
    """The runtime that the libraries in `folder` use."""
    runtime = load_library(folder / "libDiffAttnRuntime.so")
    # A number of threads that the user gave OpenMP is taken as it is. The library sees it only if it is not that of the processors.
    if os.environ.get("OMP_NUM_THREADS"):
        try:
            runtime.diffattn_rt_adapt_threads(0)
        except AttributeError:
            raise LibraryError(f"{runtime._name}: expected the function diffattn_rt_adapt_threads, but there is none; the library is "
                               "older than this package: build it again") from None
    return runtime


class CLibrary:
    """A shared library with the functions `prefix`_call, ... and their types."""

    def __init__(self, path, prefix: str):
        self.c, self.prefix = load_library(path), prefix
        code, text, number, out = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER
        wide, address = ctypes.c_int64, ctypes.c_uint64
        self.declare([
            ("api_version", number, []),
            ("last_error", text, []),
            ("num_entries", number, [code]),
            ("entry_name", text, [code, number]),
            ("num_arguments", number, [code, text, out(number)]),
            ("num_results", number, [code, text, out(number)]),
            ("argument_type", number, [code, text, number, out(Type)]),
            ("result_type", number, [code, text, number, out(Type)]),
            ("num_weights", number, [code]),
            ("weight_name", text, [code, number]),
            ("call", number, [code, text, out(Array), number, number, out(Result), number]),
            ("free", None, [ctypes.c_void_p]),
            ("memory_allocate", number, [code, wide, out(address)]),
            ("memory_free", number, [code, address]),
            ("memory_write", number, [code, address, ctypes.c_void_p, wide]),
            ("memory_read", number, [code, ctypes.c_void_p, address, wide]),
            ("memory_fill", number, [code, address, number, wide]),
            ("memory_copy", number, [code, address, wide, address, wide, wide, wide]),
            ("memory_stream", number, [code, ctypes.c_void_p]),
            ("memory_traffic", number, [code, out(Traffic)]),
            ("graph_capture", number, [code, text, out(Array), number, out(ctypes.c_void_p)]),
            ("graph_destroy", None, [ctypes.c_void_p]),
            ("graph_launch", number, [ctypes.c_void_p, number, out(Result), number]),
            ("graph_fallback_reason", text, [ctypes.c_void_p]),
        ])

    def declare(self, functions) -> None:
        """Makes C functions, given as name, result and arguments, methods of this object."""
        for name, result, arguments in functions:
            try:
                function = getattr(self.c, self.prefix + name)
            except AttributeError:
                raise LibraryError(f"{self.c._name}: expected the function {self.prefix}{name}, but there is none; the library is "
                                   "older than this package: build it again") from None
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def require(self, major: int, what: str) -> None:
        version = self.api_version()
        if version // 1000 != major:
            raise LibraryError(f"expected version {major}.x of the C interface, but {what} has "
                               f"{version // 1000}.{version % 1000}; build it again")

    def check(self, status: int) -> None:
        if status:
            raise ERRORS.get(status, DiffAttnError)(self.last_error().decode(errors="replace"))


#: Where calls of functions without results would write them.
_NO_RESULTS = (Result * 1)()


class CompiledCode:
    """Functions that can be called: `entries`, `signature(entry)`, `call(entry, *arrays)`."""

    #: The number of the device that it runs on; None: the CPU.
    ordinal: int | None = None

    def __init__(self, library: CLibrary, handle: ctypes.c_void_p, threads: int | None) -> None:
        self._lib, self._handle, self._threads = library, handle, checks.threads(threads)
        self._one_call = threading.Lock()  # it serves one thread at a time
        self.entries: list[str] = [library.entry_name(handle, i).decode() for i in range(library.num_entries(handle))]
        self._signatures: dict[str, tuple[list[ValueType], list[ValueType]]] = {}
        #: Arguments that passed all checks, as the C interface takes them, by their types, sizes and strides.
        self._kinds: dict[tuple, ctypes.Array[Array]] = {}

    @property
    def threads(self) -> int | None:
        """Threads that it was asked to use; None or 0: the runtime's default."""
        return self._threads

    @property
    def weight_names(self) -> list[str]:
        """Names of the declared weights; `{}` stands for the layer."""
        return [self._lib.weight_name(self._handle, i).decode() for i in range(self._lib.num_weights(self._handle))]

    def signature(self, entry: str) -> tuple[list[ValueType], list[ValueType]]:
        """Types of the arguments and of the results of a function."""
        checks.text("entry", entry, "the name of a function")
        if entry not in self._signatures:
            lib, key, count, lists = self._lib, entry.encode(), ctypes.c_int32(), []
            for number, describe in [(lib.num_arguments, lib.argument_type),
                                     (lib.num_results, lib.result_type)]:
                self._lib.check(number(self._handle, key, ctypes.byref(count)))
                types = []
                for i in range(count.value):
                    raw = Type()
                    self._lib.check(describe(self._handle, key, i, ctypes.byref(raw)))
                    types.append(ValueType(raw))
                lists.append(types)
            self._signatures[entry] = (lists[0], lists[1])
        return self._signatures[entry]

    @property
    def has_device(self) -> bool:
        """Whether arrays of its own may lie on a device."""
        return self.ordinal is not None

    def call(self, entry: str, *arrays: ArrayLike, stream: Any = None) -> list[Any]:
        """Calls a function and returns its results. A result that is an argument updated in place is that argument. Arrays on
        the executable's device are used there; results are in memory of the host.

        stream   with DLPack arrays on a device: the CUDA stream to launch on, a number or an object with `cuda_stream`. By
                 default PyTorch's current one for its tensors, the device's default stream for others. If all arrays lie on the
                 device, the stream may still be at work after the call.
        """
        on_host = stream is None and self.ordinal is None
        native = None if on_host else choose_stream(name_arguments(entry, arrays), stream, self.ordinal)
        views, packed = self.pack(entry, arrays, native)
        out = self.call_packed(entry, packed, len(views), len(self.signature(entry)[1]), native)
        return [owned(r, self.free) if r.argument < 0 else arrays[r.argument] for r in out]

    def call_packed(self, entry: str, arguments: Any, count: int, num_results: int, native: int | None = None,
                    threads: int | None = None) -> list[Result]:
        """Calls a function with arguments as the C interface takes them. Memory of the results, but of those that are arguments
        updated in place, is the caller's, for `free`. `threads`: other than the program's, checked by the caller."""
        out = array_type(Result, max(num_results, 1))()
        with self._one_call:
            if self.has_device:
                self._lib.check(self._lib.memory_stream(self._handle, native))
            self._call(entry.encode(), arguments, count, self._threads if threads is None else threads, out, num_results)
        return out[:num_results]

    def call_again(self, entry: bytes, arguments: Any, count: int) -> None:
        """`call_packed` of a function without results, in memory of the host: what it takes of Python's time is what a call needs."""
        with self._one_call:
            self._call(entry, arguments, count, self._threads, _NO_RESULTS, 0)

    def _call(self, entry: bytes, arguments: Any, count: int, threads: int, out: Any, num_results: int) -> None:
        if tracing.is_on():
            with tracing.program(self):
                status = self._lib.call(self._traced(), entry, arguments, count, threads, out, num_results)
        else:
            status = self._lib.call(self._handle, entry, arguments, count, threads, out, num_results)
        if status:
            self._lib.check(status)

    def _traced(self) -> ctypes.c_void_p:
        """Handle of the program that is called while a trace is recorded."""
        return self._handle

    @property
    def free(self) -> Any:
        """The function that takes back a result's memory."""
        return self._lib.free

    def capture(self, entry: str, *arrays: ArrayLike, stream: Any = None) -> CapturedGraph:
        """A call with these arrays that can be run again and again, on a device as one graph (`CapturedGraph`). Arrays in memory of
        the host must be dense, and none that the function updates. `stream` as for `call`, the same for every run."""
        return CapturedGraph(self, entry, arrays, stream)

    #: Its older name.
    replay = capture

    def pack(self, entry: str, arrays, native: int | None = None):
        """Arrays as views and as the C interface takes them; the first keep alive what the second point to."""
        # The result of the checks of NumPy's own arrays depends on nothing but this, so that they are made once for each kind of call:
        # they would take a tenth of a small model's step.
        kind = None
        if type(entry) is str and all([type(a) is np.ndarray for a in arrays]):
            kind = (entry, *[(a.dtype, a.shape, a.strides, a.flags.writeable) for a in arrays])
            known = self._kinds.get(kind)
            if known is not None:
                packed = type(known).from_buffer_copy(known)
                packed.owner = known  # keeps the sizes and strides alive
                for slot, array in zip(packed, arrays):
                    slot.data = array.ctypes.data
                return arrays, packed
        views, packed = self._pack_anew(entry, arrays, native)
        if kind is not None:
            if len(self._kinds) >= MOST_KINDS:
                self._kinds.clear()
            self._kinds[kind] = known = type(packed).from_buffer_copy(packed)
            known.owner = packed
        return views, packed

    def _pack_anew(self, entry: str, arrays, native: int | None):
        arguments = self.signature(entry)[0]
        expected = [arguments[i] if i < len(arguments) else None for i in range(len(arrays))]
        views = [self._view(name, array, type_, native)
                 for (name, array), type_ in zip(name_arguments(entry, arrays).items(), expected)]
        packed = (Array * max(len(views), 1))()
        for slot, view in zip(packed, views):
            there = isinstance(view, OnDevice)
            slot.data = view.address if there else view.ctypes.data
            slot.dtype, slot.rank = CODES[view.dtype] + (ON_DEVICE if there else 0), view.ndim
            # ctypes keeps what a field is given alive with the struct.
            slot.shape = (ctypes.c_int64 * view.ndim)(*view.shape)
            slot.strides = (ctypes.c_int64 * view.ndim)(*[s // view.itemsize for s in view.strides])
        return views, packed

    def zeros(self, shape: Iterable[int], dtype: Any) -> np.ndarray | DeviceArray:
        """An array of zeros where calls use it without a copy."""
        return DeviceArray.zeros(self, shape, dtype) if self.has_device else aligned_zeros(shape, dtype)

    def traffic(self) -> Traffic:
        """Counts of calls and bytes that the device was asked for since the code was loaded."""
        result = Traffic()
        self.on_device("traffic", ctypes.byref(result))
        return result

    def on_device(self, what: str, *arguments) -> None:
        """Calls diffattn_memory_`what` of the C API, or of a bundle's."""
        with self._one_call:
            self._lib.check(getattr(self._lib, f"memory_{what}")(self._handle, *arguments))

    def check_device(self, arrays, entry: str) -> None:
        """Refuses arrays on the device of another executable."""
        for name, array in name_arguments(entry, arrays).items():
            if isinstance(array, DeviceArray):
                self._check_device(name, array)

    def _check_device(self, name: str, array: DeviceArray) -> None:
        if array.executable is not self:
            raise InputError(f"{name}: expected an array on the device of this executable, but got one of another")

    def _view(self, name, array, expected: ValueType | None, stream) -> np.ndarray | OnDevice:
        if isinstance(array, DeviceArray):
            self._check_device(name, array)
            return array
        on_device = self.has_device and device_of(array) is not None
        # A number has no type of its own.
        number = isinstance(array, (bool, int, float, np.generic))
        if expected is not None and expected.in_place and not (number or isinstance(array, (np.ndarray, OnDevice))
                                                               or hasattr(array, "__dlpack__")):
            raise InputError(f"{name}: expected an array, because it is updated in place, but got {checks.shown(array)}")
        if expected is not None and number:
            view = number_as(array, expected.dtype, name)
        else:
            view = device_view(array, stream, name) if on_device else as_array(array, name)
        if view.dtype not in CODES:
            raise InputError(f"{name}: expected elements of {names()}, but got {view.dtype}")
        if any(s % view.itemsize for s in view.strides):
            raise InputError(f"{name}: expected strides of whole elements, but got {view.strides} bytes")
        if isinstance(view, OnDevice):
            return view
        if expected is not None and expected.in_place and expected.kind == "tensor" and not view.flags.writeable:
            raise InputError(f"{name}: expected a writable array, because it is updated in place")
        return view
