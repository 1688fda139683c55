"""How far a command is: one line on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from . import output
from .text import printable_name

#: Seconds: what takes less shows nothing, and how often the line is written anew.
AFTER, EVERY = 2.0, 0.2


class Progress:
    """A line that is rewritten in place while a `with` of it lasts, from two seconds on, and is gone at its end. Where standard error is
    no terminal, nothing is written.

        with Progress("evaluating", unit="pieces") as progress:
            progress(done, total)     from any thread

    what   "evaluating"
    unit   of what `progress` is told: "pieces"; "bytes" are shown in MiB
    poll   asked before the line is written, in place of calls: done, and the total
    """

    def __init__(self, what: str, unit: str = "bytes", poll: Callable[[], tuple[int, int]] | None = None) -> None:
        self._what, self._unit, self._poll = printable_name(what), unit, poll
        self._at = (0, 0)
        self._begin = time.monotonic()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, done: int, total: int) -> None:
        self._at = (done, total)

    def __enter__(self) -> Progress:
        if sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty():
            self._thread = threading.Thread(target=self._watch, name="diffattn-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            output.show_status(None)

    def _watch(self) -> None:
        wait = AFTER
        while not self._ended.wait(wait):
            if self._poll is not None:
                self._at = self._poll()
            output.show_status(self.text(time.monotonic() - self._begin))
            wait = EVERY

    def text(self, seconds: float) -> str:
        """The line after so many seconds: what, how much of what, and how long it will take if it goes on so."""
        done, total = self._at
        shown = f"{self._what}: {seconds:.0f} s"
        if total <= 0:
            return shown
        scale, unit = (1 << 20, "MiB") if self._unit == "bytes" else (1, self._unit)
        shown += f", {done // scale} of {total // scale} {unit} ({100 * done // total} %)"
        return shown + (f", {seconds * (total - done) / done:.0f} s left" if 0 < done < total else "")
