#!/usr/bin/env python3
"""Products with weights: the runtime's own code, the library that it opens (oneDNN), and PyTorch's linear, on one thread.

C[M,N] = A[M,K] * W[N,K]^T. Weights come from memory, as in a model: each call takes the next of enough copies that none stays in a
cache. `own` is what a compiled model calls by default: one order of sums for every M, in tiles, pairs or f32 as --isa has it. The
contestants take turns; which samples count is told by core_rate.py. GFLOP/s, GB/s of weights, and ratios to the better peer. With
--weights `own` is the product by tiles with integers and scales, and the others multiply with the numbers that these stand for.

    python benchmarks/products_cpu.py
    python benchmarks/products_cpu.py --isa amx --weights int4 --rows 65 512
    python benchmarks/products_cpu.py --type f32 --rows 1 512 --shape 2944x1024 --output products.json
"""

import argparse
import ctypes
import json
import sys
import tempfile
import time
from pathlib import Path

import ml_dtypes
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "benchmarks")]

from core_rate import Probe, at_least, cpu_name, has_feature, noise, sample  # noqa: E402

from diffattn import runtime  # noqa: E402
from diffattn.quantization import packed, quantized  # noqa: E402

TYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
#: diffattn_dtype, diffattn_gemm_flags and diffattn_gemm_backend of Runtime/ABI/Runtime.h.
CODES, TRANSPOSE_B, IN_ORDER = {"f32": 0, "f16": 1, "bf16": 2}, 1, 2
PRODUCTS = {"avx512bf16": 4, "amx": 8, "amx-emulated": 16}
AUTO, LIBRARY = 0, 4
#: Integers that share a scale.
GROUP = 128
#: Feature of the CPU that each instruction set needs, best first for bf16.
FEATURES = {"amx": "amx_bf16", "avx512bf16": "avx512_bf16", "avx512": "avx512f", "avx2": "avx2", "generic": "sse2"}


class Weight(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("packed", ctypes.c_void_p), ("rows", ctypes.c_int64), ("cols", ctypes.c_int64),
                ("dtype", ctypes.c_int32), ("flags", ctypes.c_int32)]


def shape(text):
    parts = text.split("x")
    if len(parts) != 2 or not all(p.isascii() and p.isdigit() and int(p) > 0 for p in parts):
        raise argparse.ArgumentTypeError(f"expected N and K, as 2944x1024, but got {text!r}")
    return tuple(map(int, parts))


