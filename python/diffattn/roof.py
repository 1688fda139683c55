"""Peak rates of this machine, measured on the spot: of multiply-adds, and of reading memory."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .runtime import Executable

#: Sums that are kept at once, more than the latency of any CPU's FMA needs, and vectors that are read at once.
_SUMS, _LOADS = 16, 8
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
    features = _features()
    lanes = 16 if "avx512f" in features else 8 if "fma" in features else 4
    codes = [Executable(_fma(lanes), name="fma") for _ in range(threads)]
    rounds = 2_000_000  # some milliseconds, beside which a call of Python is nothing
    gflops = _rate(threads, lambda number: codes[number].call("main", rounds, np.float32(0.5), np.float32(0.1))) * rounds * _SUMS * lanes * 2
    readers = [Executable(_read(lanes), name="read") for _ in range(threads)]
    parts = np.ones((threads, _BYTES // 4 // threads // (_LOADS * lanes) * _LOADS * lanes), np.float32)
    gbs = _rate(threads, lambda number: readers[number].call("main", parts[number])) * parts[0].nbytes
    bf16 = None if "amx_bf16" in features else gflops * (2 if "avx512_bf16" in features else 1)
    return Roof(threads, gflops / 1e9, bf16 if bf16 is None else bf16 / 1e9, gbs / 1e9)


def _features() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split(":")[1].split())
    return set()


def _rate(threads: int, call: Callable[[int], object]) -> float:
    """Calls a second of all threads together: the sum of each one's quickest, which what else runs can only slow down."""
    best, ready = [0.0] * threads, threading.Barrier(threads)

    def run(number: int) -> None:
        call(number)  # code and pages that are cold
        ready.wait()
        end = time.perf_counter() + _SECONDS
        while (begin := time.perf_counter()) < end:
            call(number)
            best[number] = max(best[number], 1 / (time.perf_counter() - begin))

    others = [threading.Thread(target=run, args=(number,)) for number in range(1, threads)]
    for other in others:
        other.start()
    run(0)
    for other in others:
        other.join()
    return sum(best)


def _fma(lanes: int) -> str:
    vector = f"vector<{lanes}xf32>"
    numbers = range(_SUMS)
    return f"""
func.func @main(%rounds: i64, %x: f32, %y: f32) -> f32 {{
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %v = vector.broadcast %x : f32 to {vector}
  %w = vector.broadcast %y : f32 to {vector}
  {''.join(f'''
  %n{i} = arith.constant {i}.5 : f32
  %s{i} = vector.broadcast %n{i} : f32 to {vector}''' for i in numbers)}
  %sums:{_SUMS} = scf.for %i = %c0 to %rounds step %c1 iter_args({', '.join(f'%a{i} = %s{i}' for i in numbers)})
      -> ({', '.join([vector] * _SUMS)}) : i64 {{
    {''.join(f'''
    %b{i} = vector.fma %a{i}, %v, %w : {vector}''' for i in numbers)}
    scf.yield {', '.join(f'%b{i}' for i in numbers)} : {', '.join([vector] * _SUMS)}
  }}
  {_total(vector, _SUMS)}
}}
"""


def _read(lanes: int) -> str:
    vector = f"vector<{lanes}xf32>"
    return f"""
func.func @main(%m: memref<?xf32>) -> f32 {{
  %c0 = arith.constant 0 : index
  %step = arith.constant {_LOADS * lanes} : index
  %size = memref.dim %m, %c0 : memref<?xf32>
  %zero = arith.constant 0.0 : f32
  %z = vector.broadcast %zero : f32 to {vector}
  %sums:{_LOADS} = scf.for %i = %c0 to %size step %step iter_args({', '.join(f'%a{i} = %z' for i in range(_LOADS))})
      -> ({', '.join([vector] * _LOADS)}) {{
    {''.join(f'''
    %o{i} = arith.constant {i * lanes} : index
    %at{i} = arith.addi %i, %o{i} : index
    %l{i} = vector.load %m[%at{i}] : memref<?xf32>, {vector}
    %b{i} = arith.addf %a{i}, %l{i} : {vector}''' for i in range(_LOADS))}
    scf.yield {', '.join(f'%b{i}' for i in range(_LOADS))} : {', '.join([vector] * _LOADS)}
  }}
  {_total(vector, _LOADS)}
}}
"""


def _total(vector: str, count: int) -> str:
    """The sum of all numbers of the sums, so that none of them can be left out."""
    lines = [f"%t{i} = arith.addf {f'%t{i - 1}' if i > 1 else '%sums#0'}, %sums#{i} : {vector}" for i in range(1, count)]
    return "\n  ".join([*lines, f"%sum = vector.reduction <add>, %t{count - 1} : {vector} into f32", "return %sum : f32"])
