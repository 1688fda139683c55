"""Checks of arguments: what is not exactly what a parameter takes is an error that names it, never rounded, cut or wrapped.

Every function gives the value back as a plain Python object. Scalars of NumPy and 0-d arrays count as their values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .errors import UsageError
from .text import shown

#: Largest integers of the C interfaces.
MOST_INT32, MOST_INT64 = (1 << 31) - 1, (1 << 63) - 1
MOST_THREADS = 4096
#: Farthest distance, in bytes, at which code may prefetch.
MOST_PREFETCH_BYTES = 65536


def wrong(name: str, expected: str, value: Any) -> UsageError:
    return UsageError(f"{name}: expected {expected}, but got {shown(value)}")


def _plain(value: Any) -> Any:
    """The Python number in a scalar of NumPy or in a 0-d array of NumPy, PyTorch or the like."""
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        plain = value.item()
        # bfloat16 and its like have no Python type of their own.
        if type(plain) is type(value) and getattr(value.dtype, "kind", "") == "V" and value.dtype.names is None:
            plain = float(plain)
        return plain
    return value


def integer(name: str, value: Any, least: int = 0, most: int = MOST_INT64) -> int:
    plain = _plain(value)
    if not isinstance(plain, int) or isinstance(plain, bool) or not least <= plain <= most:
        limits = f"an integer of at least {least}" if most == MOST_INT64 else f"an integer from {least} to {most}"
        raise wrong(name, limits, value)
    return int(plain)


def threads(value: Any) -> int:
    """Threads for each call; None and 0: the runtime's default."""
    return 0 if value is None else integer("threads", value, 0, MOST_THREADS)


def number(name: str, value: Any, expected: str = "a finite number", holds: Callable[[float], bool] = lambda _: True) -> float:
    """A finite number for which `holds` is true; `expected` says so in words."""
    plain = _plain(value)
    try:
        result = float(plain) if isinstance(plain, (int, float)) and not isinstance(plain, bool) else math.nan
    except OverflowError:
        result = math.inf
    if not math.isfinite(result) or not holds(result):
        raise wrong(name, expected, value)
    return result


def flag(name: str, value: Any) -> bool:
    plain = _plain(value)
    if type(plain) is not bool:
        raise wrong(name, "True or False", value)
    return plain


def text(name: str, value: Any, expected: str = "a text") -> str:
    """A str that C takes: in UTF-8, without zero characters, which would cut it."""
    if not isinstance(value, str) or "\0" in value:
        raise wrong(name, expected, value)
    return unicode_text(name, value)


def unicode_text(name: str, value: Any) -> str:
    """A str that has an encoding in UTF-8."""
    if not isinstance(value, str):
        raise wrong(name, "a text", value)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"{name}: expected text that UTF-8 can encode, but got {shown(value[error.start])} at character "
                         f"{error.start}") from None
    return value


def command_text(name: str, text: str) -> str:
    """Text of the command line, whatever the locale: the bytes that came, as UTF-8."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeEncodeError:  # not out of a command line, but a caller's of `main`
        return unicode_text(name, text)
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: expected UTF-8 text, but got {shown(text)}, where byte {error.start} is "
                         f"0x{error.object[error.start]:02x}") from None


def choice(name: str, value: Any, known: Sequence[str | None]) -> Any:
    if not (value is None or isinstance(value, str)) or value not in known:
        raise wrong(name, " or ".join(repr(k) for k in known), value)
    return value


def texts(name: str, value: Any) -> list[str]:
    """The texts of a value that is one text, or several."""
    if isinstance(value, str):
        value = [value]
    if value is None:
        return []
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(t, str) and t for t in value):
        raise wrong(name, "a text, or a list of texts, that are not empty", value)
    return list(value)


def path(name: str, value: Any) -> str:
    """A path as a str: of a str, bytes or an object with `__fspath__`."""
    try:
        plain = os.fsdecode(value) if isinstance(value, (str, bytes, os.PathLike)) else ""
        os.fsencode(plain)
    except (UnicodeError, TypeError):  # an object's __fspath__ may give anything
        plain = ""
    if not plain or "\0" in plain:
        raise wrong(name, "a path", value)
    try:
        os.fsencode(plain)
    except UnicodeEncodeError:
        raise wrong(name, "a path that this system's encoding can write", value) from None
    return plain


def paths(name: str, value: Any) -> list[str]:
    """The paths of a value that is one path, or several; None: none."""
    if value is None:
        return []
    if isinstance(value, (str, bytes, os.PathLike)):
        return [path(name, value)]
    if not isinstance(value, Iterable) or isinstance(value, dict):
        raise wrong(name, "a path, or a list of paths", value)
    return [path(f"{name}[{i}]", one) for i, one in enumerate(value)]


def sizes(name: str, value: Any) -> tuple[int, ...]:
    """The shape of an array."""
    if isinstance(value, (str, bytes, dict)) or not isinstance(value, Iterable) or getattr(value, "shape", None) == ():
        raise wrong(name, "a list of sizes", value)
    return tuple(integer(f"{name}[{i}]", size) for i, size in enumerate(value))


def callback(name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise wrong(name, "a function or None", value)
    return value


def module(value: Any) -> bytes:
    """A module of MLIR: text, or bytecode."""
    if isinstance(value, str):
        return unicode_text("mlir", value).encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, os.PathLike):
        raise UsageError(f"mlir: expected the text or the bytecode of a module, but got a path; read {shown(os.fspath(value))} first")
    raise wrong("mlir", "the text or the bytecode of a module", value)
