"""Text to ids and back: a thin hand on Hugging Face's `tokenizers`, with text that comes out piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

from . import checks, files
from .errors import CheckpointError


_LARGEST = (1 << 32) - 1
#: Tokens before a new one that are decoded with it.
_CONTEXT = 8


class Tokenizer:
    def __init__(self, path: Path) -> None:
        try:
            import tokenizers
        except ImportError:
            raise CheckpointError("expected the Python package 'tokenizers', but it is not installed") from None
        self.path = path
        content = files.read_marked(path, files.MOST_TOKENIZER_BYTES, CheckpointError)
        if kind := files.mistaken(content[:64], is_text=True):
            raise CheckpointError(f"{path}: expected a tokenizer of Hugging Face's tokenizers, but got {kind}")
        with self._blaming_the_file("a tokenizer of Hugging Face's tokenizers"):
            self.inner = tokenizers.Tokenizer.from_buffer(content)
            # A file may ask for padding or cutting to a fixed length; a model here takes any.
            self.inner.no_padding()
            self.inner.no_truncation()

    @contextmanager
    def _blaming_the_file(self, expected: str):
        try:
            yield
        except BaseException as error:
            raise self._blame(expected, error) from None

    def _blame(self, expected: str, error: BaseException) -> BaseException:
        """The exception to raise for `error` of the package, which raises bare Exception for anything wrong in the file, and, where its Rust
        code gives up, a PanicException, which is no Exception."""
        if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)):
            return error
        return CheckpointError(f"{self.path}: expected {expected}, but got: {error}")

    def encode(self, text: str, special: bool = True) -> list[int]:
        text, special = checks.unicode_text("text", text), checks.flag("special", special)
        with self._blaming_the_file("a tokenizer that takes any text"):
            return self.inner.encode(text, add_special_tokens=special).ids

    def decode(self, ids: Sequence[int]) -> str:
        # A plain integer of the range, as nearly all are, takes no call.
        ids = [i if type(i) is int and 0 <= i <= _LARGEST else checks.integer("ids", i, 0, _LARGEST) for i in ids]
        try:  # without a context manager, which a step of a small model would notice
            return self.inner.decode(ids, skip_special_tokens=True)
        except BaseException as error:
            raise self._blame("a tokenizer that turns ids into text", error) from None


class TextStream:
    """Turns ids that come one by one into text, no character before its last byte has come.

    With `stop`, text is also held back while it may be the beginning of a stop string; `stopped` says that one came.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int], stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, [s for s in stop if s]
        # Decoding a token alone may lose the space before it, so some of what came before is decoded with it.
        ids = list(context)
        whole = len(ids)  # the context may end within a character
        while whole > max(len(ids) - 4, 0) and tokenizer.decode(ids[:whole]).endswith("\ufffd"):
            whole -= 1
        self.ids, self.before = self._last(ids[:whole])
        self.ids += ids[whole:]
        self.held, self.stopped = "", False

    def _last(self, ids: list[int]) -> tuple[list[int], str]:
        """The last ids that decode to what the text of all ends with, and that end: others begin within a character, whose bytes may be
        tokens of their own."""
        text = self.tokenizer.decode(ids)
        for count in range(_CONTEXT, len(ids)):
            end = self.tokenizer.decode(ids[-count:])
            if text.endswith(end):
                return ids[-count:], end
        return ids, text

    def push(self, token: int) -> str:
        """The text that is now certain."""
        self.ids.append(token)
        text = self.tokenizer.decode(self.ids)
        if text.endswith("\ufffd"):
            return ""
        self.held += text[len(self.before):]
        self.before = text
        if len(self.ids) >= 2 * _CONTEXT:  # not at each token, as it is decoded once more
            self.ids, self.before = self._last(self.ids)
        return self._release()

    def _release(self) -> str:
        if not self.stop:
            text, self.held = self.held, ""
            return text
        places = [at for at in (self.held.find(s) for s in self.stop) if at >= 0]
        if places:
            self.stopped = True
            text, self.held = self.held[: min(places)], ""
            return text
        keep = max((n for s in self.stop for n in range(1, len(s)) if self.held.endswith(s[:n])), default=0)
        text, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep:]
        return text

    def finish(self) -> str:
        """The text that was held back, when no more ids come."""
        text = self.tokenizer.decode(self.ids)[len(self.before):]
        rest, self.held = self.held + text, ""
        return "" if self.stopped else rest
