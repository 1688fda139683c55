"""Attention of more than eight queries by tiles, on their emulation, against what docs/numerics.md says it rounds."""
import ctypes
import re
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import diffattn
from kernel_library import memref
from paths import LLVM

#: Keys of a KV block of these kernels: exponentials are relative to the maximum that is known there.
BLOCK = 128


def rounded(x):
    """To bf16, halves away from 0."""
    bits = np.asarray(x, np.float32).view(np.uint32) + np.uint32(0x8000)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def weights_of(scores, scale, numerator, round_to=rounded):
    """Exponentials, block by block, and what each of them is multiplied with: both [row, key], in f64."""
    maximum, total = np.full(len(scores), -np.inf), np.zeros(len(scores))
    exponentials, maxima = np.empty_like(scores), np.empty_like(scores)
    for first in range(0, scores.shape[1], BLOCK):
        block = scores[:, first:first + BLOCK]
        before, maximum = maximum, np.maximum(maximum, block.max(axis=1))
        exact = np.exp((block - maximum[:, None]) * scale)
        total = total * np.exp((before - maximum) * scale) + exact.sum(axis=1)
        exponentials[:, first:first + BLOCK], maxima[:, first:first + BLOCK] = round_to(exact), maximum[:, None]
    return exponentials, np.exp((maxima - maximum[:, None]) * scale) * (numerator / total)[:, None]


def expected(q1, k1, q2, k2, v, lam, scale, round_to=rounded):
    e1, c1 = weights_of(q1 @ k1.T, scale, 1.0, round_to)
    e2, c2 = weights_of(q2 @ k2.T, scale, lam, round_to)
    return round_to(e1 * c1 - e2 * c2) @ v


def draw(queries, keys, d, dv, seed):
    rng = np.random.default_rng(seed)
    make = lambda length, width: rng.standard_normal((1, 1, length, width)).astype(ml_dtypes.bfloat16)
    return make(queries, d), make(keys, d), make(queries, d), make(keys, d), make(keys, dv)


def run(arrays, lam, scale):
    out = np.empty((*arrays[0].shape[:3], arrays[4].shape[3]), np.float32)
    return diffattn.attention(*arrays, lam, scale=scale, target="cpu:amx-emulated", out=out)[0, 0].astype(np.float64)


