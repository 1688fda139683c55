"""One attention whose maps are made again, row by row, from what it used.

Shapes are those of one sequence: H signal heads, Hn noise heads (a divisor of H), T queries, K keys. Heads share keys and values as
`diffattn.attention` has them (docs/spec.md). All arithmetic is f32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

#: A score that no exponential of f32 reaches: unlike minus infinity, it may be multiplied by 0.
_UNSEEN = np.float32(-1e30)
#: Rows that are made at a time: a tile of them, of a thousand keys, stays in a core's cache.
ROWS = 128


@dataclass
class Norm:
    """Norm of X: y = x / rms(x) * weight * scale, where rms(x) is sqrt(mean x^2 + eps)."""

    weight: np.ndarray | None
    eps: float
    scale: float


@dataclass
class Attention:
    """q1 `[H,T,d]`, q2 `[Hn,T,d]`, k1 and k2 `[heads,K,d]`, v `[heads,K,w]`, of any float type.

    lam      `[H]` or `[H,T]` f32: the factor of map 2, as it was used
    layer    its number in the model
    causal   query i sees keys up to i; `window`: and at most so many before its own
    mask     `[1 or Hn, T, K]` f32 that is added to the scores of both maps; None: none
    lse1     `[H,T]` and lse2 `[Hn,T]` f32: logarithms of the sums of exponentials, as the model had them; None: they are made again
    out      `[H,T,w]` f32: what the model made of the values, X or, with `norm`, Y; None: there is nothing to compare with
    elem     the type in which the model computed: f32, f16 or bf16
    """

    q1: np.ndarray
    k1: np.ndarray
    q2: np.ndarray
    k2: np.ndarray
    v: np.ndarray
    lam: np.ndarray
    scale: float
    layer: int
    causal: bool = True
    window: int | None = None
    mask: np.ndarray | None = None
    lse1: np.ndarray | None = None
    lse2: np.ndarray | None = None
    out: np.ndarray | None = None
    norm: Norm | None = None
    elem: str = "f32"

    @property
    def heads(self) -> int:
        return self.q1.shape[0]

    @property
    def queries(self) -> int:
        return self.q1.shape[1]

    @property
    def keys(self) -> int:
        return self.k1.shape[1]

    def lam_of(self, head: int) -> np.ndarray:
        """The factor of map 2 for each query, `[T]` f32."""
        return np.broadcast_to(np.asarray(self.lam[head], np.float32), (self.queries,))

    def values(self, head: int) -> np.ndarray:
        """The values of a head, `[K,w]` f32."""
        return self.v[head // (self.heads // self.v.shape[0])].astype(np.float32)

    def rows(self, head: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """A1 and A2 of queries `first` to `last` - 1: `[last-first, K]` f32."""
        noise = head // (self.heads // self.q2.shape[0])
        return (self._map(self.q1, self.k1, self.lse1, head, noise, first, last),
                self._map(self.q2, self.k2, self.lse2, noise, noise, first, last))

    def tiles(self, head: int, rows: int = ROWS) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
        """First and last query and the rows of both maps, for all queries."""
        for first in range(0, self.queries, rows):
            last = min(first + rows, self.queries)
            yield (first, last, *self.rows(head, first, last))

    def _map(self, q: np.ndarray, k: np.ndarray, sums: np.ndarray | None, head: int, noise: int, first: int, last: int) -> np.ndarray:
        keys = k[head // (q.shape[0] // k.shape[0])]
        seen = min(last, self.keys) if self.causal else self.keys  # keys behind the last row are seen by none
        scores = (q[head, first:last].astype(np.float32) * np.float32(self.scale)) @ keys[:seen].astype(np.float32).T
        if self.mask is not None:
            scores += self.mask[noise % self.mask.shape[0], first:last, :seen]
        if self.causal or self.window is not None:
            place, key = np.arange(first, last)[:, None], np.arange(seen)
            hidden = key > place if self.causal else np.zeros((last - first, seen), bool)
            if self.window is not None:
                hidden |= place - key > self.window
            scores[hidden] = _UNSEEN
        np.maximum(scores, _UNSEEN, out=scores)
        if sums is None:
            most = scores.max(-1, keepdims=True, initial=_UNSEEN)
            total = most + np.log(np.exp(scores - most).sum(-1, keepdims=True, dtype=np.float32))
        else:
            total = sums[head, first:last, None].astype(np.float32)
        # A row that sees nothing is one of zeros.
        scores -= np.where(total > _UNSEEN / 2, total, np.float32(0))
        whole = np.zeros((last - first, self.keys), np.float32)
        np.exp(scores, out=whole[:, :seen])
        return whole
