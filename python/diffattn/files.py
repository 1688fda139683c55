"""Files that a user names: what is read as a whole has a limit, and no pipe or device is waited for where a file is due."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .errors import InputError

MEBIBYTE = 1 << 20
#: config.json and generation_config.json; real ones have some kilobytes.
MOST_CONFIG_BYTES = 16 * MEBIBYTE
#: tokenizer.json; the largest known have some tens of megabytes.
MOST_TOKENIZER_BYTES = 1024 * MEBIBYTE
#: The index of a sharded checkpoint, as the compiled readers have it.
MOST_INDEX_BYTES = 100_000_000
#: Texts for `eval`, and files of prompts.
MOST_TEXT_BYTES = 4096 * MEBIBYTE

#: The byte order mark that some editors write before UTF-8. It is no part of the text.
_MARK = b"\xef\xbb\xbf"

_KINDS = [(stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"),
          (stat.S_ISBLK, "a device")]


def _kind(mode: int) -> str:
    return next((text for test, text in _KINDS if test(mode)), "something else")


def _too_large(path, limit: int, got: str, error) -> Exception:
    return error(f"{path}: expected at most {limit} bytes, but got {got}")


#: How files begin that are often saved under another file's name, and what they are.
_BEGINNINGS = ((b"version https://git-lfs", "a pointer of Git LFS, which stands for the file; fetch the file with: git lfs pull"),
               (b"<!doctype html", "a page of HTML, as a download that failed leaves; download the file again"),
               (b"<html", "a page of HTML, as a download that failed leaves; download the file again"),
               (b"<?xml", "XML, as a download that failed leaves; download the file again"),
               (b"pk\x03\x04", "a zip archive, as torch.save writes it"), (b"\x80\x02", "a pickle of Python"),
               (b"\x1f\x8b", "data compressed by gzip; unpack it first"), (b"gguf", "a GGUF file"))


def mistaken(head: bytes, *, is_text: bool = False) -> str | None:
    """Kind of a file that begins with `head` (64 bytes are enough) and cannot be read as what its name says; None: it is not known.
    `is_text`: it should be text, so that being text explains nothing."""
    plain = head.removeprefix(_MARK).lstrip().lower()
    for beginning, kind in _BEGINNINGS:
        if plain.startswith(beginning):
            return kind
    text = head[:60].decode("utf-8", "replace")
    if is_text or not text.strip() or not " ".join(text.split()).isprintable() or "\ufffd" in text[:-3]:
        return None
    return f"text that begins with {text.strip()[:40]!r}"


def read_head(path: str | Path) -> bytes:
    """The first bytes of a regular file for `mistaken`; none where it cannot be read."""
    try:
        descriptor, _ = open_regular(path, InputError)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(64)
    except (OSError, InputError):
        return b""


def open_regular(path: str | Path, error: type[Exception], limit: int | None = None) -> tuple[int, int]:
    """A descriptor of a regular file, and its size. Whatever else lies there is an error at once, of class `error`."""
    try:
        # Without O_NONBLOCK the other end of a pipe would be waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as failure:
        raise error(f"{path}: expected a readable file, but got: {failure.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise error(f"{path}: expected a regular file, but got {_kind(status.st_mode)}")
        if limit is not None and status.st_size > limit:
            raise _too_large(path, limit, str(status.st_size), error)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def read_regular(path: str | Path, limit: int, error: type[Exception]) -> bytes:
    """All of a regular file of at most `limit` bytes."""
    descriptor, _ = open_regular(path, error, limit)
    with os.fdopen(descriptor, "rb") as file:
        return _read(file, path, limit, error)


def read_marked(path: str | Path, limit: int, error: type[Exception]) -> bytes:
    """All of a regular file of UTF-8 text of at most `limit` bytes, without a byte order mark before it."""
    return read_regular(path, limit, error).removeprefix(_MARK)


def _read(file, path, limit: int, error: type[Exception]) -> bytes:
    """All bytes until the end of a file that may be growing, or of a pipe; raises `error` if they are more than `limit`."""
    try:
        parts, size = [], 0
        while part := file.read(min(limit + 1 - size, 16 * MEBIBYTE)):
            parts.append(part)
            size += len(part)
            if size > limit:
                raise _too_large(path, limit, "more", error)
        return b"".join(parts)
    except OSError as failure:
        raise error(f"{path}: expected a readable file, but got: {failure.strerror}") from None


def exists(path: Path) -> bool:
    """Whether anything has that name, a broken link too."""
    return os.path.lexists(path)


def read_text(path: str | Path, limit: int = MOST_TEXT_BYTES) -> str:
    """The UTF-8 text of a file or a pipe, without a byte order mark before it; "-" is standard input. A device is an error, except a
    terminal."""
    if str(path) == "-":
        data = _read_text_bytes(0, "standard input", limit, close=False)
        path = "standard input"
    else:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as failure:
            raise InputError(f"{path}: expected a readable text file, but got: {failure.strerror}") from None
        data = _read_text_bytes(descriptor, path, limit, close=True)
    try:
        return data.removeprefix(_MARK).decode("utf-8")
    except UnicodeDecodeError as failure:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise InputError(f"{path}: expected UTF-8 text, but got the byte order mark of UTF-16; save it as UTF-8") from None
        start = failure.start + len(data) - len(failure.object)
        raise InputError(f"{path}: expected UTF-8 text, but got: {failure.reason} at byte {start}") from None


def _read_text_bytes(descriptor: int, path, limit: int, close: bool) -> bytes:
    try:
        status = os.fstat(descriptor)
    except OSError as failure:
        raise InputError(f"{path}: expected a readable text file, but got: {failure.strerror}") from None
    mode = status.st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)):
        if close:
            os.close(descriptor)
        # /dev/zero never ends, and a folder makes no file object.
        raise InputError(f"{path}: expected a file or a pipe, but got {_kind(mode)}")
    with os.fdopen(descriptor, "rb", closefd=close) as file:
        if stat.S_ISREG(mode) and status.st_size > limit:
            raise _too_large(path, limit, str(status.st_size), InputError)
        return _read(file, path, limit, InputError)


def waiting_on_standard_input() -> bool:
    """Whether a pipe or a file with something in it was given as standard input. It is not read."""
    import fcntl
    import struct
    import termios

    try:
        status = os.fstat(0)
        if stat.S_ISREG(status.st_mode):
            return os.lseek(0, 0, os.SEEK_CUR) < status.st_size
        if stat.S_ISFIFO(status.st_mode):
            return struct.unpack("i", fcntl.ioctl(0, termios.FIONREAD, b"\0" * 4))[0] > 0
    except OSError:
        pass
    return False
