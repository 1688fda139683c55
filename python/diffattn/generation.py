"""What a model can do once its functions are compiled: logits of whole sequences, text that streams, bits per character."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .calls import CompiledCode
from .checkpoint import CheckpointError
from .device import DeviceArray
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
        self.replay = self.refusal = None

    def __call__(self) -> np.ndarray:
        """The logits, which on a device the next step overwrites."""
        if not self.executable.has_device:
            logits, *self.caches = self.executable.call("decode", self.tokens, self.positions, *self.caches)
            return logits
        length = int(self.positions.max()) + 1
        if length > self.caches[0].shape[2]:
            # The capacity is a power of two, so that it seldom changes.
            self.caches = [cache.grown(2, _bucket(length)) for cache in self.caches]
            self.replay = None
        if self.replay is None:
            self.replay = self.executable.replay("decode", self.tokens, self.positions, *self.caches)
        logits = self.replay()[0]
        if self.replay.refusal and not self.refusal:
            self.refusal = self.replay.refusal
            warnings.warn(f"decode steps are launched kernel by kernel, not as one graph: {self.refusal}")
        return logits


class CompiledModel:
    """Functions `forward` and, of decoders, `prefill` and `decode` (docs/models.md), with the config and the tokenizer that
    belong to them."""

    def __init__(self, executable: CompiledCode, directory: Path, config: dict[str, Any], kind: str) -> None:
        self.executable, self.directory, self.config, self.kind = executable, directory, config, kind
        self.timing = Timing()

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """None if the folder has none. Ids need no tokenizer, and no package for it."""
        path = self.directory / "tokenizer.json"
        return Tokenizer(path) if path.is_file() else None

    @property
    def is_decoder(self) -> bool:
        return {"prefill", "decode"} <= set(self.executable.entries)

    @property
    def vocabulary(self) -> int:
        """How many tokens a decoder knows: the width of its logits."""
        return self.executable.signature("forward")[1][0].shape[-1]

    @property
    def context(self) -> int | None:
        """The longest sequence that the model was made for."""
        return self.config.get("max_position_embeddings") if self.is_decoder else None

    @property
    def bos(self) -> int | None:
        value = self.config.get("bos_token_id")
        return value if isinstance(value, int) else None

    @property
    def ends(self) -> set[int]:
        value = self.config.get("eos_token_id")
        return {value} if isinstance(value, int) else set(value or ())

    def forward(self, inputs: np.ndarray) -> np.ndarray:
        """Decoders: ids `[B,T]` to logits `[B,T,V]`. Others: see docs/models.md."""
        inputs = np.asarray(inputs)
        inputs = np.ascontiguousarray(inputs, np.int64 if self.is_decoder else np.float32)
        if self.is_decoder:
            self._check_ids(inputs)
        return self.executable.call("forward", inputs)[0]

    def _check_ids(self, ids: np.ndarray) -> None:
        vocab = self.vocabulary
        wrong = ids[(ids < 0) | (ids >= vocab)]
        if wrong.size:
            raise ValueError(f"expected token ids to be at least 0 and below {vocab}, but got {wrong[0]}")

    def new_caches(self, batch: int, capacity: int) -> list[np.ndarray | DeviceArray]:
        """Zeroed keys and values, `[layers, batch, capacity, heads, width]`, on the device if the model runs on one."""
        arguments, _ = self.executable.signature("decode")
        return [self.executable.zeros([cache.shape[0], batch, capacity, *cache.shape[3:]], cache.dtype)
                for cache in arguments if cache.in_place]

    # ---- text -------------------------------------------------------------------------------------------------

    def _prompt_ids(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise CheckpointError(f"{self.directory}: expected a tokenizer.json, as the prompt is text")
            ids = self.tokenizer.encode(prompt)
            # A tokenizer that adds no begin token gives nothing for an empty prompt.
            ids = ids or ([self.bos] if self.bos is not None else [])
        else:
            ids = [int(i) for i in prompt]
        if not ids:
            raise ValueError("expected a prompt of at least one token, but got none")
        self._check_ids(np.array(ids))
        return ids

    def generate(self, prompts, max_new_tokens: int = 128, *, temperature: float = 0.0, top_k: int = 0,
                 top_p: float = 1.0, seed: int = 0, stop: Sequence[str] = ()) -> Iterator:
        """Streams what follows a prompt: pieces of text for text, ids for ids.

        A list of prompts (or a 2-D array of ids) gives pairs of the prompt's number and a piece. Generation ends at the
        config's end token, at a `stop` string, or after `max_new_tokens`. `timing` then says how fast it was.
        """
        if not self.is_decoder:
            raise ValueError(f"expected a decoder, but got {self.kind}, which cannot generate")
        if max_new_tokens < 1:
            raise ValueError(f"expected max_new_tokens to be at least 1, but got {max_new_tokens}")
        if isinstance(prompts, np.ndarray):
            prompts = prompts.tolist()
        single = isinstance(prompts, str) or not prompts or not isinstance(prompts[0], (str, list, tuple))
        batch = [prompts] if single else list(prompts)
        sampler = Sampler(temperature, top_k, top_p, seed)
        ids = [self._prompt_ids(p) for p in batch]
        streams = [TextStream(self.tokenizer, i, stop) if isinstance(p, str) else None for p, i in zip(batch, ids)]
        longest = max(map(len, ids)) + max_new_tokens
        if self.context and longest > self.context:
            warnings.warn(f"{longest} tokens are more than the {self.context} that the model was made for")
        pieces = self._pieces(ids, streams, sampler, max_new_tokens)
        return (piece for _, piece in pieces) if single else pieces

    def _pieces(self, ids: list[list[int]], streams: list, sampler: Sampler, limit: int) -> Iterator:
        self.timing = timing = Timing()
        lengths = np.array([len(i) for i in ids], np.int64)
        padded = np.zeros((len(ids), lengths.max()), np.int64)
        for row, prompt in zip(padded, ids):
            row[: len(prompt)] = prompt
        # The last token is never fed back, so its keys need no place. On a device there is room for what is there, as
        # kernels run over all of it.
        on_device = self.executable.has_device
        caches = self.new_caches(len(ids), _bucket(int(lengths.max())) if on_device else int(lengths.max()) + limit - 1)
        begin = time.perf_counter()
        logits, *caches = self.executable.call("prefill", padded, lengths, *caches)
        timing.prefill_seconds = time.perf_counter() - begin
        timing.prefill_tokens = int(lengths.sum())
        positions, tokens = lengths.copy(), np.zeros(len(ids), np.int64)
        running = [True] * len(ids)
        decode = _Decoding(self.executable, tokens, positions, caches)
        for step in range(limit):
            for row, stream in enumerate(streams):
                if not running[row]:
                    continue
                tokens[row] = sampler.pick(logits[row], row)
                running[row] = int(tokens[row]) not in self.ends
                if stream is None:
                    yield row, int(tokens[row])
                elif running[row]:
                    if text := stream.push(int(tokens[row])):
                        yield row, text
                    running[row] = not stream.stopped
                if stream is not None and (not running[row] or step == limit - 1):
                    if text := stream.finish():
                        yield row, text
            if step == limit - 1 or not any(running):
                return
            begin = time.perf_counter()
            logits = decode()
            timing.decode_seconds += time.perf_counter() - begin
            timing.decode_tokens += sum(running)
            # A row that has ended writes over its own last place until the others end.
            positions += np.array(running, np.int64)

    def bits_per_character(self, text: str, window: int | None = None, batch: int = 8) -> float:
        """How many bits the model needs for a character of `text`.

        The text is cut into pieces of half a window, each predicted with up to half a window of text before it in view
        (and the begin token, if the model has one), so that every token counts exactly once.
        """
        if self.tokenizer is None:
            raise CheckpointError(f"{self.directory}: expected a tokenizer.json, as the input is text")
        tokens = self.tokenizer.encode(text, special=False)
        if not tokens:
            raise ValueError("expected a text of at least one token, but got none")
        start = [] if self.bos is None else [self.bos]
        window = window or min(self.context or 512, 1024)
        if window < 2:
            raise ValueError(f"expected window to be at least 2, but got {window}")
        half = window // 2
        pieces: dict[tuple[int, int], list[list[int]]] = {}
        for at in range(0, len(tokens), half):
            first = max(0, at - (window - half - 1))
            piece = start + tokens[first : at + half]
            # Without a begin token nothing predicts the first token of all.
            scored = max(1, at - first + len(start))
            pieces.setdefault((len(piece), scored), []).append(piece)
        nats = 0.0
        for (_, scored), group in pieces.items():
            for at in range(0, len(group), batch):
                ids = np.array(group[at : at + batch], np.int64)
                if ids.shape[1] > scored:
                    logits = self.forward(ids[:, :-1])[:, scored - 1 :].astype(np.float64)
                    logits -= logits.max(-1, keepdims=True)
                    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
                    nats -= np.take_along_axis(log_p, ids[:, scored:, None], -1).sum()
        return nats / math.log(2) / len(text)
