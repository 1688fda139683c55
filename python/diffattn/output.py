"""Where results go: files, and the standard streams of a command."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from .errors import OutputError
from .text import printable

_PROC = "/proc/"


class ReaderGoneError(OutputError):
    """The pipe that results go to has no reader any more. Commands end without a message, with what a shell reports of SIGPIPE."""

    code = 128 + signal.SIGPIPE


def write_file(path: str | Path, text: str) -> None:
    """Writes a file as diffattn-run does. A regular file, or the one that a link leads to, is replaced in one step and keeps its
    permissions; pipes and devices are written to."""
    write_files([(path, [text.encode()])])


def write_files(files: Sequence[tuple[str | Path, Iterable[bytes]]]) -> None:
    """Writes several files, each given as its pieces in order: none is replaced before all are whole."""
    parts: list[_Part] = []
    try:
        for path, pieces in files:
            with _write_errors(path):
                parts.append(_Part(path, pieces))
        for part in parts:
            with _write_errors(part.path):
                part.finish()
    finally:
        for part in parts:
            part.discard()


@contextlib.contextmanager
def _write_errors(path: str | Path):
    try:
        yield
    except OSError as error:
        raise _failure(error, f"{path}: expected to write the file") from None


def _failure(error: OSError, expected: str) -> OutputError:
    kind = ReaderGoneError if isinstance(error, BrokenPipeError) else OutputError
    return kind(f"{expected}, but got: {error.strerror}")


class _Part:
    """A file that is whole, under another name. What is no regular file, or has no name of its own, is written to in the end."""

    def __init__(self, path: str | Path, pieces: Iterable[bytes]):
        self.path, self._pieces, self._part = path, pieces, ""
        self._place = _follow_links(os.fspath(path))
        try:
            mode = os.stat(self._place).st_mode
        except FileNotFoundError:
            mode = None
        if not (self._place.startswith(_PROC) or (mode is not None and not stat.S_ISREG(mode))):
            self._write(mode)

    def finish(self) -> None:
        if self._part:
            os.replace(self._part, self._place)
            self._part = ""
            return
        # An open file of a process has no name to be replaced under; it is added to, as by a shell's >>.
        with open(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY), "wb") as file:
            file.writelines(self._pieces)

    def discard(self) -> None:
        if self._part:
            os.unlink(self._part)
            self._part = ""

    def _write(self, mode: int | None) -> None:
        umask = os.umask(0)
        os.umask(umask)
        file, self._part = tempfile.mkstemp(prefix=".diffattn-", suffix=".part", dir=os.path.dirname(self._place) or ".")
        try:
            with open(file, "wb") as out:
                os.fchmod(file, 0o666 & ~umask if mode is None else stat.S_IMODE(mode) & 0o777)
                out.writelines(self._pieces)
                out.flush()
                os.fsync(file)
        except BaseException:
            self.discard()
            raise


def _follow_links(path: str) -> str:
    for _ in range(40):
        if not os.path.islink(path) or os.path.realpath(os.path.dirname(path) or ".").startswith(_PROC):
            break
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    else:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if os.path.islink(path):
        return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return path


def prepare_streams() -> None:
    """Makes the standard streams safe to write to: characters that their encoding lacks come out as escapes, and a stream that
    the caller has closed does not lend its number to a file that is opened later."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
    if sys.stdout is None:  # closed: what is written fails, which print() would pass over
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:  # print(file=None) would write to standard output
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def say(text: str = "", end: str = "\n") -> None:
    """Writes results to standard output, at once."""
    hide_status()
    try:
        sys.stdout.write(text + end)
        sys.stdout.flush()
    except OSError as error:
        _discard(sys.stdout)
        raise _failure(error, "standard output: expected to write to it") from None


def _discard(stream) -> None:
    """Drops what a stream has kept of a failed write: it would fail again when Python ends, which changes the exit status."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()
    except (OSError, ValueError):
        pass


#: Rest of the last message to standard error that did not end its line; empty: it did.
_open_line = ""
#: Whether a status stands behind it, and who may write either.
_has_status, _terminal = False, threading.RLock()
#: To a terminal: to the line's begin, and nothing from there on.
_ERASE = "\r\x1b[K"


def tell(text: str = "", end: str = "\n", fresh: bool = False) -> None:
    """Writes a message to standard error, if `fresh` on a line of its own. A message that cannot be written is dropped: the work is done
    all the same."""
    global _open_line
    with _terminal:
        hide_status()
        message = ("\n" if fresh and _open_line else "") + printable(text) + end
        _write_message(message)
        _open_line = (_open_line + message).rpartition("\n")[2]


def _write_message(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)
    except ValueError:  # the stream is closed
        pass


def show_status(text: str | None) -> None:
    """Writes a status of progress behind an open line of a terminal's standard error, in place of the one before; None: nothing."""
    global _has_status, _open_line
    with _terminal:
        if text is None:
            hide_status()
            return
        columns = _columns()
        if len(_open_line) > columns // 2:  # a line that the terminal has broken cannot be written over
            _write_message("\n")
            _open_line = ""
        shown = f"{_open_line} {text}" if _open_line else text
        _write_message(_ERASE + shown[: columns - 1])
        _has_status = True


def hide_status() -> None:
    global _has_status
    with _terminal:
        if _has_status:
            _write_message(_ERASE + _open_line)
            _has_status = False


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
