"""Chat templates of checkpoints: programs in Jinja that turn messages into the text that a model was trained on.

A template is data that may come from anyone. It is rendered by `template_worker.py`, in Jinja's immutable sandbox, in a process of its
own that has limits of memory and is ended when it takes too long.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import files
from ..checkpoint import read_json
from ..errors import CheckpointError, InputError
from ..text import printable

#: Seconds for one rendering, and for the start of the process before the first.
LIMIT, START = 5.0, 30.0
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class TemplateError(InputError):
    """A template that refuses these messages, fails on them, or takes too long."""


def read_template(directory: Path, file: Path | None = None) -> ChatTemplate | None:
    """The template of a checkpoint, from `file` if it is given, else chat_template.jinja, else tokenizer_config.json; None: it has none."""
    path = directory / "tokenizer_config.json"
    config = read_json(path) if files.exists(path) else {}
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: expected an object, but got {type(config).__name__}")
    own = directory / "chat_template.jinja"
    if file is not None or files.exists(own):
        template: Any = files.read_text(file or own)
    else:
        template = config.get("chat_template")
        if isinstance(template, list):  # several, of which "default" is for chats
            named = {part.get("name"): part.get("template") for part in template if isinstance(part, dict)}
            template = named.get("default")
    if template is None:
        return None
    if not isinstance(template, str):
        raise CheckpointError(f"{path}: expected 'chat_template' to be a text, but got {type(template).__name__}")
    tokens = {}
    for name in _SPECIAL:
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            tokens[name] = token
    return ChatTemplate(template, tokens)


class ChatTemplate:
    """Renders one after the other. `tokens` are names of special tokens and their texts, which a template may use."""

    def __init__(self, template: str, tokens: Mapping[str, str], limit: float = LIMIT) -> None:
        self.template, self.tokens, self.limit = template, dict(tokens), limit
        self._lock = threading.Lock()
        self._worker: subprocess.Popen | None = None

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The text of these messages, with what begins an answer behind them."""
        job = {"messages": list(messages), "tools": None, "documents": None, "add_generation_prompt": add_generation_prompt, **self.tokens}
        with self._lock:
            answer = self._ask(job)
        if "text" in answer:
            return answer["text"]
        raise TemplateError(f"expected messages that the chat template takes, but got: {printable(answer['error'])}")

    def start(self) -> None:
        """Starts the process, which says what is wrong with the template itself, a CheckpointError."""
        with self._lock:
            self._start()

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ask(self, job: dict[str, Any]) -> dict[str, str]:
        if self._worker is None or self._worker.poll() is not None:
            self._start()
        line = self._exchange(json.dumps(job), self.limit)
        if line is None:
            raise TemplateError(f"expected a chat template that renders these messages within {self.limit:g} seconds and its share of "
                                "memory, but it does not")
        return json.loads(line)

    def _start(self) -> None:
        self._end()
        command = [sys.executable, "-I", str(Path(__file__).with_name("template_worker.py"))]
        self._worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                        encoding="utf-8", env={})
        answer = self._exchange(json.dumps(self.template), START)
        if answer is None:
            raise TemplateError("expected a process that renders chat templates, but it ended")
        if error := json.loads(answer).get("error"):
            self._end()
            raise CheckpointError(f"expected a chat template in Jinja, but got: {printable(error)}")

    def _exchange(self, line: str, seconds: float) -> str | None:
        """A line of the worker's, which is ended if it gives none in time."""
        worker = self._worker
        assert worker is not None and worker.stdin is not None and worker.stdout is not None
        timer = threading.Timer(seconds, worker.kill)
        timer.start()
        try:
            worker.stdin.write(line + "\n")
            worker.stdin.flush()
            answer = worker.stdout.readline()
        except OSError:
            answer = ""
        finally:
            timer.cancel()
        if not answer.endswith("\n"):
            self._end()
            return None
        return answer

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
            for pipe in (self._worker.stdin, self._worker.stdout):
                try:
                    pipe.close()
                except OSError:  # its buffer holds text that the worker did not take
                    pass
            self._worker = None
