"""Checks of the tables of sequences and pages before a call (docs/spec.md, Sequences and pages).

Compiled code for CPUs checks it too, but without the arguments' names; on a device the host does not read tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import checks
from .arguments import ArrayLike
from .arrays import OnDevice, as_array
from .errors import InputError

#: The largest position.
HIGHEST = checks.MOST_INT64


def check_bounds(name: str, bounds: Any, rows: int, what: str) -> None:
    """`bounds`, cu_seqlens_q or cu_seqlens_k: from 0 to `rows`, the number of `what`, without falling."""
    bounds = as_array(bounds, name)
    if bounds[0] != 0:
        raise InputError(f"{name}: expected 0 as the first number, but got {bounds[0]}")
    falling = np.flatnonzero(bounds[1:] < bounds[:-1])
    if falling.size:
        at = int(falling[0]) + 1
        raise InputError(f"{name}: expected numbers that do not fall, but got {bounds[at]} after {bounds[at - 1]} at {at}")
    if bounds[-1] != rows:
        raise InputError(f"{name}: expected {rows}, the number of {what}, as the last number, but got {bounds[-1]}")


def check_pages(table: Any, lengths: Any, pages: int, rows: int) -> None:
    """`table`, block_table [N, M]: pages from 0 and below `pages` for all keys that `lengths`, kv_len [N], counts and that there is
    room for, with `rows` keys in a page."""
    table, lengths = as_array(table, "block_table"), as_array(lengths, "kv_len")
    # Not by rounding up, which wraps at the end of int64.
    needed = np.arange(table.shape[1], dtype=np.int64) * rows < lengths[:, None]
    wrong = np.argwhere(needed & ((table < 0) | (table >= pages)))
    if wrong.size:
        sequence, place = (int(index) for index in wrong[0])
        raise InputError(f"block_table: expected pages from 0 and below {pages}, but got {table[sequence, place]} as page {place} of "
                         f"sequence {sequence}")


class PageTable:
    """Pages of the sequences of several calls, as the layers of a model make them in a step: `attention` takes it as `block_table`, and
    checks it then by its sizes alone.

    block_table     [N, M], int32 or int64, as `attention` takes it
    kv_len          [N], or a number for all sequences
    pages, rows     how many pages there are, and keys in a page: those of k1, k2 and v
    cu_seqlens_q    [N + 1], int32 or int64, for packed queries, of which there are `queries`

    All are in memory of the host, and copied. Raises InputError for what `attention` would refuse.
    """

    def __init__(self, block_table: ArrayLike, kv_len: ArrayLike, *, pages: int, rows: int, cu_seqlens_q: ArrayLike = None,
                 queries: int | None = None) -> None:
        self.pages, self.rows = checks.integer("pages", pages, 1), checks.integer("rows", rows, 1)
        self.block_table = _copied("block_table", block_table, 2)
        self.sequences = len(self.block_table)
        self.cu_seqlens_q, self.queries = None, None
        if cu_seqlens_q is not None:
            self.cu_seqlens_q = _copied("cu_seqlens_q", cu_seqlens_q, 1)
            self.queries = checks.integer("queries", queries, 0)
            if len(self.cu_seqlens_q) != self.sequences + 1:
                raise InputError(f"cu_seqlens_q: expected shape [{self.sequences + 1}], but got [{len(self.cu_seqlens_q)}]")
            check_bounds("cu_seqlens_q", self.cu_seqlens_q, self.queries, "queries")
        self.kv_len = positions("kv_len", kv_len, self.sequences, 0)
        check_pages(self.block_table, self.kv_len, self.pages, self.rows)

    def check_sizes(self, pages: int, rows: int, queries: int) -> None:
        """Raises InputError where a call has other pages or queries than those that were checked."""
        for name, mine, its in (("pages", self.pages, pages), ("rows", self.rows, rows), ("queries", self.queries, queries)):
            if mine is not None and mine != its:
                raise InputError(f"block_table: expected a PageTable of {name}={its}, as the call has them, but got one of {mine}")


def positions(name: str, value: Any, batch: int, low: int) -> np.ndarray:
    """`value`, a number or an array, as int64 positions, one for each sequence of the batch. Raises InputError below `low`."""
    array = as_array(value, name)
    if isinstance(array, OnDevice):
        raise InputError(f"{name}: expected a number or an array in memory of the host, but got an array on a device")
    check_positions(name, array.dtype, array.shape, batch)
    # Before they become int64, which holds less than uint64 does.
    if array.size and (int(array.min()) < low or int(array.max()) > HIGHEST):
        raise InputError(f"{name}: expected {low} to {HIGHEST}, but got {array.min()} to {array.max()}")
    return np.ascontiguousarray(np.broadcast_to(array.astype(np.int64), (batch,)))


def check_positions(name: str, dtype: np.dtype, shape: tuple[int, ...], batch: int) -> None:
    """Raises InputError for kv_len or q_offset of another type or shape than calls of `batch` sequences take."""
    if dtype.kind not in "iu":
        raise InputError(f"{name}: expected integers, but got {dtype}")
    if shape not in ((), (batch,)):
        raise InputError(f"{name}: expected a number or shape [{batch}], but got {list(shape)}")


def _copied(name: str, value: Any, rank: int) -> np.ndarray:
    array = as_array(value, name)
    if isinstance(array, OnDevice):
        raise InputError(f"{name}: expected an array in memory of the host, but got one on a device")
    if array.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
        raise InputError(f"{name}: expected int32 or int64, but got {array.dtype}")
    if array.ndim != rank:
        raise InputError(f"{name}: expected rank {rank}, but got shape {list(array.shape)}")
    return np.array(array, order="C")
