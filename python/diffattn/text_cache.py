"""Texts that cost time to make, such as modules of other importers, kept beside compiled code (docs/runner.md)."""

from __future__ import annotations

import ctypes
import warnings

from .arguments import FilePath
from .errors import OutputError
from .runtime import cache_options, library, tell_once


def read(key: str, cache: bool | FilePath) -> str | None:
    """The text that was kept under `key` by this build of the library; None: there is none. `cache` as for `Executable`."""
    lib, options = library(), cache_options(cache)
    try:
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        lib.check(lib.cache_read(options, key.encode(), ctypes.byref(text), ctypes.byref(size)))
    finally:
        lib.options_destroy(options)
    if not text:
        return None
    try:
        return ctypes.string_at(text, size.value).decode()
    finally:
        lib.free(text)


def keep(key: str, description: str, text: str, cache: bool | FilePath) -> None:
    """Keeps a text that follows from `key` alone; `description` is what `diffattn-run cache ls` shows. A cache that cannot be used is
    one warning."""
    lib, options, data = library(), cache_options(cache), text.encode()
    try:
        lib.check(lib.cache_write(options, key.encode(), description.encode(), data, len(data)))
    except OutputError as error:
        if tell_once(str(error)):
            warnings.warn(str(error), stacklevel=3)
    finally:
        lib.options_destroy(options)
