"""Text that came from outside, for terminals: names in files, paths, what a model writes."""

from __future__ import annotations

#: Controls of terminals but for line breaks and tabs: C0, delete, C1; and halves of surrogate pairs, which are no characters.
_CONTROLS = {n: f"\\x{n:02x}" for n in (*range(0x20), *range(0x7F, 0xA0)) if n not in (0x09, 0x0A)}
#: Marks that reorder or hide the text after them, and other breaks of lines.
_INVISIBLE = {n: f"\\u{n:04x}" for n in (0x61C, *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF,
                                         *range(0xFFF9, 0xFFFC))}
_SURROGATES = {n: f"\\u{n:04x}" for n in range(0xD800, 0xE000)}
# A byte of a command line or a file name that is no UTF-8 comes as one of these.
_SURROGATES |= {0xDC00 + byte: f"\\x{byte:02x}" for byte in range(0x80, 0x100)}
_TAGS = {n: f"\\U{n:08x}" for n in range(0xE0000, 0xE0080)}

_MESSAGE = _CONTROLS | _INVISIBLE | _SURROGATES | _TAGS
_NAME = _MESSAGE | {0x0A: "\\n"}
_GENERATED = _CONTROLS | _SURROGATES


def printable(text: str) -> str:
    """A message of one or more lines, without what could steer a terminal or reorder what it shows."""
    return text.translate(_MESSAGE)


def printable_name(name) -> str:
    """A name or another value out of a file as messages print it, in one line."""
    return str(name).translate(_NAME)


def printable_generated(text: str) -> str:
    """Text that a model has written, with controls of the terminal escaped and all other characters as they are."""
    return text.translate(_GENERATED)


def shown(value, most: int = 80) -> str:
    """A value as messages show it, in one line, cut where it is long."""
    try:
        text = repr(value)
    except Exception:  # an object of the caller's, an integer of thousands of digits
        text = f"an object of type {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[:most - 3]}..."
