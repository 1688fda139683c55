"""Maps of decoders, by the entry `inspect` of their graphs (docs/models.md)."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .. import checks
from ..arguments import FilePath
from ..checkpoint import Checkpoint, open_checkpoint
from ..errors import CheckpointError, InputError, UsageError
from ..generation_config import read_defaults
from ..model import build_graph
from ..models.probe import PARTS
from ..runtime import Executable
from ..tokenizer import TextStream, Tokenizer
from .attention import Attention
from .collection import Maps, Run

#: Largest magnitude of a factor of lambda.
MOST_FACTOR = 1000.0


def inspect(directory: FilePath, prompt: str | Sequence[int], *, layers: Sequence[int] | None = None,
            factors: Sequence[float] = (1.0,), dtype: str | None = None, threads: int | None = None) -> Maps:
    """The maps of a decoder in a directory for a text or a list of ids, of all `layers` unless some are named.

    The model is compiled anew, and run once with each of `factors` of lambda; maps are those with factor 1. They take 2 (d + w) bytes
    or more of memory a token, layer and head, and no more than a few rows of a map do at a time.

    Raises ConfigError for a model whose attention cannot be looked at, InputError and UsageError for wrong arguments, RunError where
    maps are not what the model used.
    """
    checkpoint = open_checkpoint(Path(directory))
    factors = [checks.number(f"factors[{i}]", factor, f"a number from {-MOST_FACTOR:g} to {MOST_FACTOR:g}",
                             lambda factor: abs(factor) <= MOST_FACTOR) for i, factor in enumerate(factors)]
    module = build_graph(checkpoint, dtype, inspect=True)
    known = sorted(module.attentions)
    if layers is not None:
        layers = sorted({checks.integer("layers", layer, 0, known[-1]) for layer in layers})
        if wrong := [layer for layer in layers if layer not in known] if layers else [None]:
            raise UsageError(f"layers: expected layers with attention, {', '.join(map(str, known))}, but got {checks.shown(wrong[0])}")
    layers = known if layers is None else layers
    tokenizer = Tokenizer(checkpoint.tokenizer_file) if checkpoint.tokenizer_file else None
    ids = _ids(checkpoint, tokenizer, prompt, module.types["model.embed_tokens.weight"][0][0])
    context = checkpoint.config.get("max_position_embeddings")
    if isinstance(context, int) and len(ids) > context:
        warnings.warn(f"{len(ids)} tokens are more than the {context} that the model was made for")
    executable = Executable(str(module), weights=[str(file) for file in checkpoint.files], threads=threads)
    given = np.array([ids], np.int64)
    targets = np.append(given[:, 1:], [[0]], axis=1)

    def run(factor: float, chosen: Sequence[int]) -> tuple[Run, list[np.ndarray]]:
        log_p, logits, *parts = executable.call("inspect", given, targets, np.array(factor, np.float32), np.array(chosen, np.int64))
        return Run(factor, log_p[0, :-1] * np.float32(-1 / math.log(2)), _log_softmax(logits[0])), parts

    plain, parts = run(1.0, layers)
    elem = dtype or checkpoint.dtype
    attentions = [_attention(layer, module.attentions[layer], dict(zip(PARTS, (part[n] for part in parts))), elem)
                  for n, layer in enumerate(layers)]
    pieces, characters = _pieces(tokenizer, ids)
    maps = Maps(checkpoint.directory.resolve().name, pieces, attentions, [plain if factor == 1 else run(factor, [])[0] for factor in factors],
                text_of=None if tokenizer is None else functools.partial(_text_of, tokenizer), characters=characters)
    maps.check()
    return maps


def _attention(layer: int, window: int | None, parts: dict[str, np.ndarray], elem: str) -> Attention:
    """One layer's attention, of the only sequence of a batch; heads come before tokens."""
    q1, k1, q2, k2, v, x = (parts[name][0].swapaxes(0, 1) for name in ("q1", "k1", "q2", "k2", "v", "x"))
    lam = parts["lambda"]
    lam = lam[0].T if lam.ndim else np.broadcast_to(lam, (q1.shape[0],))
    if lam.shape[0] != q1.shape[0]:  # one lambda for each noise head
        lam = np.repeat(lam, q1.shape[0] // lam.shape[0], axis=0)
    return Attention(q1, k1, q2, k2, v, lam, q1.shape[-1] ** -0.5, layer, window=window, lse1=parts["lse1"][0], lse2=parts["lse2"][0],
                     out=x, elem=elem)


def _ids(checkpoint: Checkpoint, tokenizer: Tokenizer | None, prompt: str | Sequence[int], vocabulary: int) -> list[int]:
    if isinstance(prompt, str):
        if tokenizer is None:
            raise CheckpointError(f"{checkpoint.directory}: expected a tokenizer.json, as the prompt is text")
        ids = tokenizer.encode(checks.unicode_text("prompt", prompt))
        bos = read_defaults(checkpoint.directory, checkpoint.config).bos
        ids = ids or ([bos] if bos is not None else [])
    else:
        ids = [checks.integer(f"prompt[{i}]", token) for i, token in enumerate(prompt)]
    if not ids:
        raise InputError("prompt: expected at least one token, but got none")
    if max(ids) >= vocabulary:
        raise InputError(f"prompt: expected token ids below {vocabulary}, but got {max(ids)}")
    return ids


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64) - logits.max()
    return (logits - np.log(np.exp(logits).sum())).astype(np.float32)


def _text_of(tokenizer: Tokenizer, token: int) -> str:
    """A token's own text, or its name where it has none that stands alone."""
    text = tokenizer.decode([token])
    return text if text and "\ufffd" not in text else tokenizer.inner.id_to_token(token) or f"<{token}>"


def _pieces(tokenizer: Tokenizer | None, ids: list[int]) -> tuple[list[str], int | None]:
    """A text for each token, and the characters behind the first one."""
    if tokenizer is None:
        return [f"<{token}>" for token in ids], None
    stream = TextStream(tokenizer, [])
    pieces = [stream.push(token) for token in ids]
    return [piece or _text_of(tokenizer, token) for piece, token in zip(pieces, ids)], sum(map(len, pieces[1:]))
