"""What the tables of sequences and pages hold, checked before a call (docs/spec.md, Sequences and pages).

Compiled code for CPUs checks it too, but without the arguments' names; on a device the host does not read tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import as_array
from .errors import InputError


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
