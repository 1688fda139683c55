"""The maps of a model for one text or image, and what came of it with other factors of lambda."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .. import checks
from ..errors import RunError, UsageError
from .attention import Attention
from .figures import Summary, summarize

#: Heads that are shown in full, unless others are asked for.
SHOWN = 16


@dataclass
class Run:
    """The model with its lambdas times `factor`: `bits` `[T-1]` f32 that each token but the first needed, and the log-probabilities
    `[V]` f32 of what follows the last."""

    factor: float
    bits: np.ndarray
    next_log_p: np.ndarray


@dataclass
class Maps:
    """`tokens` are texts, of which queries and keys are; `attentions` those of some layers, in order.

    runs         with each factor of lambda, in their order; none where the model was run by another library
    text_of      the text of an id that a run's `next_log_p` counts; None: there is no tokenizer
    characters   of the text behind the first token, for bits per character; None: it is not known
    grid, image  of images: rows and columns of patches, which are the last tokens; and the picture `[h,w,3]` uint8
    """

    title: str
    tokens: list[str]
    attentions: list[Attention]
    runs: list[Run] = field(default_factory=list)
    text_of: Callable[[int], str] | None = None
    characters: int | None = None
    grid: tuple[int, int] | None = None
    image: np.ndarray | None = None

    @property
    def layers(self) -> list[int]:
        return [attention.layer for attention in self.attentions]

    @cached_property
    def summaries(self) -> list[Summary]:
        """The summary of each attention."""
        return [summarize(attention) for attention in self.attentions]

    def figures(self, name: str) -> np.ndarray:
        """One of `FIGURES` by layer and head, `[layers, H]` f32."""
        checks.choice("name", name, tuple(self.summaries[0].figures))
        return np.stack([summary.figures[name] for summary in self.summaries])

    # ---- maps -------------------------------------------------------------------------------------------------

    def attention(self, layer: int) -> Attention:
        for attention in self.attentions:
            if attention.layer == layer:
                return attention
        raise UsageError(f"layer: expected one of {', '.join(map(str, self.layers))}, but got {checks.shown(layer)}")

    def maps(self, layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
        """A1 and A2 of a head, `[T,K]` f32."""
        attention = self.attention(layer)
        return attention.rows(checks.integer("head", head, 0, attention.heads - 1), 0, attention.queries)

    def difference(self, layer: int, head: int) -> np.ndarray:
        """A1 - lambda A2 of a head, `[T,K]` f32."""
        a1, a2 = self.maps(layer, head)
        return a1 - self.attention(layer).lam_of(head)[:, None] * a2

    def most_negative(self, count: int = SHOWN) -> list[tuple[int, int]]:
        """Layer and head of the `count` heads with most negative mass, the most first."""
        heads = [(float(mass), attention.layer, head) for attention, summary in zip(self.attentions, self.summaries)
                 for head, mass in enumerate(summary.figures["negative"])]
        return [(layer, head) for _, layer, head in sorted(heads, key=lambda entry: (-entry[0], *entry[1:]))[:count]]

    # ---- how true they are ------------------------------------------------------------------------------------

    @property
    def largest_error(self) -> float | None:
        """Largest distance of the sums of values by these maps from those that the model used, as a share of the sum of absolute terms; None where
        it is not known."""
        errors = [summary.errors.max(initial=0) for summary in self.summaries if summary.errors is not None]
        return float(max(errors)) if errors else None

    @property
    def limit(self) -> float:
        """Largest `largest_error` that is accepted."""
        return max(summary.limit for summary in self.summaries)

    def check(self) -> None:
        """Raises RunError where maps are not what the model used."""
        for attention, summary in zip(self.attentions, self.summaries):
            if summary.errors is None:
                continue
            wrong = np.flatnonzero(~(summary.errors <= summary.limit))
            if wrong.size:
                raise RunError(f"layer {attention.layer}, head {wrong[0]}: expected maps that give the model's own attention within {summary.limit:g} "
                               f"of what is added up, but got {summary.errors[wrong[0]]:g}")

    # ---- lambda -----------------------------------------------------------------------------------------------

    def bits_per_unit(self, run: Run) -> float | None:
        """Bits per character of the text, or per token where its characters are not known; None of a single token."""
        count = self.characters or len(run.bits)
        return float(run.bits.sum(dtype=np.float64)) / count if len(run.bits) else None

    def likeliest(self, count: int = 8) -> list[int]:
        """The ids that are among the `count` likeliest next ones in any run, those with most probability at factor 1 (or the
        first run) first."""
        if not self.runs:
            return []
        ids = sorted({int(i) for run in self.runs for i in np.argsort(-run.next_log_p, kind="stable")[:count]})
        run = min(self.runs, key=lambda run: abs(run.factor - 1))
        return sorted(ids, key=lambda i: -run.next_log_p[i])


def chosen_heads(maps: Maps, heads: Sequence[tuple[int, int]] | None) -> list[tuple[int, int]]:
    """The heads to show in full, each checked; None: those with most negative mass."""
    if heads is None:
        return maps.most_negative()
    for layer, head in heads:
        most = maps.attention(layer).heads - 1
        if not 0 <= head <= most:
            raise UsageError(f"heads: expected heads from 0 to {most} of layer {layer}, but got {head}")
    return list(heads)