class Product:
    """One product of each contestant; A and the weights are the same numbers for all."""

    def __init__(self, args, rows, columns, depth):
        self.args, self.rows, self.columns, self.depth = args, rows, columns, depth
        rng, dtype = np.random.default_rng(0), TYPES[args.type]
        self.a = rng.standard_normal((rows, depth), np.float32).astype(dtype)
        numbers = rng.standard_normal((columns, depth), np.float32)
        if args.weights:
            integers, self.scales = quantized(numbers, int(args.weights[-1]), GROUP)
            self.narrow = self.copies(packed(integers) if args.weights == "int4" else integers)
            numbers = integers * np.repeat(self.scales, GROUP, 1)
        self.weights = self.copies(numbers.astype(dtype))
        self.library = runtime.library().runtime
        self.at = 0

    def copies(self, one):
        return [one.copy() for _ in range(max(2, -(-(self.args.megabytes << 20) // one.nbytes)))]

    def quantized_call(self):
        """A call of the runtime with integers, and its result."""
        code, c = CODES[self.args.type], np.empty((self.rows, self.columns), TYPES[self.args.type])
        integer, pointer = ctypes.c_int64, ctypes.c_void_p

        def call():
            self.at = (self.at + 1) % len(self.narrow)
            self.library.diffattn_rt_quantized_gemm(code, code, int(self.args.weights[-1]), integer(GROUP), integer(self.rows),
                                                    integer(self.columns), integer(self.depth), pointer(self.a.ctypes.data),
                                                    integer(self.depth), pointer(self.narrow[self.at].ctypes.data),
                                                    pointer(self.scales.ctypes.data), PRODUCTS[self.args.isa], pointer(c.ctypes.data),
                                                    integer(self.columns), ctypes.c_float(0), integer(1))
        return call, c

    def runtime_calls(self, flags, backend):
        """A call of the runtime, and what frees the weights that it packed."""
        code, c = CODES[self.args.type], np.empty((self.rows, self.columns), TYPES[self.args.type])
        slots = [Weight(w.ctypes.data, None, self.columns, self.depth, code, 0) for w in self.weights]
        integer, pointer = ctypes.c_int64, ctypes.c_void_p

        def call():
            self.at = (self.at + 1) % len(slots)
            self.library.diffattn_rt_set_gemm_backend(backend)
            self.library.diffattn_rt_gemm(code, code, code, integer(self.rows), integer(self.columns), integer(self.depth),
                                          pointer(self.a.ctypes.data), integer(self.depth), pointer(slots[self.at].data),
                                          integer(self.depth), flags, pointer(c.ctypes.data), integer(self.columns), ctypes.c_float(0),
                                          ctypes.byref(slots[self.at]), integer(1))
            self.library.diffattn_rt_set_gemm_backend(AUTO)

        for _ in slots:  # packed before it is timed
            call()
        return call, c, lambda: [self.library.diffattn_rt_weight_release(ctypes.byref(slot)) for slot in slots]

    def torch_call(self):
        import torch

        torch.set_num_threads(1)
        def tensor(array):
            words = torch.from_numpy(array.view(np.int16 if array.dtype.itemsize == 2 else np.int32))
            return words.view({"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[self.args.type])

        a, weights = tensor(self.a), [tensor(w) for w in self.weights]

        def call():
            self.at = (self.at + 1) % len(weights)
            with torch.no_grad():
                return torch.nn.functional.linear(a, weights[self.at])

        return call

    def run(self, probe):
        if self.args.weights:
            own, result = self.quantized_call()
            freed = []
        else:
            own, result, free = self.runtime_calls(TRANSPOSE_B | IN_ORDER | PRODUCTS.get(self.args.isa, 0), AUTO)
            freed = [free]
        calls = {"own": own}
        if self.library.diffattn_rt_set_gemm_backend(LIBRARY) == 0:
            calls["library"], _, free = self.runtime_calls(TRANSPOSE_B, LIBRARY)
            freed.append(free)
        if not self.args.no_torch:
            calls["torch"] = self.torch_call()
        own()
        exact = self.a.astype(np.float64) @ self.weights[0].astype(np.float64).T
        error = np.abs(result.astype(np.float64) - exact).max() / np.abs(exact).max()
        if not error < 0.02:
            raise SystemExit(f"error: the product is wrong: {error:.2g} of the largest result")
        times = sample(probe, calls, self.args.turns)
        for free in freed:
            free()
        flop, read = 2.0 * self.rows * self.columns * self.depth, dict.fromkeys(times, self.weights[0].nbytes)
        if self.args.weights:
            read["own"] = self.narrow[0].nbytes + self.scales.nbytes
        row = {"M": self.rows, "N": self.columns, "K": self.depth, "error": error}
        for name, time_ in times.items():
            row[name] = time_ | {"gflops": flop / time_["seconds"] / 1e9, "GB/s": read[name] / time_["seconds"] / 1e9}
        peers = [row[name]["seconds"] for name in ("library", "torch") if name in row]
        row["times as fast as the better peer"] = min(peers) / row["own"]["seconds"] if peers else None
        return row, times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--type", choices=TYPES, default="bf16")
    parser.add_argument("--isa", choices=[*FEATURES, "amx-emulated"], help="by default the first of the list that this CPU has")
    parser.add_argument("--weights", choices=["int8", "int4"],
                        help=f"quantized, {GROUP} to a scale: by tiles, and so with --isa amx or amx-emulated alone")
    parser.add_argument("--rows", type=at_least(1), nargs="+", default=[1, 16, 64, 512])
    parser.add_argument("--shape", type=shape, nargs="+", default=[(2944, 1024), (1024, 2944), (1024, 1024)], metavar="NxK")
    parser.add_argument("--megabytes", type=at_least(1), default=128, help="of weights that are gone through")
    parser.add_argument("--turns", type=at_least(1), default=30)
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    args.isa = args.isa or next(isa for isa, feature in FEATURES.items() if has_feature(feature))
    if args.weights and not args.isa.startswith("amx"):
        parser.error(f"expected --isa amx or amx-emulated with --weights, but got {args.isa}")
    if args.weights and any(depth % GROUP for _, depth in args.shape):
        parser.error(f"expected shapes with a K that is a multiple of {GROUP} with --weights")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        probe = Probe(Path(folder), time.perf_counter)
        peaks = probe.peaks()
        print(f"{cpu_name()}, {args.type}, {args.isa}{f', {args.weights}' if args.weights else ''}; peaks " + ", ".join(
            f"{name} {rate:.0f} GFLOP/s" if isinstance(rate, float) else f"{name}: {rate}" for name, rate in peaks.items()))
        for columns, depth in args.shape:
            for count in args.rows:
                row, times = Product(args, count, columns, depth).run(probe)
                rows.append(row)
                ratio = row["times as fast as the better peer"]
                print(f"M {count:4} N {columns:5} K {depth:5}: " + ", ".join(
                    f"{name} {row[name]['gflops']:7.1f} GFLOP/s {row[name]['GB/s']:5.1f} GB/s" for name in times)
                    + (f"; {ratio:.2f}x" if ratio else "") + "  " + noise(times))
    if args.output:
        options = {key: value for key, value in vars(args).items() if key != "output"}
        args.output.write_text(json.dumps({"machine": cpu_name(), "options": options, "peaks": peaks, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
