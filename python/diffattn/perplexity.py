"""Likelihoods of texts: bits that a model needs for a character."""
from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import numpy as np

from . import checks
from .arguments import Progress
from .errors import CheckpointError, InputError
from .generation_config import MOST_TOKENS

if TYPE_CHECKING:
    from .generation import CompiledModel


def bits_per_character(model: CompiledModel, text: str, window: int | None, batch: int, progress: Progress | None) -> float:
    """`CompiledModel.bits_per_character`."""
    text = checks.unicode_text("text", text)
    window = None if window is None else checks.integer("window", window, 2, MOST_TOKENS)
    batch = checks.integer("batch", batch, 1, MOST_TOKENS)
    checks.callback("progress", progress)
    if not model.is_decoder:
        raise InputError(f"expected a decoder, but got {model.kind}, which has no text to predict")
    if model.tokenizer is None:
        raise CheckpointError(f"{model.directory}: expected a tokenizer.json, as the input is text")
    if "score" not in model.executable.entries:
        raise InputError(f"{model.directory}: expected the function score among those of a decoder, as they are compiled now, but got "
                         f"{', '.join(model.executable.entries)}")
    tokens = model.tokenizer.encode(text, special=False)
    if not tokens:
        raise InputError("text: expected at least one token, but got none")
    start = [] if model.bos is None else [model.bos]
    if window is not None and model.context and window > model.context:
        warnings.warn(f"{window} tokens are more than the {model.context} that the model was made for")
    window = window or min(model.context or 512, 1024)
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
                log_p = model.executable.call("score", ids[:, :-1].copy(), ids[:, 1:].copy())[0]
                nats -= log_p[:, scored - 1 :].sum(dtype=np.float64)
            done += len(ids)
            if progress is not None:
                progress(done, total)
    return nats / math.log(2) / len(text)
