"""The engine: one thread owns a model and its caches, and computes requests together. It knows nothing of HTTP.

    engine = Engine(model, pages=512, capacity=2048)
    ticket = engine.submit(Request(prompt, max_tokens=20), deliver)    # events come to `deliver`, in the engine's thread
    for event in engine.events(request): ...                          # the same, one after the other, in the caller's

In each turn it admits what finds pages, computes a part of a prompt, then a step of all rows that are being written, and draws a token
for each of them. On a CPU what a request gets is bit for bit what it gets alone (docs/numerics.md): a prompt takes one path, and so do
the steps after it, whatever else is computed.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from .. import checks
from ..errors import InputError, RunError
from .model import PagedModel
from .requests import ClosedError, Deliver, Event, OverloadedError, PromptScored, Request, RequestEnded, RequestFailed
from .row import Row
from .sequences import CHUNK, Prompted, Scores, Sequences


@dataclass(eq=False)
class Ticket:
    """A request that was taken. `cancel` ends it within a turn, from any thread."""

    request: Request
    deliver: Deliver
    is_cancelled: bool = False
    sequence: Prompted | None = None
    rows: list[Row] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class Statistics:
    """Counts since the engine began."""

    requests: int = 0
    prompt_tokens: int = 0
    #: Prompt tokens whose keys an earlier prompt had left.
    shared_tokens: int = 0
    new_tokens: int = 0
    steps: int = 0
    cancelled: int = 0
    failed: int = 0


class Engine:
    """`pages` pages of keys for all requests, each of which has at most `capacity` tokens, prompt and text. At most `rows` choices are
    written at a time, and at most `waiting` requests wait; what comes beyond them is refused with an `OverloadedError`."""

    def __init__(self, model: PagedModel, *, pages: int, capacity: int, rows: int = 64, waiting: int = 256) -> None:
        self.model, self.capacity = model, checks.integer("capacity", capacity, 1)
        self.rows, self.most_waiting = checks.integer("rows", rows, 1), checks.integer("waiting", waiting, 1)
        self.sequences = Sequences(model, checks.integer("pages", pages, 1), capacity, self.rows)
        self.statistics = Statistics()
        self._submitted: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0  # tickets that wait
        self._is_closed = self._gives_up = False
        self._waiting: deque[Ticket] = deque()
        self._prefilling: deque[Ticket] = deque()
        self._writing: list[Ticket] = []
        self._thread = threading.Thread(target=self._run, name="diffattn-engine", daemon=True)
        self._thread.start()

    # ---- for any thread ---------------------------------------------------------------------------------------

    def submit(self, request: Request, deliver: Deliver) -> Ticket:
        """Takes a request. `deliver` gets its events in the engine's thread, and must neither wait nor raise."""
        self._check(request)
        ticket = Ticket(request, deliver)
        with self._lock:
            if self._is_closed:
                raise ClosedError("expected an engine that takes requests, but it ends")
            if self._count >= self.most_waiting:
                raise OverloadedError(f"expected at most {self.most_waiting} requests to wait, but got one more", self._retry_after())
            self._count += 1
            self._submitted.put(ticket)
        return ticket

    def events(self, request: Request) -> Iterator[Event]:
        """The events of a request. A generator that is closed early cancels it."""
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        ticket = self.submit(request, events.put)
        try:
            while True:
                event = events.get()
                yield event
                if isinstance(event, (RequestEnded, RequestFailed)):
                    return
        finally:
            ticket.cancel()

    def warm(self) -> None:
        """Computes a little, as the first call of a function packs weights, which the first request would wait for."""
        for _ in self.events(Request((0,), 2, want_text=False)):
            pass
        self.statistics = Statistics()

    def close(self, finish: bool = True) -> None:
        """Takes no more requests, ends those that were taken, with `finish` by computing them, and waits for the thread."""
        with self._lock:
            self._is_closed = True
            self._gives_up = self._gives_up or not finish
            self._submitted.put(None)
        self._thread.join()

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return self._count

    @property
    def writing(self) -> int:
        """Choices that are being written."""
        return sum(len(ticket.rows) for ticket in self._writing)

    def _check(self, request: Request) -> None:
        prompt = np.asarray(request.prompt)
        if prompt.dtype.kind not in "iu":
            raise InputError(f"prompt: expected token ids, which are integers, but got {prompt.dtype}")
        wrong = prompt[(prompt < 0) | (prompt >= self.model.vocabulary)]
        if wrong.size:
            raise InputError(f"prompt: expected token ids to be at least 0 and below {self.model.vocabulary}, but got {wrong[0]}")
        biased = max(request.sampler.logit_bias, default=0)
        if biased >= self.model.vocabulary:
            raise InputError(f"logit_bias: expected token ids below {self.model.vocabulary}, but got {biased}")
        if len(prompt) + request.max_tokens > self.capacity:
            raise InputError(f"expected at most {self.capacity} tokens, but got a prompt of {len(prompt)} and max_tokens of "
                             f"{request.max_tokens}")
        if request.choices > self.rows:
            raise InputError(f"expected at most {self.rows} choices, but got {request.choices}")
        need = self.sequences.needed(len(prompt), max(request.max_tokens, 1), request.choices)
        if need > self.sequences.pool.pages:
            raise InputError(f"expected a request for at most {self.sequences.pool.pages} pages of {self.sequences.rows} tokens, but "
                             f"got one for {need}")
        if request.want_text and self.model.tokenizer is None:
            raise InputError(f"{self.model.directory}: expected a tokenizer.json, as the request wants text")

    def _retry_after(self) -> int:
        """Seconds in which a place may become free: a guess that grows with the queue."""
        return 1 + self._count // self.rows

    # ---- the engine's thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._turns()
        except BaseException as error:  # a fault of the engine's own: nobody is left to wait for it
            with self._lock:
                self._is_closed = True
            while not self._submitted.empty():
                self._take_submitted(is_idle=False)
            for ticket in (*self._waiting, *self._prefilling, *self._writing):
                ticket.deliver(RequestFailed(RunError(f"expected the engine to run on, but got {type(error).__name__}: {error}")))
            raise

    def _turns(self) -> None:
        is_ending = False
        while True:
            is_idle = not (self._waiting or self._prefilling or self._writing)
            if is_idle and is_ending:
                return
            is_ending = self._take_submitted(is_idle) or is_ending
            self._drop_cancelled()
            self._admit()
            self._prefill()
            self._decode()

    def _take_submitted(self, is_idle: bool) -> bool:
        """Whether the engine is to end. Waits for a request if there is none."""
        is_ending = False
        while True:
            try:
                ticket = self._submitted.get(block=is_idle)
            except queue.Empty:
                return is_ending
            is_idle = False
            if ticket is None:
                is_ending = True
            else:
                self._waiting.append(ticket)

    def _drop_cancelled(self) -> None:
        for group in (self._waiting, self._prefilling, self._writing):
            for ticket in [ticket for ticket in group if ticket.is_cancelled or self._gives_up]:
                group.remove(ticket)
                if group is self._waiting:
                    self._leave_queue()
                self.statistics.cancelled += 1
                self._end(ticket, RequestEnded(cancelled=True))

    def _leave_queue(self) -> None:
        with self._lock:
            self._count -= 1

    def _end(self, ticket: Ticket, event: Event) -> None:
        """Frees what a request holds, which is in no group any more."""
        for row in ticket.rows:
            self.sequences.free(row.sequence)
        if ticket.sequence is not None:
            self.sequences.free(ticket.sequence)
        ticket.rows, ticket.sequence = [], None
        ticket.deliver(event)

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        self.statistics.failed += 1
        self._end(ticket, RequestFailed(error))

    def _admit(self) -> None:
        """Admits requests in the order in which they came: a large one is not passed by small ones for ever."""
        while self._waiting:
            request = self._waiting[0].request
            taken = self.writing + sum(ticket.request.choices for ticket in self._prefilling)
            if taken + request.choices > self.rows:
                return
            sequence = self.sequences.admit(request.prompt, max(request.max_tokens, 1), request.choices)
            if sequence is None:
                return
            ticket = self._waiting.popleft()
            self._leave_queue()
            ticket.sequence = sequence
            self._prefilling.append(ticket)
            self.statistics.requests += 1
            self.statistics.prompt_tokens += len(request.prompt)

    def _prefill(self) -> None:
        """Parts of prompts, the first that came first, of about `CHUNK` tokens in all."""
        computed = 0
        while self._prefilling and computed < CHUNK:
            ticket = self._prefilling[0]
            before = ticket.sequence.done - ticket.sequence.shared
            try:
                logits = self._compute_part(ticket)
                computed += max(ticket.sequence.done - ticket.sequence.shared - before, 1)
                if logits is not None:
                    self._prefilling.popleft()
                    self._begin(ticket, logits)
            except Exception as error:  # taken for a fault of this request
                if ticket in self._prefilling:
                    self._prefilling.remove(ticket)
                self._fail(ticket, error)

    def _compute_part(self, ticket: Ticket) -> np.ndarray | None:
        if not ticket.request.scores:
            return self.sequences.extend(ticket.sequence)
        scores, logits = self.sequences.score(ticket.sequence)
        ticket.scores.append(scores)
        return logits

    def _begin(self, ticket: Ticket, logits: np.ndarray) -> None:
        """Draws the first token of each choice."""
        request, sequence = ticket.request, ticket.sequence
        self.statistics.shared_tokens += sequence.shared
        if request.scores:
            parts = [[getattr(part, name) for part in ticket.scores] for name in ("log_p", "likely", "likely_log_p")]
            ticket.deliver(PromptScored(Scores(*map(np.concatenate, parts))))
        if not request.max_tokens:
            self._end(ticket, RequestEnded(cancelled=False))
            return
        tokenizer = self.model.tokenizer
        ticket.rows, ticket.sequence = [Row(request, 0, sequence, tokenizer)], None
        for choice in range(1, request.choices):
            ticket.rows.append(Row(request, choice, self.sequences.fork(sequence, request.max_tokens), tokenizer))
        self._draw(ticket, [logits] * request.choices)
        if ticket.rows:
            self._writing.append(ticket)

    def _draw(self, ticket: Ticket, logits: list[np.ndarray]) -> None:
        """The next token of each choice of a request that is still written. Those that end free their pages at once."""
        for row, of_row in zip(list(ticket.rows), logits):
            events = row.take(of_row)
            self.statistics.new_tokens += 1
            if row.has_ended:
                ticket.rows.remove(row)
                self.sequences.free(row.sequence)
            for event in events:
                ticket.deliver(event)
        if not ticket.rows:
            self._end(ticket, RequestEnded(cancelled=False))

    def _decode(self) -> None:
        """A step of every row that is written, and of no other: a row of no request would write into caches."""
        rows = [row for ticket in self._writing for row in ticket.rows]
        if not rows:
            return
        try:
            logits = self.sequences.decode([row.sequence for row in rows], [row.tokens[-1] for row in rows])
        except Exception as error:
            writing, self._writing = self._writing, []
            for ticket in writing:
                self._fail(ticket, error)
            return
        self.statistics.steps += 1
        at, writing = 0, []
        for ticket in self._writing:
            own = list(logits[at : at + len(ticket.rows)])
            at += len(own)
            try:
                self._draw(ticket, own)
            except Exception as error:  # a fault of this request
                self._fail(ticket, error)
            if ticket.rows:
                writing.append(ticket)
        self._writing = writing