@pytest.mark.parametrize("queries, keys, d, dv", [(40, 300, 64, 32), (9, 129, 24, 40), (70, 257, 32, 16)])
def test_exponentials_and_weights_are_rounded_and_nothing_else(queries, keys, d, dv):
    arrays, scale = draw(queries, keys, d, dv, seed=keys), d**-0.5
    got = run(arrays, 0.6, scale)
    wide = [array[0, 0].astype(np.float64) for array in arrays]
    error = lambda want: np.sqrt(np.mean((got - want) ** 2))
    exact = error(expected(*wide, 0.6, scale, round_to=lambda x: x))
    # The error that remains comes from numbers near the middle of two others, which errors of the polynomial round to the other side.
    assert error(expected(*wide, 0.6, scale)) < 0.4 * exact
    truncated = lambda x: (np.asarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    assert error(expected(*wide, 0.6, scale, round_to=truncated)) > exact


@pytest.mark.parametrize("keys", [96, 127, 300])
def test_weights_of_a_row_sum_to_one(keys):
    """Roundings of many weights cancel; bits that are cut off, or keys left out, would not."""
    arrays = draw(64, keys, 32, 16, seed=1)
    arrays[4][...] = 1
    got = run(arrays, 0.0, 0.2)
    assert abs(got.mean() - 1) < 2e-4 and np.abs(got - 1).max() < 2e-3


def exponentials(build_dir, folder, target):
    """The kernels of exponentials of `target`, masked and whole, and how many queries they take."""
    source = folder / "attention.mlir"
    q, v = memref("bf16", 4, [1, 2, 192, 32]), memref("bf16", 4, [1, 2, 192, 16])
    source.write_text(f"func.func @f(%q: {q}, %v: {v}, %l: memref<f32>, %o: {v}) {{\n"
                      f"  diffattn.attention ins(%q, %q, %q, %q, %v : {q}, {q}, {q}, {q}, {v}) lambda(%l : memref<f32>) outs(%o : {v})\n"
                      "      {scale = 0.125 : f32, is_causal}\n  return\n}\n")
    text = subprocess.run([str(build_dir / "bin/diffattn-run"), str(source), "--emit=llvm", f"--target=cpu:{target}"], capture_output=True, text=True,
                          check=True).stdout
    text = re.sub(r'llvm.func private @("?diffattn_\w*exp_)', r"llvm.func @\1", text.replace("_amx-emulated", "_amx_emulated"))
    names = sorted(set(re.findall(r'llvm.func @"?(diffattn_\w*exp_\w+_scaled_r(\d+)_16_\w+)', text)))
    ir = subprocess.run([str(LLVM / "mlir-translate"), "--mlir-to-llvmir"], input=text, capture_output=True, text=True, check=True).stdout
    shared = folder / f"{target}.so"
    subprocess.run([str(LLVM / "clang"), "-x", "ir", "-", "-O2", "-Wno-override-module", "-fPIC", "-shared", "-o", str(shared), "-x", "none",
                    str(build_dir / "lib/libDiffAttnRuntime.so"), f"-Wl,-rpath,{build_dir}/lib"], input=ir, text=True, check=True)
    library = ctypes.CDLL(str(shared))
    assert len(names) == 2 and "masked" in names[0][0], names
    return [getattr(library, name) for name, _ in names], int(names[0][1])


@pytest.mark.skipif("avx512dq" not in Path("/proc/cpuinfo").read_text(), reason="no AVX-512DQ: what exponentials have there was not compared")
def test_instructions_of_avx512_have_the_bits_of_others(build_dir, tmp_path):
    """The kernels of exponentials for `amx`, which need no tiles, against those that emulate it: x is cut into an integer and the rest by other
    instructions. From -128 to 0 in steps of 2^-13, magnitudes of all sizes, integers and what lies beside them, and NaN."""
    (masked, whole), lanes = exponentials(build_dir, tmp_path, "amx")
    others, other_lanes = exponentials(build_dir, tmp_path, "amx-emulated")
    assert other_lanes == lanes
    rng = np.random.default_rng(4)
    integers = np.arange(-127, 1, dtype=np.float32)
    scores = np.concatenate([-np.arange(2**20) / 2**13, -rng.random(2**20) * 2.0**rng.integers(-40, 8, 2**20),
                             np.nextafter(integers, np.float32(-999)), np.nextafter(integers[:-1], np.float32(0)),
                             [0, -0.0, -1e-45, -1e-30, -0.5, -125.5, -126, -126.5, -1e30, -np.inf, np.nan] * 96]).astype(np.float32)
    scores = np.resize(scores, (len(scores) // lanes + 1, lanes))

    def run(kernel, weights, maximum, factor):
        pairs, sums = np.zeros((-(-len(weights) // 2), lanes), np.uint32), np.zeros(lanes, np.float32)
        maxima = np.full(lanes, maximum, np.float32)
        address = lambda array: ctypes.c_void_p(array.ctypes.data)
        kernel(address(weights), ctypes.c_int64(len(weights)), address(maxima), address(sums), ctypes.c_float(factor), address(pairs))
        halves = pairs.view(np.uint16).reshape(-1, lanes, 2).transpose(0, 2, 1).reshape(-1, lanes)[:len(weights)]
        return halves.view(ml_dtypes.bfloat16).astype(np.float32), sums

    for kernel, other, factor, maximum, rows in ((whole, others[1], 1.0, 0.0, slice(None)), (masked, others[0], 1.0, 0.0, slice(1, None)),
                                                 (masked, others[0], 0.18, 1.5, slice(None)), (whole, others[1], 0.18, -0.25, slice(2, 101))):
        weights = np.ascontiguousarray(scores[rows])
        got, sums = run(kernel, weights, maximum, factor)
        wanted, other_sums = run(other, weights, maximum, factor)
        np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(sums, other_sums)
        exact = np.exp2(np.maximum((weights.astype(np.float64) - maximum) * factor, -126))
        exact[np.isneginf(weights) & (kernel is masked)] = 0
        np.testing.assert_allclose(got, exact, rtol=2.0**-8 + 8e-5)
