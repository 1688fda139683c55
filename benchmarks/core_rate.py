"""Peak rate of this core, and which samples count: shared by the benchmarks of the CPU.

A probe that does nothing but fused multiply-adds runs before and after each sample, and a sample counts only if both came near the
rate that the probe reaches on a quiet core: what a neighbour disturbed is thrown away.
"""

import ctypes
import math
import platform
import statistics
import subprocess
import threading
from pathlib import Path

#: A sample counts if the probes around it came this near to a quiet core; so many samples at least, of so many turns at most
#: for each that was asked for.
GATE, LEAST_KEPT, MOST_TURNS = 0.93, 3, 4
#: Seconds: a call that takes less is repeated until a sample takes as long.
SHORT = 0.004

PROBE = r"""
typedef float v __attribute__((vector_size(BYTES)));
float diffattn_fma(long rounds) {
  v a[NUMBER], x = (v){} + 0.5f, y = (v){} + 0.1f;
  for (int i = 0; i < NUMBER; ++i) a[i] = (v){} + 1e-3f * i;
  for (long r = 0; r < rounds; ++r) {
    for (int i = 0; i < NUMBER; ++i) a[i] = a[i] * x + y;
    __asm__ volatile("" ::: "memory");
  }
  float sum = 0;
  for (int i = 0; i < NUMBER; ++i) sum += a[i][0];
  return sum;
}
float diffattn_read(const char *p, long bytes) {
  v a[8] = {};
  for (long at = 0; at + 8 * (long)sizeof(v) <= bytes; at += 8 * sizeof(v))
    for (int i = 0; i < 8; ++i) a[i] += *(const v *)(p + at + i * sizeof(v));
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += a[i][0];
  return sum;
}
"""

#: Dot products of bf16 pairs: 32 products a vector.
PAIRS = r"""
#include <immintrin.h>
float diffattn_pairs(long rounds) {
  __m512 a[16];
  __m512bh x = (__m512bh)_mm512_set1_epi16(0x3f00), y = (__m512bh)_mm512_set1_epi16(0x3a00);
  for (int i = 0; i < 16; ++i) a[i] = _mm512_set1_ps(1e-3f * i);
  for (long r = 0; r < rounds; ++r) {
    for (int i = 0; i < 16; ++i) a[i] = _mm512_dpbf16_ps(a[i], x, y);
    __asm__ volatile("" ::: "memory");
  }
  float sum = 0;
  for (int i = 0; i < 16; ++i) sum += _mm512_reduce_add_ps(a[i]);
  return sum;
}
"""

#: Tiles of AMX: 16 x 16 sums of 32 products. Fails with the system's error where the process may not use them.
TILES = r"""
#include <errno.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
float diffattn_tiles(long rounds) {
  if (syscall(SYS_arch_prctl, 0x1023, 18)) return -(float)errno;
  struct { unsigned char palette, start, none[14]; unsigned short bytes[16]; unsigned char rows[16]; }
      __attribute__((packed)) config = {.palette = 1};
  for (int i = 0; i < 8; ++i) config.bytes[i] = 64, config.rows[i] = 16;
  _tile_loadconfig(&config);
  _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3); _tile_zero(4); _tile_zero(5); _tile_zero(6); _tile_zero(7);
  for (long r = 0; r < rounds; ++r) {
    _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 0;
}
"""


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def has_feature(name):
    """Whether the CPU has a feature, by the kernel's name of it."""
    return any(name in line.split() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))


