"""Choosing the next token from logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from . import checks
from .errors import RunError


def uniform(seed: int, choice: int, step: int) -> float:
    """A number of [0, 1) that depends on these three alone: Philox 4x64 with the key (seed, choice) and the counter `step`."""
    return np.random.Generator(np.random.Philox(key=seed | choice << 64, counter=step)).random()


@dataclass
class Sampler:
    """Greedy at temperature 0; else draws from the softmax of the logits divided by the temperature.

    `top_k` keeps the k most likely tokens (0: all), `top_p` then the fewest whose probabilities reach p, `min_p` then those with at
    least that share of the largest probability. Before all that, logits of tokens that came before are divided by
    `repetition_penalty` if they are positive, else multiplied with it; of those that were generated `presence_penalty` is taken off,
    and `frequency_penalty` for each time; and `logit_bias` is added to those of the ids that it names. A draw depends on the logits,
    the seed, the number of the choice among those of one request, and the step: not on other requests.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.temperature = checks.number("temperature", self.temperature, "a finite number of at least 0", lambda x: x >= 0)
        self.top_k = checks.integer("top_k", self.top_k)
        self.top_p = checks.number("top_p", self.top_p, "a number above 0 and at most 1", lambda x: 0 < x <= 1)
        self.repetition_penalty = checks.number("repetition_penalty", self.repetition_penalty, "a finite number above 0",
                                                lambda x: x > 0)
        self.min_p = checks.number("min_p", self.min_p, "a number from 0 to 1", lambda x: 0 <= x <= 1)
        self.presence_penalty = checks.number("presence_penalty", self.presence_penalty)
        self.frequency_penalty = checks.number("frequency_penalty", self.frequency_penalty)
        self.logit_bias = {checks.integer("logit_bias", token): checks.number(f"logit_bias[{token}]", bias)
                           for token, bias in self.logit_bias.items()}

    def pick(self, logits: np.ndarray, before: Sequence[int] = (), *, generated: int = 0, seed: int = 0, choice: int = 0, step: int = 0) -> int:
        """A token from the logits `[V]` of one row; `before` are the tokens that came before it, of which the last `generated` were
        generated. See `uniform` for the others."""
        logits = self._moved(logits, before, generated)
        first = int(logits.argmax())  # the first NaN, if there is one
        if not np.isfinite(logits[first]):
            raise RunError(f"expected logits of which the largest is finite, but got {logits[first]} for token {first}")
        if self.temperature == 0:
            return first
        scores = logits.astype(np.float64)
        # A tiny temperature then makes -inf of all others, and no infinity that is subtracted from itself.
        with np.errstate(over="ignore"):
            scores = (scores - scores[first]) / self.temperature
        order = self._head(scores)
        weights = np.exp(scores[order])
        weights /= weights.sum()
        if self.top_p < 1:
            enough = int(np.searchsorted(np.cumsum(weights), self.top_p)) + 1
            order, weights = order[:enough], weights[:enough]
        if self.min_p:
            enough = int(np.searchsorted(-weights, -self.min_p * weights[0], side="right"))
            order, weights = order[:enough], weights[:enough]
        drawn = np.searchsorted(np.cumsum(weights), uniform(seed, choice, step) * weights.sum(), side="right")
        return int(order[min(int(drawn), len(order) - 1)])

    def _head(self, scores: np.ndarray) -> np.ndarray:
        """The ids that `top_k` keeps, the likeliest first, of equal ones the lowest."""
        if not 0 < self.top_k < len(scores):
            return np.argsort(-scores, kind="stable")
        # All are sorted only where all are kept: a vocabulary takes milliseconds.
        kept = np.flatnonzero(scores >= np.partition(scores, -self.top_k)[-self.top_k])
        return kept[np.argsort(-scores[kept], kind="stable")][: self.top_k]

    def _moved(self, logits: np.ndarray, before: Sequence[int], generated: int) -> np.ndarray:
        """The logits with penalties and biases, of another array where there are any."""
        repeats = self.repetition_penalty != 1 and len(before) > 0
        counts = (self.presence_penalty != 0 or self.frequency_penalty != 0) and generated > 0
        if not (repeats or counts or self.logit_bias):
            return logits
        logits = logits.astype(np.float64)
        if repeats:
            ids = np.unique(np.asarray(before, np.int64))
            logits[ids] *= np.where(logits[ids] > 0, 1 / self.repetition_penalty, self.repetition_penalty)
        if counts:
            ids, times = np.unique(np.asarray(before[len(before) - generated :], np.int64), return_counts=True)
            logits[ids] -= self.presence_penalty + self.frequency_penalty * times
        for token, bias in self.logit_bias.items():
            logits[token] += bias
        return logits


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities, f64, by the logits `[V]` of one row."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    return scores - np.log(np.exp(scores).sum())
