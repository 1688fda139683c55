"""Uses of a model whose functions are compiled: logits of whole sequences, text that streams, bits per character."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np

from . import checks, files
from .arguments import ArrayLike, Progress
from .arrays import as_array, owned
from .calls import CompiledCode
from .device import DeviceArray
from .errors import CheckpointError, InputError, RunError, UsageError
from .generation_config import MOST_TOKENS, GenerationDefaults, read_defaults
from .models.config import Config
from .prefill import Prefills
from .sampling import Sampler
from .tokenizer import TextStream, Tokenizer


#: The smallest capacity of caches on a device.
LEAST_BUCKET = 64


def _bucket(length: int) -> int:
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


class _Decoding:
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
            # The capacity is a power of two, so that it seldom changes.
            caches = [argument for argument in self.executable.signature("decode")[0] if argument.in_place]
            self.caches = [cache.grown(2, _bucket(length)) if kind.shape[2] is None else cache
                           for cache, kind in zip(self.caches, caches)]
            self.graph = None
        if self.graph is None:
            self.graph = self.executable.capture("decode", self.tokens, self.positions, *self.caches)
        logits = self.graph()[0]
        if self.graph.fallback_reason and not self.fallback_reason:
            self.fallback_reason = self.graph.fallback_reason
            warnings.warn(f"decode steps are launched kernel by kernel, not as one graph: {self.fallback_reason}")
        return logits


def _float32(name: str, value) -> np.ndarray:
    """Numbers that float32 holds: of a narrower type, or of lists, whose numbers have no type of their own."""
    array = as_array(value, name)
    untyped = not isinstance(value, (np.ndarray, np.generic)) and not hasattr(value, "__dlpack__") and array.dtype.kind in "iuf"
    if not untyped and (array.dtype.kind == "b" or not np.can_cast(array.dtype, np.float32)):
        raise InputError(f"{name}: expected float32, but got {array.dtype}; convert it first")
    return np.ascontiguousarray(array, np.float32).reshape(array.shape)


def _split_prompts(prompts) -> tuple[bool, list]:
    """Whether there is one prompt, and a list of all: texts, or arrays or lists of ids."""
    if isinstance(prompts, str):
        return True, [prompts]
    if not isinstance(prompts, (list, tuple)):
        array = as_array(prompts, "prompts")
        if array.ndim not in (1, 2) or array.dtype.kind not in "iu":
            raise InputError(f"prompts: expected texts, or lists of token ids, but got {checks.shown(prompts)}")
        if not len(array):
            raise InputError("prompts: expected token ids, but got an array of none")
        return array.ndim == 1, [array] if array.ndim == 1 else list(array)
    several = any(isinstance(p, (str, list, tuple)) or getattr(p, "ndim", 0) for p in prompts)
    return not several, list(prompts) if several else [list(prompts)]


def _seeds(seed, count: int) -> list[int]:
    """One for each of so many prompts."""
    if not isinstance(seed, (list, tuple)):
        return [checks.integer("seed", seed)] * count
    if len(seed) != count:
        raise UsageError(f"seed: expected one for all prompts or {count}, one for each, but got {len(seed)}")
    return [checks.integer(f"seed[{number}]", value) for number, value in enumerate(seed)]


class CompiledModel:
    """Functions `forward` and, of decoders, `score`, `prefill` and `decode` (docs/models.md), with the config and the tokenizer that
    belong to them."""

    def __init__(self, executable: CompiledCode, directory: Path, config: dict[str, Any], kind: str,
                 defaults: GenerationDefaults | None = None) -> None:
        self.executable, self.directory, self.config, self.kind = executable, directory, config, kind
        self.defaults = defaults or read_defaults(directory, config)
        self.timing = Timing()
        self._prefills = Prefills(executable)
        #: The longest sequence that a decoder was made for.
        self.context: int | None = None
        if self.is_decoder:
            self.context = Config(config, str(directory / "config.json")).integer("max_position_embeddings", None)

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """None if the folder has none. Ids need no tokenizer, and no package for it."""
        path = self.directory / "tokenizer.json"
        return Tokenizer(path) if files.exists(path) else None

    @property
    def is_decoder(self) -> bool:
        return {"prefill", "decode"} <= set(self.executable.entries)

    @property
    def vocabulary(self) -> int:
        """How many tokens a decoder knows: the width of its logits."""
        return self.executable.signature("forward")[1][0].shape[-1]

    @property
    def bos(self) -> int | None:
        return self.defaults.bos

    @property
    def ends(self) -> frozenset[int]:
        return self.defaults.ends

    def forward(self, inputs: ArrayLike) -> np.ndarray:
        """Decoders: ids `[B,T]` to logits `[B,T,V]`. Others: see docs/models.md."""
        inputs = self._ids("inputs", inputs) if self.is_decoder else _float32("inputs", inputs)
        return self.executable.call("forward", inputs)[0]

    def _ids(self, name: str, ids) -> np.ndarray:
        """Token ids of any integer type as int64, each in the vocabulary."""
        array = as_array(ids, name)
        if array.size == 0 and not isinstance(ids, np.ndarray):
            array = np.zeros(array.shape, np.int64)  # an empty list has no type
        if array.dtype.kind not in "iu":
            raise InputError(f"{name}: expected token ids, which are integers, but got {array.dtype}")
        vocab = self.vocabulary
        # Before they become int64, which holds less than uint64 does.
        wrong = array[(array < 0) | (array >= vocab)]
        if wrong.size:
            raise InputError(f"{name}: expected token ids to be at least 0 and below {vocab}, but got {wrong.flat[0]}")
        return np.ascontiguousarray(array, np.int64).reshape(array.shape)

    def new_caches(self, batch: int, capacity: int) -> list[np.ndarray | DeviceArray]:
        """Zeroed caches of a decoder (docs/models.md), on the device if the model runs on one."""
        batch, capacity = checks.integer("batch", batch), checks.integer("capacity", capacity)
        arguments, _ = self.executable.signature("decode")
        try:
            # Rings and states have no axis for the capacity.
            return [self.executable.zeros([cache.shape[0], batch, *(capacity if size is None else size for size in cache.shape[2:])],
                                          cache.dtype) for cache in arguments if cache.in_place]
        except (MemoryError, OverflowError, ValueError):  # NumPy refuses sizes that no address reaches with the second
            raise RunError(f"expected memory for caches of {batch} rows of {capacity} tokens, but the system has no more; choose a "
                           "smaller max_new_tokens") from None

    # ---- text -------------------------------------------------------------------------------------------------

    def _prompt_ids(self, name: str, prompt) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise CheckpointError(f"{self.directory}: expected a tokenizer.json, as the prompt is text")
            ids = self.tokenizer.encode(checks.unicode_text(name, prompt))
            # A tokenizer that adds no begin token gives nothing for an empty prompt.
            ids = ids or ([self.bos] if self.bos is not None else [])
        else:
            ids = prompt
        array = self._ids(name, ids)
        if array.ndim != 1:
            raise InputError(f"{name}: expected a text or a list of token ids, but got shape {list(array.shape)}")
        if not array.size:
            raise InputError(f"{name}: expected a prompt of at least one token, but got none")
        return array.tolist()

    @overload
    def generate(self, prompts: str, max_new_tokens: int | None = None, *, temperature: float | None = None,
                 top_k: int | None = None, top_p: float | None = None, seed: int | Sequence[int] = 0, repetition_penalty: float | None = None,
                 stop: str | Sequence[str] | None = None) -> Iterator[str]: ...

    @overload
    def generate(self, prompts: ArrayLike, max_new_tokens: int | None = None, *, temperature: float | None = None,
                 top_k: int | None = None, top_p: float | None = None, seed: int | Sequence[int] = 0, repetition_penalty: float | None = None,
                 stop: str | Sequence[str] | None = None) -> Iterator[Any]: ...

    def generate(self, prompts: ArrayLike, max_new_tokens: int | None = None, *, temperature: float | None = None, top_k: int | None = None,
                 top_p: float | None = None, seed: int | Sequence[int] = 0, repetition_penalty: float | None = None,
                 stop: str | Sequence[str] | None = None) -> Iterator[Any]:
        """Streams what follows a prompt: pieces of text for text, ids for ids.

        A list of prompts (or a 2-D array of ids) gives pairs of the prompt's number and a piece. Generation ends at the
        model's end token, at a `stop` string, which prompts of ids do not look for, or after `max_new_tokens`. What is None is as
        generation_config.json says, else greedy and 128 tokens. `seed` is one for all prompts, or a list of one for each: what is
        drawn for a prompt depends on its seed, not on its place among the prompts. `timing` then says how fast it was.
        """
        if not self.is_decoder:
            raise InputError(f"expected a decoder, but got {self.kind}, which cannot generate")
        sampler = self.defaults.sampler(temperature, top_k, top_p, repetition_penalty)
        if max_new_tokens is not None:
            max_new_tokens = checks.integer("max_new_tokens", max_new_tokens, 1, MOST_TOKENS)
        single, batch = _split_prompts(prompts)
        seeds = _seeds(seed, len(batch))
        stop = self.defaults.stop if stop is None else checks.texts("stop", stop)
        ids = [self._prompt_ids("prompts" if single else f"prompts[{i}]", prompt) for i, prompt in enumerate(batch)]
        streams = [TextStream(self.tokenizer, i, stop) if isinstance(p, str) else None for p, i in zip(batch, ids)]
        if max_new_tokens is None:
            max_new_tokens = self.defaults.limit(max(map(len, ids)))
        longest = max(map(len, ids)) + max_new_tokens
        if self.context and longest > self.context:
            warnings.warn(f"{longest} tokens are more than the {self.context} that the model was made for")
        pieces = self._pieces(ids, streams, sampler, seeds, max_new_tokens)
        return (piece for _, piece in pieces) if single else pieces

    def _pieces(self, ids: list[list[int]], streams: list, sampler: Sampler, seeds: list[int], limit: int) -> Iterator:
        self.timing = timing = Timing()
        lengths = np.array([len(i) for i in ids], np.int64)
        padded = np.zeros((len(ids), lengths.max()), np.int64)
        for row, prompt in zip(padded, ids):
            row[: len(prompt)] = prompt
        # The last token is never fed back, so its keys need no place. On a device there is room for what is there, as
        # kernels run over all of it.
        capacity = _bucket(int(lengths.max())) if self.executable.has_device else int(lengths.max()) + limit - 1
        begin = time.perf_counter()
        with self._prefills.run(padded, lengths, lambda: self.new_caches(len(ids), capacity)) as (logits, caches):
            timing.prefill_seconds = time.perf_counter() - begin
            timing.prefill_tokens = int(lengths.sum())
            yield from self._decoded(ids, streams, sampler, seeds, limit, logits, lengths, caches)

    def _decoded(self, ids: list[list[int]], streams: list, sampler: Sampler, seeds: list[int], limit: int, logits: np.ndarray,
                 lengths: np.ndarray, caches: list) -> Iterator:
        """The pieces that follow prompts of so many tokens, with the logits of their last ones."""
        timing = self.timing
        positions, tokens = lengths.copy(), np.zeros(len(ids), np.int64)
        running, before = [True] * len(ids), [list(prompt) for prompt in ids]
        # A row that has ended writes over its own last place until the others end.
        steps, count = np.ones(len(ids), np.int64), len(ids)
        decode = _Decoding(self.executable, tokens, positions, caches)
        for step in range(limit):
            for row, stream in enumerate(streams):
                if not running[row]:
                    continue
                tokens[row] = token = sampler.pick(logits[row], before[row], seed=seeds[row], step=step)
                before[row].append(token)
                running[row] = token not in self.ends
                if stream is None:
                    yield row, token
                elif running[row]:
                    if text := stream.push(token):
                        yield row, text
                    running[row] = not stream.stopped
                if stream is not None and (not running[row] or step == limit - 1):
                    if text := stream.finish():
                        yield row, text
                if not running[row]:
                    steps[row], count = 0, count - 1
            if step == limit - 1 or not count:
                return
            begin = time.perf_counter()
            logits = decode()
            timing.decode_seconds += time.perf_counter() - begin
            timing.decode_tokens += count
            positions += steps

    def bits_per_character(self, text: str, window: int | None = None, batch: int = 8, progress: Progress | None = None) -> float:
        """How many bits the model needs for a character of `text`. `progress(done, total)` is called with numbers of pieces.

        The text is cut into pieces of half a window, each predicted with up to half a window of text before it in view
        (and the begin token, if the model has one), so that every token counts exactly once.
        """
        text = checks.unicode_text("text", text)
        window = None if window is None else checks.integer("window", window, 2, MOST_TOKENS)
        batch = checks.integer("batch", batch, 1, MOST_TOKENS)
        checks.callback("progress", progress)
        if not self.is_decoder:
            raise InputError(f"expected a decoder, but got {self.kind}, which has no text to predict")
        if self.tokenizer is None:
            raise CheckpointError(f"{self.directory}: expected a tokenizer.json, as the input is text")
        if "score" not in self.executable.entries:
            raise InputError(f"{self.directory}: expected the function score among those of a decoder, as they are compiled now, but got "
                             f"{', '.join(self.executable.entries)}")
        tokens = self.tokenizer.encode(text, special=False)
        if not tokens:
            raise InputError("text: expected at least one token, but got none")
        start = [] if self.bos is None else [self.bos]
        if window is not None and self.context and window > self.context:
            warnings.warn(f"{window} tokens are more than the {self.context} that the model was made for")
        window = window or min(self.context or 512, 1024)
        half = window // 2
        pieces: dict[tuple[int, int], list[list[int]]] = {}
        for at in range(0, len(tokens), half):
            first = max(0, at - (window - half - 1))
            piece = start + tokens[first : at + half]
            # Without a begin token nothing predicts the first token of all.
            scored = max(1, at - first + len(start))
            pieces.setdefault((len(piece), scored), []).append(piece)
        nats, done, total = 0.0, 0, sum(map(len, pieces.values()))
        for (_, scored), group in pieces.items():
            for at in range(0, len(group), batch):
                ids = np.array(group[at : at + batch], np.int64)
                if ids.shape[1] > scored:
                    log_p = self.executable.call("score", ids[:, :-1].copy(), ids[:, 1:].copy())[0]
                    nats -= log_p[:, scored - 1 :].sum(dtype=np.float64)
                done += len(ids)
                if progress is not None:
                    progress(done, total)
        return nats / math.log(2) / len(text)
