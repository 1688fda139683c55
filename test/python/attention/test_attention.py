"""diffattn.attention against the oracle in f64."""
import re

import ml_dtypes
import numpy as np
import pytest

import attention_reference
import diffattn
from attention_cases import HALF_STEP, TYPES, module_of
from diffattn import _attention, attention_module, runtime
from diffattn.errors import RunError

BF16 = ml_dtypes.bfloat16
#: Error over sum (A1 + |lam| A2) |v|: the two maps cancel by design, so relative error would judge the cancellation.
BOUNDS = {np.dtype(np.float32): 5e-5, np.dtype(np.float16): 1.5e-3, np.dtype(BF16): 1.2e-2}
#: Beside it, for results below the normal range.
STEPS = {np.dtype(TYPES[name]): step for name, step in HALF_STEP.items()}


def reference(*operands, scale=None, attn_mask=None, lam_activation=None, kv_len=None, q_offset=None, **options):
    """The result in f64, and the magnitude that its error is judged by; with the arguments of `diffattn.attention`."""
    batch, _, _, width = operands[0].shape
    if attn_mask is not None:
        attn_mask = attn_mask.reshape((1,) * (4 - attn_mask.ndim) + attn_mask.shape)
    kv_len, q_offset = (None if number is None else np.broadcast_to(number, (batch,)) for number in (kv_len, q_offset))
    out, magnitude = attention_reference.attention(*operands, scale=width**-0.5 if scale is None else scale, bias=attn_mask, kv_len=kv_len,
                                                   q_offset=q_offset, lam_sigmoid=lam_activation is not None, **options)
    return out, magnitude + np.abs(out) + 1e-30


def make(rng, dtype, shape):
    return rng.normal(size=shape).astype(dtype)


def inputs(seed, dtype=np.float32, batch=2, heads=(4, 4, 2, 2, 2), queries=33, keys=33, width=16, value=32):
    rng = np.random.default_rng(seed)
    hs, hn, hk1, hk2, hv = heads
    return (make(rng, dtype, (batch, hs, queries, width)), make(rng, dtype, (batch, hk1, keys, width)),
            make(rng, dtype, (batch, hn, queries, width)), make(rng, dtype, (batch, hk2, keys, width)),
            make(rng, dtype, (batch, hv, keys, value)))


def check(arrays, lam, **options):
    got = diffattn.attention(*arrays, lam, **options)
    want, size = reference(*arrays, lam, **options)
    assert got.dtype == arrays[0].dtype and got.shape == want.shape
    error = np.maximum(np.abs(got.astype(np.float64) - want) - STEPS[got.dtype], 0) / size
    assert error.max() <= BOUNDS[got.dtype], f"error {error.max():.2e} at {np.unravel_index(error.argmax(), error.shape)}"
    return got


RNG = np.random.default_rng(7)
CASES = {
    "plain": dict(),
    "causal": dict(is_causal=True),
    "scale": dict(scale=0.3),
    "window": dict(window=(5, 3)),
    "window-one-side": dict(window=(4, None), is_causal=True),
    "softcap": dict(softcap=2.0, is_causal=True),
    "mask": dict(attn_mask=RNG.random((2, 1, 33, 33)) < 0.6),
    "mask-2d": dict(attn_mask=RNG.random((33, 33)) < 0.6),
    "mask-keys": dict(attn_mask=RNG.random((2, 1, 1, 33)) < 0.6),
    "mask-empty-rows": dict(attn_mask=RNG.random((2, 4, 33, 33)) < 0.03),
    "bias": dict(attn_mask=RNG.normal(size=(1, 4, 33, 33)).astype(np.float32)),
    "norm": dict(norm="rms", out_scale=0.8),
    "norm-weight-outside": dict(norm="rms", norm_weight=RNG.normal(size=32).astype(np.float32), norm_eps=1e-3,
                                norm_eps_mode="outside"),
    "gate": dict(gate=RNG.normal(size=(2, 4, 33, 32)).astype(np.float32)),
    "kv-len": dict(kv_len=np.array([20, 33]), is_causal=True),
    "kv-len-and-offset": dict(kv_len=np.array([20, 33]), q_offset=np.array([0, 0]), is_causal=True),
    "offset-number": dict(q_offset=2, is_causal=True),
}


