"""Calls that are captured once and launched as one graph from then on.

    step = executable.capture("decode", tokens, positions, *caches)
    while ...:
        tokens[:], positions[:] = ...
        logits, *caches = step()
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .arguments import ArrayLike
from .arrays import DTYPES, Result
from .device import choose_stream, name_arguments

if TYPE_CHECKING:
    from .calls import CompiledCode


class CapturedGraph:
    """A call of a function with fixed arguments. Every call of this object runs it; the first run is launched kernel by kernel
    and then captured. Arrays in memory of the host are read anew by each run, arrays on the device are used and updated there.
    """

    def __init__(self, executable: CompiledCode, entry: str, arrays: Sequence[ArrayLike], stream: Any = None) -> None:
        self.executable, self._arrays = executable, arrays
        self._stream = choose_stream(name_arguments(entry, arrays), stream, executable.ordinal)
        self._views, packed = executable.pack(entry, arrays, self._stream)
        lib, handle = executable._lib, ctypes.c_void_p()
        with executable._one_call:
            lib.check(lib.graph_capture(executable._handle, entry.encode(), packed, len(arrays), ctypes.byref(handle)))
        self._handle, self._results = handle, len(executable.signature(entry)[1])
        # It holds the executable, which must not go before it.
        self._finalizer = weakref.finalize(self, _destroy, executable, handle)

    def __call__(self) -> list[Any]:
        """Launches it and returns the results: arguments that were updated are those arguments, other results are arrays that the
        next run overwrites."""
        lib, out = self.executable._lib, (Result * max(self._results, 1))()
        with self.executable._one_call:
            lib.check(lib.memory_stream(self.executable._handle, self._stream))
            lib.check(lib.graph_launch(self._handle, self.executable._threads, out, self._results))
        return [self._arrays[r.argument] if r.argument >= 0 else _view(r, self) for r in out[: self._results]]

    @property
    def fallback_reason(self) -> str:
        """Why every run is launched kernel by kernel: the device's message when the first was captured; "" if it was captured."""
        return self.executable._lib.graph_fallback_reason(self._handle).decode()

    #: Its older name.
    refusal = fallback_reason


def _view(result: Result, owner: CapturedGraph) -> np.ndarray:
    """A result in the memory of `owner`, which it keeps alive."""
    dtype, shape = DTYPES[result.dtype], tuple(result.shape[: result.rank])
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.empty(shape, dtype)
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(result.data)
    memory.owner = owner
    return np.frombuffer(memory, dtype, count=count).reshape(shape)


def _destroy(executable, handle) -> None:
    # Without the lock of calls, as memory is freed (device.py).
    executable._lib.graph_destroy(handle)
