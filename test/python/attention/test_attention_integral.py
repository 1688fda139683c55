"""Integral attention (DINT) against the f64 reference in NumPy, on random configurations, and its properties."""
import warnings

import ml_dtypes
import numpy as np
import pytest

import diffattn
from attention_cases import BOUNDS, HALF_STEP
from attention_reference import attention as reference
from diffattn.errors import UsageError

TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def integral(*arrays, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return diffattn.attention(*arrays, integral=True, **options)


def draw(rng, dtype, heads=(4, 2, 2, 1, 2), tq=7, tk=19, d=8, dv=12, batch=2):
    make = lambda h, t, w: rng.standard_normal((batch, h, t, w)).astype(TYPES[dtype])
    hs, hn, hk1, hk2, hv = heads
    return [make(hs, tq, d), make(hk1, tk, d), make(hn, tq, d), make(hk2, tk, d), make(hv, tk, dv)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", range(8))
def test_random_configurations(dtype, seed):
    rng = np.random.default_rng(seed)
    pick = lambda *options: options[rng.integers(len(options))]
    # Signal heads of one noise head with values of their own, shared ones, and one head.
    heads = pick((4, 2, 2, 1, 2), (4, 2, 4, 2, 4), (6, 2, 3, 1, 1), (1, 1, 1, 1, 1))
    batch, tq, tk = pick(1, 2), pick(1, 2, 7, 33), pick(1, 5, 64, 130)
    arrays = draw(rng, dtype, heads, tq, tk, pick(1, 8, 33), pick(1, 16, 20), batch)
    lam = rng.normal(0.5, 0.4, pick((), (heads[0],), (batch, tq, heads[0]), (batch, tq, heads[1]))).astype(np.float32)
    options = dict(scale=0.25, softcap=pick(None, 5.0), norm=pick(None, "rms"), out_scale=0.5, kv_len=pick(None, rng.integers(0, tk + 1, batch)))
    bias = pick(None, rng.random((1, heads[1], tq, tk)) < 0.7, rng.standard_normal((batch, 1, 1, tk)).astype(np.float32))
    gate = pick(None, rng.standard_normal((batch, heads[0], tq, arrays[4].shape[3])).astype(TYPES[dtype]))
    sigmoid = pick(True, False)
    got = integral(*arrays, lam, attn_mask=bias, gate=gate, lam_activation="sigmoid" if sigmoid else None, **options)
    expected, bound = reference(*arrays, lam, bias=bias, gate=gate, lam_sigmoid=sigmoid, integral=True, **options)
    assert (np.abs(got.astype(np.float64) - expected) <= BOUNDS[dtype] * (bound + np.abs(expected)) + HALF_STEP[dtype] + 1e-30).all()


def test_weights_of_a_row_sum_to_one():
    arrays = draw(np.random.default_rng(1), "f32")
    arrays[4][:] = 1
    np.testing.assert_allclose(integral(*arrays, 0.7), 1, rtol=1e-6)
    assert not np.allclose(diffattn.attention(*arrays, 0.7), 1)


def test_equal_queries_see_plain_attention_of_equal_maps():
    # One row, and both maps equal: A1 - lam A1 + lam A1.
    q1, k1, _, _, v = draw(np.random.default_rng(2), "f32", (2, 2, 2, 2, 2), tq=1)
    np.testing.assert_allclose(integral(q1, k1, q1, k1, v, 0.9), diffattn.attention(q1, k1, q1, k1, v, 0.0), rtol=1e-5, atol=1e-6)


def test_a_row_without_keys_takes_the_mean():
    arrays = draw(np.random.default_rng(3), "f32", tq=3)
    mask = np.ones((1, 1, 3, 19), bool)
    mask[..., 1, :] = False
    got = integral(*arrays, 0.5, attn_mask=mask)
    expected, _ = reference(*arrays, np.float32(0.5), scale=8**-0.5, bias=mask, integral=True)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
    assert np.abs(got[:, :, 1]).min() > 0
    assert np.all(integral(*arrays, 0.5, kv_len=0) == 0)


def test_a_device_computes_the_same():
    arrays = draw(np.random.default_rng(4), "f16", batch=1)
    here, there = integral(*arrays, 0.5), integral(*arrays, 0.5, target="cuda-sim:sm_80")
    np.testing.assert_allclose(there.astype(np.float32), here.astype(np.float32), rtol=2e-3, atol=1e-3)


def test_what_it_is_told():
    arrays = draw(np.random.default_rng(5), "f32", d=24)
    with pytest.warns(RuntimeWarning, match="no kernel computes integral attention"):
        diffattn.attention(*arrays, 0.25, integral=True)
    for options in (dict(is_causal=True), dict(window=(3, None))):
        with pytest.raises(UsageError, match="integral: expected no is_causal and no window with it"):
            diffattn.attention(*arrays, 0.5, integral=True, **options)
    ids = (np.zeros((2, 7), np.int64), np.zeros((2, 19), np.int64))
    with pytest.raises(UsageError, match="integral: expected no segment_ids with it"):
        diffattn.attention(*arrays, 0.5, integral=True, segment_ids=ids)
    with pytest.raises(UsageError, match="integral: expected"):
        diffattn.attention(*arrays, 0.5, integral="yes")
