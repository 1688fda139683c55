"""The loop of generation: a prefill of all prompts, then steps that give each a token, until all have ended."""
from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .arrays import owned
from .calls import CompiledCode
from .prefill import Prefills
from .sampling import Sampler
from .tokenizer import TextStream

#: The smallest capacity of caches on a device.
LEAST_BUCKET = 64


def bucket(length: int) -> int:
    """The capacity of caches on a device that holds `length` tokens: a power of two, so that it seldom changes."""
    return max(LEAST_BUCKET, 1 << (length - 1).bit_length())


@dataclass
class Timing:
    """How long the last `generate` took, and for how many tokens."""

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0

    def __str__(self) -> str:
        def rate(tokens: int, seconds: float) -> str:
            return f"{tokens / seconds:.1f} tokens/s" if seconds > 0 else "-"

        return (f"prefill: {self.prefill_tokens} tokens, {rate(self.prefill_tokens, self.prefill_seconds)}; "
                f"decode: {self.decode_tokens} tokens, {rate(self.decode_tokens, self.decode_seconds)}")


class Decoding:
    """Decode steps with `tokens` and `positions`, arrays that are changed in place between them. On a device a step is one graph,
    captured anew when the caches have grown."""

    def __init__(self, executable: CompiledCode, tokens: np.ndarray, positions: np.ndarray, caches: list) -> None:
        self.executable, self.tokens, self.positions, self.caches = executable, tokens, positions, caches
        self.graph = self.fallback_reason = None
        if not executable.has_device:  # its arrays lie where they are until the end
            self.views, self.packed = executable.pack("decode", (tokens, positions, *caches))

    def __call__(self) -> np.ndarray:
        """The logits, which on a device the next step overwrites."""
        if not self.executable.has_device:
            logits, *_ = self.executable.call_packed("decode", self.packed, 2 + len(self.caches), 1 + len(self.caches))
            return owned(logits, self.executable.free)
        length = int(self.positions.max()) + 1
        if length > self.caches[0].shape[2]:  # that of a cache of keys, which is the first
            caches = [argument for argument in self.executable.signature("decode")[0] if argument.in_place]
            self.caches = [cache.grown(2, bucket(length)) if kind.shape[2] is None else cache
                           for cache, kind in zip(self.caches, caches)]
            self.graph = None
        if self.graph is None:
            self.graph = self.executable.capture("decode", self.tokens, self.positions, *self.caches)
        logits = self.graph()[0]
        if self.graph.fallback_reason and not self.fallback_reason:
            self.fallback_reason = self.graph.fallback_reason
            warnings.warn(f"decode steps are launched kernel by kernel, not as one graph: {self.fallback_reason}")
        return logits


@dataclass
class Batch:
    """Prompts that are continued together."""

    ids: list[list[int]]
    #: The stream that makes text of a prompt's tokens, for each prompt, or None: they stay tokens.
    streams: list[TextStream | None]
    sampler: Sampler
    #: The seed of each prompt.
    seeds: list[int]
    #: The number of tokens that may follow each prompt, from 1.
    limit: int
    #: Tokens that end a prompt's continuation.
    ends: frozenset[int]


def pieces(executable: CompiledCode, prefills: Prefills, new_caches: Callable[[int, int], list], batch: Batch, timing: Timing) -> Iterator:
    """Pairs of a prompt's number and a piece of what follows it: of text where the prompt has a stream, else a token. `timing` is filled in
    meanwhile."""
    lengths = np.array([len(prompt) for prompt in batch.ids], np.int64)
    padded = np.zeros((len(batch.ids), lengths.max()), np.int64)
    for row, prompt in zip(padded, batch.ids):
        row[: len(prompt)] = prompt
    # The last token is never fed back, so its keys need no place. On a device there is room for what is there, as
    # kernels run over all of it.
    capacity = bucket(int(lengths.max())) if executable.has_device else int(lengths.max()) + batch.limit - 1
    begin = time.perf_counter()
    with prefills.run(padded, lengths, lambda: new_caches(len(batch.ids), capacity)) as (logits, caches):
        timing.prefill_seconds = time.perf_counter() - begin
        timing.prefill_tokens = int(lengths.sum())
        yield from _decoded(executable, batch, timing, logits, lengths, caches)


def _decoded(executable: CompiledCode, batch: Batch, timing: Timing, logits: np.ndarray, lengths: np.ndarray, caches: list) -> Iterator:
    """The pieces that follow prompts of `lengths`, with the logits of their last tokens."""
    positions, tokens = lengths.copy(), np.zeros(len(batch.ids), np.int64)
    running, before = [True] * len(batch.ids), [list(prompt) for prompt in batch.ids]
    # A row that has ended writes over its own last place until the others end.
    steps, count = np.ones(len(batch.ids), np.int64), len(batch.ids)
    decode = Decoding(executable, tokens, positions, caches)
    for step in range(batch.limit):
        for row, stream in enumerate(batch.streams):
            if not running[row]:
                continue
            tokens[row] = token = batch.sampler.pick(logits[row], before[row], seed=batch.seeds[row], step=step)
            before[row].append(token)
            running[row] = token not in batch.ends
            if stream is None:
                yield row, token
            elif running[row]:
                if text := stream.push(token):
                    yield row, text
                running[row] = not stream.stopped
            if stream is not None and (not running[row] or step == batch.limit - 1):
                if text := stream.finish():
                    yield row, text
            if not running[row]:
                steps[row], count = 0, count - 1
        if step == batch.limit - 1 or not count:
            return
        begin = time.perf_counter()
        logits = decode()
        timing.decode_seconds += time.perf_counter() - begin
        timing.decode_tokens += count
        positions += steps
