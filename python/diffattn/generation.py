"""Uses of a model whose functions are compiled: logits of whole sequences, text that streams, bits per character."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np

from . import checks, decoding, files, perplexity
from .arguments import ArrayLike, Progress
from .arrays import as_array
from .calls import CompiledCode
from .decoding import Batch, Timing
from .device import DeviceArray
from .errors import InputError, RunError
from .generation_config import MOST_TOKENS, GenerationDefaults, read_defaults
from .models.config import Config
from .prefill import Prefills
from .prompts import prompt_ids, seeds_of, split_prompts, token_ids
from .tokenizer import TextStream, Tokenizer


def _float32(name: str, value) -> np.ndarray:
    """Numbers that float32 holds: of a narrower type, or of lists, whose numbers have no type of their own."""
    array = as_array(value, name)
    untyped = not isinstance(value, (np.ndarray, np.generic)) and not hasattr(value, "__dlpack__") and array.dtype.kind in "iuf"
    if not untyped and (array.dtype.kind == "b" or not np.can_cast(array.dtype, np.float32)):
        raise InputError(f"{name}: expected float32, but got {array.dtype}; convert it first")
    return np.ascontiguousarray(array, np.float32).reshape(array.shape)


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
        inputs = token_ids("inputs", inputs, self.vocabulary) if self.is_decoder else _float32("inputs", inputs)
        return self.executable.call("forward", inputs)[0]

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
        single, given = split_prompts(prompts)
        seeds = seeds_of(seed, len(given))
        stop = self.defaults.stop if stop is None else checks.texts("stop", stop)
        ids = [prompt_ids(self, "prompts" if single else f"prompts[{i}]", prompt) for i, prompt in enumerate(given)]
        streams = [TextStream(self.tokenizer, i, stop) if isinstance(p, str) else None for p, i in zip(given, ids)]
        if max_new_tokens is None:
            max_new_tokens = self.defaults.limit(max(map(len, ids)))
        longest = max(map(len, ids)) + max_new_tokens
        if self.context and longest > self.context:
            warnings.warn(f"{longest} tokens are more than the {self.context} that the model was made for")
        pieces = self._pieces(Batch(ids, streams, sampler, seeds, max_new_tokens, self.ends))
        return (piece for _, piece in pieces) if single else pieces

    def _pieces(self, batch: Batch) -> Iterator:
        self.timing = Timing()
        yield from decoding.pieces(self.executable, self._prefills, self.new_caches, batch, self.timing)

    def bits_per_character(self, text: str, window: int | None = None, batch: int = 8, progress: Progress | None = None) -> float:
        """How many bits the model needs for a character of `text`. `progress(done, total)` is called with numbers of pieces.

        The text is cut into pieces of half a window, each predicted with up to half a window of text before it in view
        (and the begin token, if the model has one), so that every token counts exactly once.
        """
        return perplexity.bits_per_character(self, text, window, batch, progress)
