"""Sequences in paged caches: they come, are computed a part of their prompt at a time, go on token by token, fork, and go.

A row's bits depend on where its block of queries begins (docs/numerics.md), so parts of prompts begin at multiples of `UNIT`, which is
a multiple of every block. Prompts are computed by `extend` and `score` with at least `LEAST_QUERIES` queries, since fewer take another
kernel, and what follows them by `decode` alone: so the keys of a prompt are the same whoever computes them, and can be shared, and
those of generated tokens are not.

Where sequences have states, each has a slot of its own from when it is admitted until it is freed, and prompts are computed whole: keys
that others have computed are of no use without the states that belong to them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import InputError
from .model import PagedModel
from .pages import PagePool

#: Tokens; the least common multiple of the blocks of queries, 48 and 64. Whole units are shared.
UNIT = 192
#: Tokens of a prompt that are computed at a time.
CHUNK = 2 * UNIT
LEAST_QUERIES = 9


@dataclass(eq=False)
class Prompted:
    """A sequence of which the first `done` tokens of `prompt`, or all of it and more, are in the caches. Of its `slots` the first is
    its own, and the others are for its forks."""

    prompt: tuple[int, ...]
    promised: int
    slots: list[int]
    pages: list[int] = field(default_factory=list)
    done: int = 0
    #: Tokens of the prompt whose keys others had computed.
    shared: int = 0

    @property
    def is_prefilled(self) -> bool:
        return self.done >= len(self.prompt)


@dataclass
class Scores:
    """Likelihoods of tokens that follow one another: log-probabilities `[n]` f32, and for each place the likeliest ids `[n, k]` i64, in their
    order, and theirs `[n, k]` f32. k is `LIKELIEST` of the models, or the vocabulary where that is smaller."""

    log_p: np.ndarray
    likely: np.ndarray
    likely_log_p: np.ndarray


class Sequences:
    """The caches of a model, `pages` pages for all sequences together, of at most `capacity` tokens each. `slots`: at most so many
    sequences at a time, of models whose sequences have states."""

    def __init__(self, model: PagedModel, pages: int, capacity: int, slots: int = 0) -> None:
        self.model, self.rows = model, model.page_rows
        if UNIT % self.rows:
            raise InputError(f"expected pages of a divisor of {UNIT} tokens, but got {self.rows}")
        self.pool = PagePool(pages, UNIT, UNIT // self.rows)
        #: Entries of a row of block_table. The same in all calls, as the form of attention follows from it.
        self.table_size = self._pages_of(capacity)
        self.capacity = capacity
        self._caches = model.new_caches(pages, slots)
        self._free_slots = list(range(slots)) if model.has_states else []  # a heap, as pages are

    def _pages_of(self, tokens: int) -> int:
        return -(-tokens // self.rows)

    def needed(self, prompt: int, new_tokens: int, choices: int = 1) -> int:
        """Largest number of pages that a sequence with so many tokens to come needs, and its `choices - 1` forks."""
        return self._own_pages(prompt, new_tokens) * choices + prompt // self.rows

    def _own_pages(self, prompt: int, new_tokens: int) -> int:
        """Pages that a fork does not share. The last token is never fed back."""
        return self._pages_of(prompt + new_tokens - 1) - prompt // self.rows

    def admit(self, prompt: Sequence[int], new_tokens: int, choices: int = 1) -> Prompted | None:
        """A sequence with so many tokens to come, from which `choices - 1` others may fork; None while there are too few pages or
        slots."""
        need, slots = self.needed(len(prompt), new_tokens, choices), choices if self.model.has_states else 0
        if slots > len(self._free_slots) or not self.pool.promise(need):
            return None
        return Prompted(tuple(prompt), need, [heapq.heappop(self._free_slots) for _ in range(slots)])

    def free(self, sequence: Prompted) -> None:
        self.pool.release(sequence.pages)
        self.pool.withdraw(sequence.promised)
        for slot in sequence.slots:
            heapq.heappush(self._free_slots, slot)
        sequence.pages, sequence.slots, sequence.promised = [], [], 0

    def extend(self, sequence: Prompted) -> np.ndarray | None:
        """Computes a further part of the prompt. The logits `[V]` of its last token, None while there is more of it."""
        self._adopt(sequence)
        return self._compute(sequence)

    def _compute(self, sequence: Prompted) -> np.ndarray | None:
        begin, end = self._next_part(sequence)
        logits, *_ = self.model.call("extend", *self._part(sequence, begin, end), *self._caches)
        self._finish_part(sequence, end)
        return logits[0] if sequence.is_prefilled else None

    def score(self, sequence: Prompted) -> tuple[Scores, np.ndarray | None]:
        """Does as `extend`, and gives likelihoods of the tokens that follow those of the part: of the last part one fewer than it has tokens.
        Nothing of the prompt may be computed yet by `extend`, which takes over what others have computed."""
        begin, end = self._next_part(sequence)
        ids, lengths, positions, *where = self._part(sequence, begin, end)
        targets, known = np.zeros_like(ids), sequence.prompt[begin + 1 : end + 1]
        targets[0, : len(known)] = known
        log_p, likely, likely_log_p, logits, *_ = self.model.call("score", ids, targets, lengths, positions, *where, *self._caches)
        self._finish_part(sequence, end)
        scores = Scores(*(values[0, : len(known)] for values in (log_p, likely, likely_log_p)))
        return scores, logits[0] if sequence.is_prefilled else None

    def decode(self, sequences: Sequence[Prompted], tokens: Sequence[int]) -> np.ndarray:
        """Appends a token to each sequence, all of which are prefilled. The logits `[len(sequences), V]`."""
        positions = np.array([sequence.done for sequence in sequences], np.int64)
        for sequence in sequences:
            self._take_pages(sequence, sequence.done + 1)
        logits, *_ = self.model.call("decode", np.array(tokens, np.int64), positions, *self._where(sequences), *self._caches)
        for sequence in sequences:
            sequence.done += 1
        return logits

    def fork(self, sequence: Prompted, new_tokens: int) -> Prompted:
        """Another sequence with the prompt of one that was just prefilled. Its pages come from those promised to that one."""
        whole, own = len(sequence.prompt) // self.rows, self._own_pages(len(sequence.prompt), new_tokens)
        other = Prompted(sequence.prompt, own, sequence.slots[1:2], sequence.pages[:whole], sequence.done)
        sequence.promised -= own
        del sequence.slots[1:2]
        self.pool.share(other.pages)
        if len(sequence.pages) > whole or self.model.has_states:
            self._copy_own(sequence, other)
        return other

    def _copy_own(self, sequence: Prompted, other: Prompted) -> None:
        """Copies what two sequences do not share: states, and the page that the prompt does not fill, which both will write."""
        if self.model.executable.has_device:  # computed again, and so are shared pages, with the same bits
            other.done = 0 if self.model.has_states else len(other.prompt) // UNIT * UNIT
            while not other.is_prefilled:
                self._compute(other)
            return
        paged, states = self._caches[:2], self._caches[2:]
        for cache in states:
            cache[:, other.slots[0]] = cache[:, sequence.slots[0]]
        if len(sequence.pages) > len(other.pages):
            self._take_pages(other, len(other.prompt))
            for cache in paged:
                cache[:, other.pages[-1]] = cache[:, sequence.pages[len(other.pages) - 1]]

    # ---- parts of prompts -------------------------------------------------------------------------------------

    def _adopt(self, sequence: Prompted) -> None:
        """Takes over what others have computed of the same prompt, but for its last token, whose logits are wanted."""
        if sequence.done % UNIT == 0 and not self.model.has_states:
            pages = self.pool.adopt(sequence.prompt[:-1], sequence.done // UNIT)
            sequence.pages += pages
            sequence.promised -= len(pages)
            sequence.done += len(pages) * self.rows
            sequence.shared += len(pages) * self.rows

    def _next_part(self, sequence: Prompted) -> tuple[int, int]:
        begin = sequence.done
        end = min((begin // CHUNK + 1) * CHUNK, len(sequence.prompt))
        self._take_pages(sequence, end)
        return begin, end

    def _part(self, sequence: Prompted, begin: int, end: int) -> tuple[np.ndarray, ...]:
        ids = np.zeros((1, max(end - begin, LEAST_QUERIES)), np.int64)
        ids[0, : end - begin] = sequence.prompt[begin:end]
        return ids, np.array([end - begin], np.int64), np.array([begin], np.int64), *self._where([sequence])

    def _finish_part(self, sequence: Prompted, end: int) -> None:
        sequence.done = end
        if not self.model.has_states:
            self.pool.remember(sequence.prompt[: end // UNIT * UNIT], sequence.pages)

    def _take_pages(self, sequence: Prompted, tokens: int) -> None:
        while len(sequence.pages) * self.rows < tokens:
            sequence.pages.append(self.pool.take())
            sequence.promised -= 1

    def _where(self, sequences: Sequence[Prompted]) -> list[np.ndarray]:
        """block_table, and slots of models whose sequences have states."""
        table = np.zeros((len(sequences), self.table_size), np.int64)
        for row, sequence in zip(table, sequences):
            row[: len(sequence.pages)] = sequence.pages
        return [table, np.array([sequence.slots[0] for sequence in sequences], np.int64)] if self.model.has_states else [table]
