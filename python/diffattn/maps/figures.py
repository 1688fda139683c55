"""Summary of a head: a small picture of its difference, numbers over its rows, and how far it is from what the model used.

A row is that of a query: A1 and A2 are its weights of the keys in both maps, D = A1 - lambda A2. Figures are means over all queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .attention import ROWS, Attention

#: Rows and columns of a picture, at most.
CELLS = 64

#: By name: what a figure is, for those who read a report.
FIGURES = {
    "lambda": "factor of map 2",
    "entropy1": "entropy of A1, in bits",
    "entropy2": "entropy of A2, in bits",
    "entropy": "entropy of |D| / sum of |D|, in bits",
    "first1": "what A1 gives the first token",
    "first": "the first token's share of |D|",
    "negative": "sum of -D where D is below 0",
    "cancelled": "sum of min(A1, lambda A2): what map 2 takes away from map 1",
}

#: By type: how far X may be from its second computation, as a share of the sum of what was added up for it (docs/numerics.md).
LIMITS = {"f32": 5e-5, "f16": 1.5e-3, "bf16": 1.2e-2}


@dataclass
class Summary:
    """Summary of one layer. `pictures` `[H,n,m]` f32: how much a query of a cell gives the keys of a cell by D, on average; `figures` `[H]` f32
    by name; `errors` `[H]`: the largest difference from the model's own result, as a share of the sum of absolute terms; None where the
    model's result is not known; `limit`: the largest error that is accepted."""

    pictures: np.ndarray
    figures: dict[str, np.ndarray]
    errors: np.ndarray | None
    limit: float


def edges(count: int, most: int = CELLS) -> np.ndarray:
    """Where the cells of `count` rows begin: as many cells as rows, or `most`."""
    cells = min(count, most)
    return np.arange(cells) * count // cells


def pooled(rows: np.ndarray, of_rows: np.ndarray, of_columns: np.ndarray) -> np.ndarray:
    """Sums over the columns of cells and means over their rows; both are given by where they begin."""
    cells = np.add.reduceat(np.add.reduceat(rows, of_columns, axis=1), of_rows, axis=0)
    return cells / np.diff(of_rows, append=rows.shape[0])[:, None]


def summarize(attention: Attention) -> Summary:
    heads, (of_rows, of_columns) = range(attention.heads), (edges(attention.queries), edges(attention.keys))
    pictures = np.zeros((attention.heads, len(of_rows), len(of_columns)), np.float32)
    figures = {name: np.zeros(attention.heads, np.float32) for name in FIGURES}
    errors = None if attention.out is None else np.zeros(attention.heads)
    for head in heads:
        _summarize_head(attention, head, of_rows, of_columns, pictures[head], figures, errors)
    return Summary(pictures, figures, errors, LIMITS[attention.elem])


def _summarize_head(attention: Attention, head: int, of_rows: np.ndarray, of_columns: np.ndarray, picture: np.ndarray,
                    figures: dict[str, np.ndarray], errors: np.ndarray | None) -> None:
    lam, values, count = attention.lam_of(head), attention.values(head), attention.queries
    totals = dict.fromkeys(figures, 0.0)
    totals["lambda"] = float(lam.sum(dtype=np.float64))
    starts = [*of_rows, count]
    step = max(1, ROWS * len(of_rows) // count)  # cells that a tile has
    for cell in range(0, len(of_rows), step):
        own = of_rows[cell : cell + step]
        first, last = int(own[0]), int(starts[min(cell + step, len(of_rows))])
        a1, a2 = attention.rows(head, first, last)
        taken = a2 * lam[first:last, None]
        difference = a1 - taken
        picture[cell : cell + step] = pooled(difference, own - first, of_columns)
        _add(totals, a1, a2, taken, difference)
        if errors is not None:
            off = _error(attention, head, first, last, values, (difference, a1 + np.abs(taken)))
            errors[head] = max(errors[head], off) if off == off else np.nan
    for name, total in totals.items():
        figures[name][head] = total / count


def _add(totals: dict[str, float], a1: np.ndarray, a2: np.ndarray, taken: np.ndarray, difference: np.ndarray) -> None:
    """Adds up figures of some rows."""
    size = np.abs(difference)
    mass = size.sum(-1)
    some = np.maximum(mass, np.finfo(np.float32).tiny)
    rows = {"entropy1": _entropy(a1), "entropy2": _entropy(a2), "entropy": _entropy(size / some[:, None]), "first1": a1[:, 0],
            "first": size[:, 0] / some, "negative": (mass - difference.sum(-1)) / 2,
            "cancelled": np.maximum(np.minimum(a1, taken), 0).sum(-1)}
    for name, row in rows.items():
        totals[name] += float(row.sum(dtype=np.float64))


def _entropy(weights: np.ndarray) -> np.ndarray:
    """Entropy of each row, in bits; 0 log 0 is 0."""
    logs = np.log2(np.maximum(weights, np.finfo(np.float32).tiny))
    logs *= weights
    return -logs.sum(-1)


def _error(attention: Attention, head: int, first: int, last: int, values: np.ndarray, weights: tuple[np.ndarray, np.ndarray]) -> float:
    """The largest error of these rows, as a share of the sum of absolute terms, (A1 + |lambda| A2) |v|, taken through the norm as
    docs/numerics.md says."""
    difference, added = weights
    x, bound = difference @ values, added @ np.abs(values)
    norm = attention.norm
    if norm is not None:
        root = np.sqrt((x * x).mean(-1, keepdims=True) + norm.eps)
        x = x / root
        bound = (bound + np.abs(x) * np.sqrt((bound * bound).mean(-1, keepdims=True))) / root
        factor = np.float32(norm.scale) * (np.float32(1) if norm.weight is None else norm.weight)
        x, bound = x * factor, bound * np.abs(factor)
    off = np.abs(x - attention.out[head, first:last])
    return float((off / np.maximum(bound, np.finfo(np.float32).tiny)).max(initial=0))
