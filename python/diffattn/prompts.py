"""Prompts as callers give them: texts or token ids, one or several, and a seed for each."""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import checks
from .arrays import as_array
from .errors import CheckpointError, InputError, UsageError

if TYPE_CHECKING:
    from .generation import CompiledModel


def split_prompts(prompts) -> tuple[bool, list]:
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


def seeds_of(seed, count: int) -> list[int]:
    """One for each of so many prompts."""
    if not isinstance(seed, (list, tuple)):
        return [checks.integer("seed", seed)] * count
    if len(seed) != count:
        raise UsageError(f"seed: expected one for all prompts or {count}, one for each, but got {len(seed)}")
    return [checks.integer(f"seed[{number}]", value) for number, value in enumerate(seed)]


def token_ids(name: str, ids, vocabulary: int) -> np.ndarray:
    """Token ids of any integer type as int64, each below `vocabulary`."""
    array = as_array(ids, name)
    if array.size == 0 and not isinstance(ids, np.ndarray):
        array = np.zeros(array.shape, np.int64)  # an empty list has no type
    if array.dtype.kind not in "iu":
        raise InputError(f"{name}: expected token ids, which are integers, but got {array.dtype}")
    # Before they become int64, which holds less than uint64 does.
    wrong = array[(array < 0) | (array >= vocabulary)]
    if wrong.size:
        raise InputError(f"{name}: expected token ids to be at least 0 and below {vocabulary}, but got {wrong.flat[0]}")
    return np.ascontiguousarray(array, np.int64).reshape(array.shape)


def prompt_ids(model: CompiledModel, name: str, prompt) -> list[int]:
    """The tokens of a prompt that is a text or token ids, named `name` in errors; at least one."""
    if isinstance(prompt, str):
        if model.tokenizer is None:
            raise CheckpointError(f"{model.directory}: expected a tokenizer.json, as the prompt is text")
        ids = model.tokenizer.encode(checks.unicode_text(name, prompt))
        # A tokenizer that adds no begin token gives nothing for an empty prompt.
        ids = ids or ([model.bos] if model.bos is not None else [])
    else:
        ids = prompt
    array = token_ids(name, ids, model.vocabulary)
    if array.ndim != 1:
        raise InputError(f"{name}: expected a text or a list of token ids, but got shape {list(array.shape)}")
    if not array.size:
        raise InputError(f"{name}: expected a prompt of at least one token, but got none")
    return array.tolist()
