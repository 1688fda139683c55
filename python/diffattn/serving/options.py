"""Options that `serve` and `chat` share: which model, and how much memory its caches get."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError
from .chat_template import ChatTemplate, read_template
from .engine import Engine
from .model import PagedModel

#: Tokens of a sequence, where neither the config nor the caller says.
CAPACITY = 2048
#: The part of the machine's memory that caches take at most, where the caller does not say.
SHARE = 4


def add_to(sub: argparse.ArgumentParser, integer, rows: int) -> None:
    sub.add_argument("--context", type=integer(1), metavar="N", help="tokens of a prompt and its text at most (default: what the model was made for)")
    sub.add_argument("--rows", type=integer(1, 4096), default=rows, metavar="N", help="texts that are written at a time (default: %(default)s)")
    sub.add_argument("--cache-memory", type=integer(1), metavar="MIB",
                     help="of keys, values and states (default: of ROWS whole contexts, at most a quarter of the memory)")
    sub.add_argument("--chat-template", type=Path, metavar="FILE", help="in Jinja (default: the checkpoint's)")


def make_engine(model: PagedModel, args: argparse.Namespace, waiting: int) -> Engine:
    capacity = args.context or model.context or CAPACITY
    of_one, states = -(-capacity // model.page_rows), args.rows * model.slot_bytes
    if args.cache_memory is not None:
        pages = ((args.cache_memory << 20) - states) // model.page_bytes
    else:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        pages = min(args.rows * of_one, max((memory // SHARE - states) // model.page_bytes, of_one))
    if pages < of_one:
        and_states = f" and states of {args.rows} texts" if states else ""
        raise UsageError(f"--cache-memory: expected at least {-(-(of_one * model.page_bytes + states) >> 20)} MiB for a context of {capacity} "
                         f"tokens{and_states}, but got {args.cache_memory}")
    return Engine(model, pages=pages, capacity=capacity, rows=args.rows, waiting=waiting)


@contextlib.contextmanager
def started_template(args: argparse.Namespace) -> Iterator[ChatTemplate | None]:
    """The chat template of the folder that the command names, whose process runs meanwhile; None: there is none."""
    template = read_template(Path(args.directory), args.chat_template)
    if template is None:
        yield None
        return
    try:
        template.start()
        yield template
    finally:
        template.close()