class Probe:
    """The rates that this core reaches: fused multiply-adds (of 256 bits if not `wide`), and reading memory."""

    def __init__(self, folder, clock, wide=True):
        self.folder, self.clock, self.is_wide = folder, clock, wide and has_feature("avx512f")
        bytes_, number = (64, 16) if self.is_wide else (32, 12)
        self.library = self._compile("probe", PROBE.replace("BYTES", str(bytes_)).replace("NUMBER", str(number)))
        self.library.diffattn_read.argtypes = [ctypes.c_void_p, ctypes.c_long]
        self.library.diffattn_read.restype = self.library.diffattn_fma.restype = ctypes.c_float
        self.rounds, self.flop = 30000, 2 * bytes_ // 4 * number
        self.rates = []
        for _ in range(100):
            self.rate()

    def _compile(self, name, text, *options):
        source, library = self.folder / f"{name}.c", self.folder / f"{name}.so"
        source.write_text(text)
        compiler = next((c for c in ("clang-22", "clang", "cc") if subprocess.run(
            ["sh", "-c", f"command -v {c}"], capture_output=True, check=False).returncode == 0), None)
        if compiler is None:
            raise SystemExit("expected a C compiler for the probe (clang-22, clang or cc), but found none")
        # Compilers split vectors of 64 bytes for CPUs of Intel unless they are told otherwise.
        whole = ["-mprefer-vector-width=512"] * self.is_wide
        subprocess.run([compiler, "-O3", "-march=native", *whole, *options, "-ffp-contract=fast", "-shared", "-fPIC", "-Wno-psabi",
                        "-o", str(library), str(source)], check=True)
        return ctypes.CDLL(str(library))

    @property
    def best(self):
        """The rate of a quiet core: one that the probe reached several times. A single reading may be a boost of the clock."""
        return sorted(self.rates, reverse=True)[min(4, len(self.rates) - 1)]

    def rate(self):
        """The best of three: the first after other work pays for cold code and for a clock that has to rise."""
        best = max(self._once(self.library.diffattn_fma, self.rounds, self.flop) for _ in range(3))
        self.rates.append(best)
        return best

    def _once(self, function, rounds, flop):
        begin = self.clock()
        refused = function(rounds)
        seconds = self.clock() - begin
        return rounds * flop / seconds / 1e9 if refused >= 0 else 0.0

    def peaks(self):
        """GFLOP/s of each kind of product instruction, or why there is no number."""
        rates_by_name = {"fma f32": self.best}
        for name, features, text, options, flop in (
                ("vdpbf16ps", ["avx512_bf16"], PAIRS, ["-mavx512bf16"], 16 * 32 * 2),
                ("amx bf16", ["amx_tile", "amx_bf16"], TILES, ["-mamx-tile", "-mamx-bf16"], 4 * 16384)):
            if not all(map(has_feature, features)):
                rates_by_name[name] = "not on this CPU"
                continue
            function = getattr(self._compile(name.split()[0], text, *options), "diffattn_pairs" if text is PAIRS else "diffattn_tiles")
            function.restype, function.argtypes = ctypes.c_float, [ctypes.c_long]
            rates = sorted(self._once(function, self.rounds, flop) for _ in range(60))
            rates_by_name[name] = rates[-5] or "refused by the system"
        return rates_by_name

    def read(self, arrays, threads):
        """Reads all of `arrays`, each thread its part."""
        def part(number):
            for a in arrays:
                size = a.nbytes // threads
                self.library.diffattn_read(a.ctypes.data + number * size, size)

        helpers = [threading.Thread(target=part, args=(i,)) for i in range(1, threads)]
        for helper in helpers:
            helper.start()
        part(0)
        for helper in helpers:
            helper.join()


def choose(samples, best):
    """The samples (seconds, rate of the worse probe) that count, as seconds, and the gate that they passed: a part of `best`.

    Where fewer than LEAST_KEPT pass GATE, the gate is as much lower as it must be."""
    ranked = sorted((rate / best for _, rate in samples), reverse=True)
    gate = min(GATE, ranked[min(LEAST_KEPT, len(ranked)) - 1])
    return [seconds for seconds, rate in samples if rate / best >= gate], gate


def quartiles(values):
    low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return {"median": median, "quartiles": [low, high]}


def timed(clock, call, repeat):
    """Seconds of one call: of several, one after the other, where `repeat` and a single one would mostly pay for what the contestant before
    it left in the caches."""
    begin = clock()
    call()
    seconds = clock() - begin
    if not repeat or seconds >= SHORT:
        return seconds
    count = math.ceil(SHORT / max(seconds, SHORT / 1000))
    begin = clock()
    for _ in range(count):
        call()
    return (clock() - begin) / count


def sample(probe, calls, turns, prepare=None):
    """For each call the least time of the samples that count, their median and quartiles, their number, that of all, and the gate.

    `prepare` is called with the name before each sample, outside of its time, which is then that of one call."""
    samples = {name: [] for name in calls}
    for turn in range(turns * MOST_TURNS):
        # Judged anew each time: what a quiet core reaches is known better and better.
        chosen = {n: choose(s, probe.best) for n, s in samples.items() if s}
        if turn >= turns and all(gate == GATE for _, gate in chosen.values()):
            break
        for name, call in calls.items():
            before = probe.rate()
            if prepare:
                prepare(name)
            seconds = timed(probe.clock, call, repeat=prepare is None)
            samples[name].append((seconds, min(before, probe.rate())))
    result = {}
    for name in calls:
        kept, gate = choose(samples[name], probe.best)
        result[name] = {"seconds": min(kept), **quartiles(kept), "kept": len(kept), "of": len(samples[name]), "gate": gate}
    return result


def noise(times):
    """How many samples count, how far quartiles lie apart, and a warning where the core was never quiet."""
    least, gate = min((t["kept"], t["of"]) for t in times.values()), min(t["gate"] for t in times.values())
    apart = max(t["quartiles"][1] / t["quartiles"][0] - 1 for t in times.values())
    text = f"[at least {least[0]} of {least[1]} samples kept, quartiles up to {apart:.0%} apart"
    return text + (f"; NOISY: probes around them reached {gate:.0%} of a quiet core only]" if gate < GATE else "]")


def at_least(least):
    """A converter of command-line integers."""
    import argparse

    def convert(text):
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, but got {text!r}")
        return int(text)

    return convert
