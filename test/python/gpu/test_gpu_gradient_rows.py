"""Gradients that look at no key, of lambda, norm weight and gate, by simulated GPU kernels from what a forward call saved: against those of
f32 on a CPU, which are computed from the operands alone."""
import numpy as np
import pytest

import diffattn
from diffattn._attention import attention_backward
from diffattn.errors import InputError, UsageError
from test_attention_sums import TYPES, draw, same

SM_80 = "cuda-sim:sm_80"
ERRORS = {"f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}


def forward(operands, target, dtype, options, second=True):
    """The results that a forward call saves, x and o2 in `dtype`."""
    rows = {name: np.full(operands["q1"].shape, np.nan, TYPES[dtype]) for name in ("x", "o2")[:1 + second]}
    ends = "norm" in options or "gate" in options
    given = {name: array for name, array in rows.items() if ends or name == "o2"}
    if second:
        result, lse1, lse2 = diffattn.attention(**operands, **options, **given, return_lse=True, target=target)
        logs = dict(lse1=lse1, lse2=lse2)
    else:
        result, lse1 = diffattn.plain_attention(operands["q1"], operands["k1"], operands["v"], **options, **given, return_lse=True, target=target)
        logs = dict(lse1=lse1)
    return dict({**rows, "x": rows["x"] if ends else result}, **logs)


def backward(d_out, operands, options, wanted, second=True, **more):
    given = {**operands, **options}
    gradients = {name: np.full(given[name].shape, np.nan, np.float32 if name == "lam" else given[name].dtype) for name in wanted}
    maps = {name: operands.get(name) if second or name in ("q1", "k1", "v") else None for name in ("q1", "k1", "q2", "k2", "v", "lam")}
    attention_backward(d_out, *maps.values(), gradients, **options, **more)
    return gradients


def widened(given):
    return {name: value.astype(np.float32) if isinstance(value, np.ndarray) and value.dtype != np.int64 else value for name, value in given.items()}


CASES = {
    "all": dict(dtype="f32", norm="rms", weight=True, gate=True, out_scale=0.5),
    "of-heads": dict(dtype="bf16", width=64, norm="rms", weight=True, lam=(4,), lam_activation="sigmoid", norm_eps_mode="outside"),
    "of-noise-heads-of-queries": dict(dtype="f16", width=64, gate=True, lam=(1, 9, 2), lam_activation="sigmoid"),
    "of-queries": dict(dtype="bf16", width=33, norm="rms", lam=(1, 9, 4)),
    "result-is-x": dict(dtype="f32", lam=(4,)),
    "one-map": dict(dtype="bf16", width=64, norm="rms", weight=True, gate=True, second=False),
}


def check(case, operands, wanted, options):
    """Draws what `case` asks for, and judges the gradients of it in `wanted`: near those of f32 on a CPU, and twice the same."""
    case, rng = dict(case), np.random.default_rng(3)
    dtype, second = case.pop("dtype"), case.pop("second", True)
    shape = operands["q1"].shape
    operands["lam"] = np.full(case.pop("lam", ()), 0.4, np.float32)
    wanted = [name for name in wanted if second or name not in ("q2", "k2", "lam")]
    if case.pop("weight", False):
        case["norm_weight"] = (1 + 0.2 * rng.standard_normal(shape[3])).astype(TYPES[dtype])
        wanted.append("norm_weight")
    if case.pop("gate", False):
        case["gate"] = rng.standard_normal(shape).astype(TYPES[dtype])
        wanted.append("gate")
    options = {**case, **options, "scale": 0.25}
    d_out = rng.standard_normal(shape).astype(TYPES[dtype])
    saved = forward(operands, SM_80, dtype, options, second)
    gradients = backward(d_out, operands, options, wanted, second, **saved, target=SM_80)
    expected = backward(d_out.astype(np.float32), widened(operands), widened(options), wanted, second)
    for gradient in wanted:
        got, want = gradients[gradient].astype(np.float64), expected[gradient]
        assert np.isfinite(got).all()
        # A number of lambda is a sum that cancels.
        size = np.linalg.norm(want) if want.size > 4 else np.abs(want).sum() + 1.0
        assert np.linalg.norm(got - want) <= ERRORS[dtype] * size, gradient
    again = backward(d_out, operands, options, wanted, second, **saved, target=SM_80)
    assert all(same(gradients[gradient], again[gradient]) for gradient in wanted)


@pytest.mark.filterwarnings("error")  # a warning says that there are no kernels
@pytest.mark.parametrize("name", CASES)
def test_each_gradient_is_right_and_twice_the_same(name):
    case = dict(CASES[name])
    operands = draw(case["dtype"], queries=9, keys=40, width=case.pop("width", 32))
    check(case, operands, ["lam"], dict(is_causal=True, q_offset=-2))  # the first rows see no key


def test_bad_numbers_reach_the_gradients():
    operands = draw("f32", queries=5, keys=20)
    options = dict(scale=0.25, norm="rms", norm_weight=np.ones(32, np.float32))
    saved = forward(operands, SM_80, "f32", options)
    for bad in (np.inf, np.nan):
        d_out = np.ones_like(operands["q1"])
        d_out[0, 1, 2, 3] = bad
        gradients = backward(d_out, dict(operands, lam=np.full(4, 0.4, np.float32)), options, ["lam", "norm_weight"], **saved, target=SM_80)
        assert not np.isfinite(gradients["lam"][1]) and np.isfinite(np.delete(gradients["lam"], 1)).all()
        assert not np.isfinite(gradients["norm_weight"][3]) and np.isfinite(np.delete(gradients["norm_weight"], 3)).all()


@pytest.mark.filterwarnings("ignore:the gradients of attention are computed by loops")
def test_what_is_not_saved_is_computed_by_loops():
    operands = draw("f32", queries=5, keys=20)
    options = dict(scale=0.25, norm="rms")
    saved = forward(operands, SM_80, "f32", options)
    d_out = np.ones_like(operands["q1"])
    expected = backward(d_out, operands, options, ["lam"])
    del saved["o2"]
    with pytest.warns(RuntimeWarning, match="gradients of attention have no GPU kernels: expected o2, but got none"):
        gradients = backward(d_out, operands, options, ["lam"], **saved, target=SM_80)
    np.testing.assert_allclose(gradients["lam"], expected["lam"], rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:attention runs as loops")
def test_what_does_not_fit_together():
    operands = draw("f32", queries=5, keys=20)
    options, d_out = dict(scale=0.25, norm="rms"), np.ones_like(operands["q1"])
    saved = forward(operands, "cpu", "f32", options)
    with pytest.raises(UsageError, match="lse1: expected it together with lse2"):
        backward(d_out, operands, options, ["lam"], lse1=saved["lse1"])
    with pytest.raises(UsageError, match="o2: expected none with one map"):
        backward(d_out, operands, options, ["q1"], second=False, o2=saved["o2"])
    with pytest.raises(InputError, match=r"lse2: expected shape \[1, 2, 5\]"):
        backward(d_out, operands, options, ["lam"], lse1=saved["lse1"], lse2=saved["lse1"])
