"""`diffattn chat`: a conversation with a model, at a terminal or out of a pipe."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable

from .. import checks
from ..errors import InputError, UsageError
from ..generation_config import GenerationDefaults
from ..importing.requirements import require
from ..output import say, tell
from ..sampling import Sampler
from ..text import printable_generated
from . import options
from .chat_template import ChatTemplate
from .engine import Engine
from .model import PagedModel
from .requests import ChoiceEnded, Request, RequestFailed, TokenDrawn

#: The part of a context that is left for an answer where it has no limit, or a larger one.
ROOM = 4
HELP = "/reset forgets the conversation, /exit or the end of input ends it, Ctrl-C ends an answer"


def add_to(sub: argparse.ArgumentParser, integer, number) -> None:
    sub.add_argument("--system", metavar="TEXT", help="what the model is told first")
    sub.add_argument("--max-new-tokens", type=integer(1), metavar="N", help="of an answer (default: what the context leaves)")
    sub.add_argument("--temperature", type=number, help="0 takes the likeliest token (default: what the model's makers say, else 0)")
    sub.add_argument("--top-k", type=integer(0), metavar="K", help="draw from the K likeliest")
    sub.add_argument("--top-p", type=number, metavar="P", help="draw from the fewest that reach P")
    sub.add_argument("--seed", type=integer(0), metavar="N", help="of what is drawn (default: another one each time)")
    options.add_to(sub, integer, rows=1)


class Conversation:
    """The messages so far, and the next answer to them. The oldest turns are forgotten when the context is full."""

    def __init__(self, engine: Engine, template: ChatTemplate, sampler: Sampler, defaults: GenerationDefaults, system: str | None,
                 limit: int | None, seed: int) -> None:
        self.engine, self.template, self.sampler, self.defaults = engine, template, sampler, defaults
        self.limit, self.seed = limit, seed
        self._first = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, str]] = list(self._first)

    def reset(self) -> None:
        self.messages = list(self._first)

    def answer(self, text: str, show: Callable[[str], None]) -> bool:
        """Shows an answer piece by piece. False if an interrupt ended it; the text up to then stays in the conversation."""
        self.messages.append({"role": "user", "content": text})
        prompt = self._prompt()
        room = self.engine.capacity - len(prompt)
        request = Request(prompt, room if self.limit is None else min(self.limit, room), self.sampler, self.seed, ends=self.defaults.ends,
                          stop=tuple(self.defaults.stop))
        self.seed += 1  # an answer that is asked for twice may be another one
        reply, events = "", self.engine.events(request)
        try:
            for event in events:
                if isinstance(event, RequestFailed):
                    raise event.error
                if isinstance(event, (TokenDrawn, ChoiceEnded)) and event.text:
                    reply += event.text
                    show(event.text)
            return True
        except KeyboardInterrupt:
            return False
        finally:
            events.close()
            self.messages.append({"role": "assistant", "content": reply})

    def _prompt(self) -> tuple[int, ...]:
        """The conversation as far back as it leaves room for an answer."""
        tokenizer, forgotten = self.engine.model.tokenizer, 0
        assert tokenizer is not None  # the command has looked
        room = self.engine.capacity // ROOM if self.limit is None else min(self.limit, self.engine.capacity // ROOM)
        while True:
            ids = tokenizer.encode(self.template.render(self.messages), special=False)
            turns = self.messages[len(self._first) :]
            if len(ids) + room <= self.engine.capacity or (len(turns) < 3 and len(ids) < self.engine.capacity):
                if forgotten:
                    tell(f"diffattn: {forgotten} earlier turns are forgotten, as the context is full")
                return tuple(ids)
            if len(turns) < 3:
                self.messages.pop()
                raise InputError(f"expected at most {self.engine.capacity - 1} tokens, but got {len(ids)}")
            self.messages = [*self._first, *turns[2:]]
            forgotten += 1


def run(args: argparse.Namespace, load: Callable[[argparse.Namespace], PagedModel]) -> int:
    require("serve", {"jinja2": ("3.",)})
    with options.started_template(args) as template:
        if template is None:
            raise UsageError(f"{args.directory}: expected a chat template, but the checkpoint has none; name one with --chat-template, or "
                             "use diffattn generate")
        model = load(args)
        sampler = model.defaults.sampler(args.temperature, args.top_k, args.top_p)
        system = None if args.system is None else checks.unicode_text("--system", args.system)
        seed = secrets.randbelow(1 << 32) if args.seed is None else args.seed
        engine = options.make_engine(model, args, waiting=1)
        try:
            return _talk(Conversation(engine, template, sampler, model.defaults, system, args.max_new_tokens, seed))
        finally:
            engine.close(finish=False)


def _talk(conversation: Conversation) -> int:
    is_terminal = sys.stdin.isatty()
    show_text = printable_generated if sys.stdout.isatty() else str
    if is_terminal:
        tell(f"diffattn: {HELP}")
    while True:
        try:
            line = _read_line(is_terminal)
        except KeyboardInterrupt:  # there is nothing to end but the line
            tell()
            continue
        if line is None or line.strip() == "/exit":
            return 0
        if line.strip() == "/reset":
            conversation.reset()
        elif line.strip():
            _answer(conversation, line, show_text)


def _read_line(is_terminal: bool) -> str | None:
    if is_terminal:
        tell("> ", end="")
    line = sys.stdin.readline()
    return line[:-1] if line.endswith("\n") else line or None


def _answer(conversation: Conversation, line: str, show_text: Callable[[str], str]) -> None:
    try:
        is_whole = conversation.answer(line, lambda text: say(show_text(text), end=""))
    except InputError as error:  # an error of this line alone
        tell(f"diffattn: error: {error}")
        return
    say()
    if not is_whole:
        tell("diffattn: the answer was ended")