@pytest.mark.parametrize("name", CASES)
def test_options(name):
    check(inputs(1), 0.4, **CASES[name])


@pytest.mark.parametrize("dtype", [np.float16, BF16])
@pytest.mark.parametrize("options", [dict(is_causal=True), dict(norm="rms", out_scale=0.5)], ids=["causal", "norm"])
def test_types(dtype, options):
    check(inputs(2, dtype, queries=40, keys=70), 0.4, **options)


LAMBDAS = {"head": (4,), "token-signal-head": (2, 33, 4), "token-noise-head": (2, 33, 2)}


@pytest.mark.parametrize("form", LAMBDAS)
@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_lambda(form, activation):
    arrays = inputs(3, heads=(4, 2, 1, 1, 1))
    check(arrays, np.random.default_rng(1).normal(size=LAMBDAS[form]).astype(np.float32), lam_activation=activation)


@pytest.mark.parametrize("heads", [(1, 1, 1, 1, 1), (8, 2, 2, 1, 4), (6, 3, 1, 3, 2)])
@pytest.mark.parametrize("queries, keys", [(1, 1), (1, 50), (17, 65), (70, 3)])
def test_shapes(heads, queries, keys):
    check(inputs(4, heads=heads, queries=queries, keys=keys), 0.7, is_causal=True)


@pytest.mark.parametrize("width, value", [(1, 1), (3, 5), (64, 128), (128, 64)])
def test_widths(width, value):
    check(inputs(5, width=width, value=value), 0.7)


def test_strided_views_are_taken_as_they_are():
    rng = np.random.default_rng(6)
    batch, length, heads, width = 2, 21, 4, 16
    # [B, T, 2 H d] as projections make it: heads in adjacent pairs, and values behind a transpose.
    q = rng.normal(size=(batch, length, heads, 2, width)).astype(np.float32)
    k = rng.normal(size=(batch, length, heads, 2, width)).astype(np.float32)
    v = rng.normal(size=(batch, length, heads, 2 * width)).astype(np.float32)
    split = lambda x: [np.moveaxis(x[..., i, :], 1, 2) for i in (0, 1)]
    (q1, q2), (k1, k2) = split(q), split(k)
    views = (q1, k1, q2, k2, np.moveaxis(v, 1, 2))
    got = check(views, 0.4, is_causal=True)
    dense = [np.ascontiguousarray(x) for x in views]
    np.testing.assert_array_equal(got, diffattn.attention(*dense, 0.4, is_causal=True))
    # A last axis that is not dense, and one that runs backwards.
    check((q1[..., ::2], k1[..., ::2], q2[..., ::2], k2[..., ::2], views[4][:, :, :, ::-1]), 0.4)


def test_shared_keys_count_as_one(monkeypatch):
    monkeypatch.setattr(_attention, "_compiled", {})
    q1, k1, q2, _, v = inputs(8)
    got = check((q1, k1, q2, k1, v), 0.4)
    assert len(_attention._compiled) == 1
    np.testing.assert_allclose(got, diffattn.attention(q1, k1, q2, k1.copy(), v, 0.4), rtol=1e-5, atol=1e-6)
    assert len(_attention._compiled) == 2


def test_shared_keys_of_one_query():
    q1, k1, q2, _, v = inputs(8, queries=1)
    got = check((q1, k1, q2, k1, v), 0.4)
    np.testing.assert_array_equal(got, diffattn.attention(q1, k1, q2, k1.copy(), v, 0.4))


def test_new_lengths_do_not_compile(monkeypatch):
    monkeypatch.setattr(_attention, "_compiled", {})
    check(inputs(9, batch=1, queries=5, keys=9, width=24), 0.2, is_causal=True)
    for batch, queries, keys in [(3, 5, 9), (1, 70, 70), (2, 1, 200)]:
        check(inputs(9, batch=batch, queries=queries, keys=keys, width=24), 0.2, is_causal=True)
    assert len(_attention._compiled) == 2  # for up to eight queries, and for more


