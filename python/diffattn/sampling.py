"""Choosing the next token from logits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Sampler:
    """Greedy at temperature 0; else draws from the softmax of the logits divided by the temperature.

    `top_k` keeps the k most likely tokens (0: all), `top_p` then the fewest whose probabilities reach p. Each row of a
    batch draws from its own stream of random numbers, so a prompt's text does not depend on its neighbours.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    streams: dict[int, np.random.Generator] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"expected temperature to be finite and at least 0, but got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"expected top_k to be at least 0, but got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"expected top_p to be above 0 and at most 1, but got {self.top_p}")
        if self.seed < 0:
            raise ValueError(f"expected seed to be at least 0, but got {self.seed}")

    def pick(self, logits: np.ndarray, row: int = 0) -> int:
        """A token from the logits `[V]` of one row."""
        if self.temperature == 0:
            return int(np.argmax(logits))
        scores = logits.astype(np.float64) / self.temperature
        order = np.argsort(-scores, kind="stable")
        if self.top_k:
            order = order[: self.top_k]
        weights = np.exp(scores[order] - scores[order[0]])
        weights /= weights.sum()
        if self.top_p < 1:
            enough = int(np.searchsorted(np.cumsum(weights), self.top_p)) + 1
            order, weights = order[:enough], weights[:enough]
        stream = self.streams.setdefault(row, np.random.default_rng([self.seed, row]))
        drawn = np.searchsorted(np.cumsum(weights), stream.random() * weights.sum(), side="right")
        return int(order[min(int(drawn), len(order) - 1)])
