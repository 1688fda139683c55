"""Recording of what ran when, on which thread, as Chrome's trace JSON: `diffattn.trace` (docs/seeing.md)."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import json
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import checks
from .arguments import FilePath
from .errors import OutputError, UsageError
from .library import library_folder
from .output import tell, write_file

_one, _lock = threading.Lock(), threading.Lock()
_on = False
#: Programs that were called since the last trace began, and their numbers.
_programs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_numbers = itertools.count()
_Write = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


@functools.lru_cache(maxsize=None)
def _runtime() -> ctypes.CDLL:
    """The runtime, which all compiled code of the process shares."""
    from .calls import load_runtime  # imports NumPy, which commands that compile nothing do without

    runtime = load_runtime(library_folder("libDiffAttnRuntime.so"))
    runtime.diffattn_rt_trace_begin.argtypes = [ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64]
    runtime.diffattn_rt_trace_write.argtypes = [_Write, ctypes.c_void_p]
    for name in ("start", "stop", "begin", "end", "end_to", "write"):
        getattr(runtime, f"diffattn_rt_trace_{name}").restype = None
    return runtime


def is_on() -> bool:
    """Whether a trace is recorded: what is compiled now then records its products and attentions."""
    return _on


@contextlib.contextmanager
def span(name: str) -> Iterator[None]:
    """A span of the calling thread, where a trace is recorded."""
    if not _on:
        yield
        return
    runtime = _runtime()
    depth = runtime.diffattn_rt_trace_depth()
    runtime.diffattn_rt_trace_begin(f"python\n{name}".encode(), 0, 0)
    try:
        yield
    finally:
        runtime.diffattn_rt_trace_end_to(depth)


@contextlib.contextmanager
def program(code: Any) -> Iterator[None]:
    """A span of a call of compiled code, within a trace."""
    with _lock:
        number = _programs.setdefault(code, next(_numbers))
    with span(f"program {number}"):
        yield


def programs() -> dict[str, Any]:
    """The compiled code that was called in the last trace and lives, by the names of its spans."""
    with _lock:
        return {f"program {number}": code for code, number in _programs.items()}


@contextlib.contextmanager
def record() -> Iterator[list[dict[str, Any]]]:
    """Fills the list that it gives, when it ends, with the spans of what ran in it, events as in Chrome's JSON. One at a time in a process."""
    events: list[dict[str, Any]] = []
    with _recording():
        yield events
    events += json.loads(_text())["traceEvents"]


@contextlib.contextmanager
def trace(path: FilePath) -> Iterator[None]:
    """Writes what runs in it, on all threads, to `path` as Chrome's trace JSON, for ui.perfetto.dev or chrome://tracing: passes and phases of
    compiling, look-ups in the cache, calls of compiled functions, and products and attentions of code that is compiled in it (other code was
    made without) for a CPU. The file is written also where what runs raises.

        with diffattn.trace("t.json"):
            f = diffattn.compile(module, (x,))
            f(x)

    One trace at a time in a process: UsageError in another one. OutputError if the file cannot be written, before anything is run
    where that can be seen.
    """
    path = checks.path("path", path)
    _check_writable(path)
    with _recording():
        try:
            yield
        finally:
            _runtime().diffattn_rt_trace_stop()
            text = _text()
            write_file(path, text)
    left_out = json.loads(text[text.rindex('"otherData":') + len('"otherData":') : text.rindex("}")])["spans_left_out"]
    if left_out:
        tell(f"diffattn: warning: {path}: {left_out} spans are left out, because a thread has more than are kept", fresh=True)


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    global _on
    if not _one.acquire(blocking=False):
        raise UsageError("expected one trace at a time, but another one is being recorded")
    try:
        runtime = _runtime()
        with _lock:
            _programs.clear()
        runtime.diffattn_rt_trace_start()
        _on = True
        try:
            yield
        finally:
            _on = False
            runtime.diffattn_rt_trace_stop()
    finally:
        _one.release()


def _text() -> str:
    parts: list[bytes] = []
    _runtime().diffattn_rt_trace_write(_Write(lambda _, text, size: parts.append(ctypes.string_at(text, size))), None)
    return b"".join(parts).decode()


def _check_writable(path: FilePath) -> None:
    place = Path(path) if os.path.lexists(path) else Path(path).parent
    if Path(path).is_dir():
        raise OutputError(f"{path}: expected to write the file, but got: Is a directory")
    if not place.exists():
        raise OutputError(f"{path}: expected to write the file, but got: No such file or directory")
    if not os.access(place, os.W_OK):
        raise OutputError(f"{path}: expected to write the file, but got: Permission denied")
