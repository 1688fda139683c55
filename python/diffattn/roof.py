"""Peak rates of this machine, measured on the spot: of multiply-adds, and of reading memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from . import runtime

#: Bytes that are read, more than caches hold, and seconds that each probe takes.
_BYTES, _SECONDS = 1 << 28, 0.15


@dataclass(frozen=True)
class Roof:
    """threads   that the probes ran on
    gflops    10^9 operations a second of fused multiply-adds of f32, an FMA being two
    bf16_gflops   of products of bf16: as many, twice as many where the CPU has instructions for their sums, None if those are
              tiles of AMX, which no probe is made for
    gbs       10^9 bytes a second that are read from memory
    """

    threads: int
    gflops: float
    bf16_gflops: float | None
    gbs: float


@functools.lru_cache(maxsize=8)
def measure(threads: int) -> Roof:
    """The roof of so many threads: the best of what they reach at the same time, in about a third of a second."""
    return Roof(threads, *runtime.measure_roof(threads, _BYTES, _SECONDS))