def test_threads(monkeypatch):
    """They reach the call, compile nothing anew, and change no bit."""
    arrays = inputs(11)
    expected = diffattn.attention(*arrays, 0.3, is_causal=True)
    given, call = [], runtime.Executable.call_packed

    def record(*args):
        given.append(args[-1])
        return call(*args)

    monkeypatch.setattr(runtime.Executable, "call_packed", record)
    monkeypatch.setattr(_attention, "Executable", None)
    for threads in (None, 0, 1, 2, 3):
        assert np.array_equal(diffattn.attention(*arrays, 0.3, is_causal=True, threads=threads), expected)
    assert given == [0, 0, 1, 2, 3]


def test_nan_stays_with_those_who_see_it():
    q1, k1, q2, k2, v = inputs(10, batch=1, queries=20, keys=20)
    q1[0, 1, 4, 0] = np.nan
    got = diffattn.attention(q1, k1, q2, k2, v, 0.4, is_causal=True)
    assert np.isnan(got[0, 1, 4]).all() and np.isnan(got).sum() == got.shape[-1]
    q1[0, 1, 4, 0] = 0
    v[0, 0, 12, :] = np.nan
    got = diffattn.attention(q1, k1, q2, k2, v, 0.4, is_causal=True)
    rows = np.isnan(got).any(-1)[0]
    assert not rows[2:].any() and not rows[:2, :12].any() and rows[:2, 12:].all()


def test_empty():
    q1, k1, q2, k2, v = inputs(11, batch=0)
    assert diffattn.attention(q1, k1, q2, k2, v, 0.4).shape == (0, 4, 33, 32)
    q1, k1, q2, k2, v = inputs(11, keys=0)
    assert (diffattn.attention(q1, k1, q2, k2, v, 0.4) == 0).all()


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("target", ["gpu", "cpu:fast", "cuda-sim:sm_91"])
def test_an_unknown_target_is_refused_for_an_empty_result_too(batch, target):
    with pytest.raises(diffattn.errors.UsageError, match="target"):
        diffattn.attention(*inputs(11, batch=batch), 0.4, target=target)


def test_dlpack():
    import torch
    arrays = inputs(12)
    want = diffattn.attention(*arrays, 0.4, is_causal=True)
    tensors = [torch.from_numpy(a) for a in arrays]
    np.testing.assert_array_equal(diffattn.attention(*tensors, torch.tensor(0.4), is_causal=True), want)
    half = [t.to(torch.bfloat16) for t in tensors]
    got = diffattn.attention(*half, 0.4, is_causal=True)
    assert got.dtype == torch.bfloat16
    want = diffattn.attention(*[a.astype(BF16) for a in arrays], 0.4, is_causal=True)
    np.testing.assert_array_equal(got.view(torch.int16).numpy(), want.view(np.int16))


def wrong(**changes):
    names = ["q1", "k1", "q2", "k2", "v"]
    arrays = dict(zip(names, inputs(13)))
    options = {k: v for k, v in changes.items() if k not in names}
    lam = options.pop("lam", 0.4)
    arrays.update({k: v for k, v in changes.items() if k in names})
    return diffattn.attention(*arrays.values(), lam, **options)


