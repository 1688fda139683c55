"""Attention of more than eight queries by tiles, on their emulation, against what docs/numerics.md says it rounds."""
import ml_dtypes
import numpy as np
import pytest

import diffattn

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
    # What is left are numbers near the middle of two others, which errors of the polynomial round to the other side.
    assert error(expected(*wide, 0.6, scale)) < 0.4 * exact
    truncated = lambda x: (np.asarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    assert error(expected(*wide, 0.6, scale, round_to=truncated)) > exact


@pytest.mark.parametrize("keys", [96, 127, 300])
def test_weights_of_a_row_sum_to_one(keys):
    """Roundings of many weights cancel: a wrong partner of the last key, or bits cut off, would not."""
    arrays = draw(64, keys, 32, 16, seed=1)
    arrays[4][...] = 1
    got = run(arrays, 0.0, 0.2)
    assert abs(got.mean() - 1) < 2e-4 and np.abs(got - 1).max() < 2e-3