F32 = np.float32
ERRORS = {
    "q1: expected rank 4": dict(q1=np.zeros((2, 3), F32)),
    "q1: expected float32, float16 or bfloat16, but got float64": dict(q1=np.zeros((2, 4, 33, 16))),
    "k1: expected float32 as q1, but got float16": dict(k1=np.zeros((2, 2, 33, 16), np.float16)),
    "k1: expected shape [B, Hk1, Tk, d]": dict(k1=np.zeros((2, 2, 33, 15), F32)),
    "v: expected shape [B, Hv, Tk, dv]": dict(v=np.zeros((2, 2, 32, 16), F32)),
    "multiple of Hv": dict(v=np.zeros((2, 3, 33, 16), F32)),
    "lam: expected a number or shape [4] or [2, 33, 4], but got [3]": dict(lam=np.zeros((3,), F32)),
    "lam: expected floats": dict(lam=np.zeros((4,), np.int64)),
    "attn_mask: expected a shape that broadcasts": dict(attn_mask=np.zeros((32, 33), bool)),
    "attn_mask: expected rank 2 to 4": dict(attn_mask=np.zeros((33,), bool)),
    "attn_mask: expected bool": dict(attn_mask=np.zeros((33, 33), np.int64)),
    "window: expected (left, right)": dict(window=5),
    "window: expected sizes from 0": dict(window=(-2, 1)),
    "softcap: expected a positive number": dict(softcap=0.0),
    "scale: expected a finite number": dict(scale=float("nan")),
    "lam_activation: expected None or 'sigmoid'": dict(lam_activation="tanh"),
    "norm: expected None or 'rms'": dict(norm="layer"),
    "norm_eps_mode: expected 'inside' or 'outside'": dict(norm="rms", norm_eps_mode="none"),
    "norm_weight: expected norm='rms'": dict(norm_weight=np.ones(32, F32)),
    "norm_weight: expected shape [32]": dict(norm="rms", norm_weight=np.ones(31, F32)),
    "gate: expected shape": dict(gate=np.zeros((2, 4, 33, 31), F32)),
    "kv_len: expected 0 to 9223372036854775807, but got -1": dict(kv_len=-1),
    "kv_len: expected 0 to 9223372036854775807, but got 9223372036854775808": dict(kv_len=2**63),
    "q_offset: expected -9223372036854775808 to 9223372036854775807, but got 9223372036854775808 to 9223372036854775808":
        dict(q_offset=np.full(2, 2**63, np.uint64)),
    "scale: expected a finite number of at most 2^64 in magnitude, but got -3e+38": dict(scale=-3e38),
    "kv_len: expected integers": dict(kv_len=3.5),
    "q_offset: expected a number or shape [2]": dict(q_offset=np.zeros(3, np.int64)),
    "expected target cpu": dict(target="gpu"),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises(runtime.DiffAttnError) as raised:
        wrong(**ERRORS[message])
    assert message in str(raised.value)


@pytest.mark.parametrize("queries, keys, is_few", [(1, 9, True), (8, 40, True), (8, 8, False), (9, 40, False), (70, 3, False)])
def test_kernels_that_a_call_does_not_take_are_not_compiled(queries, keys, is_few, monkeypatch):
    compiled = {}
    monkeypatch.setattr(_attention, "_compiled", compiled)
    q, k = (np.ones((1, 1, length, 16), np.float32) for length in (queries, keys))
    diffattn.attention(q, k, q, k, k, 0.3)
    ((_, module),) = compiled
    functions = set(re.findall(r"llvm\.func (?:internal |private )?@(diffattn_attention_0\w*)", runtime.emit(module, "llvm").decode()))
    assert ("diffattn_attention_0_merge" in functions) == is_few and ("diffattn_attention_0" in functions) != is_few, functions


@pytest.mark.parametrize("promised, came, message", [(9, 8, "expected size 9 or more on axis 2, but got 8"), (8, 9, "expected size 8 or less on axis 2, but got 9")])
def test_code_for_other_sizes_is_not_run(promised, came, message):
    q, k = np.ones((1, 1, came, 16), np.float32), np.ones((1, 1, 40, 16), np.float32)
    arrays = {"q1": q, "k1": k, "q2": q, "k2": k, "v": k, "lambda": np.float32(0.5).reshape(()), "init": np.zeros_like(q)}
    executable = runtime.Executable(module_of(arrays, "scale = 0.25 : f32" + attention_module.size_bounds(promised, 40)), name="attention")
    with pytest.raises(RunError, match=message):
        executable.call("attention", *arrays.values())
    assert not arrays["init"].any()
