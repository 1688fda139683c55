"""Gradients of queries, keys and values by simulated GPU kernels, of all that an op may have, from what a forward call saved: against those of
f32 on a CPU, which are computed from the operands alone. What the kernels themselves do is held by unittests/GPU/GpuGradientsTest.cpp."""
import numpy as np
import pytest

from test_attention_sums import TYPES, draw, same
from test_gpu_gradient_rows import SM_80, backward, forward, widened

CASES = {
    "normed": dict(dtype="bf16", norm="rms", weight=True, lam=(1, 9, 4), is_causal=True, q_offset=-2),  # the first rows see no key
    "gated-window-softcap": dict(dtype="f16", gate=True, window=(20, 3), softcap=4.0),
    "one-map": dict(dtype="bf16", norm="rms", second=False),
}


@pytest.mark.filterwarnings("error")  # a warning says that there are no kernels
@pytest.mark.parametrize("name", CASES)
def test_all_gradients_are_right_and_twice_the_same(name):
    case = dict(CASES[name])
    dtype, second = case.pop("dtype"), case.pop("second", True)
    operands, rng = draw(dtype, queries=9, keys=40, width=32), np.random.default_rng(3)
    for keys in ("k1", "v"):  # as many heads as k2
        operands[keys] = np.ascontiguousarray(operands[keys][:, :2])
    shape = operands["q1"].shape
    operands["lam"] = np.full(case.pop("lam", ()), 0.4, np.float32)
    wanted = ["q1", "k1", "v", *(["q2", "k2", "lam"] if second else [])]
    if case.pop("weight", False):
        case["norm_weight"] = (1 + 0.2 * rng.standard_normal(shape[3])).astype(TYPES[dtype])
        wanted.append("norm_weight")
    if case.pop("gate", False):
        case["gate"] = rng.standard_normal(shape).astype(TYPES[dtype])
        wanted.append("gate")
    options = dict(case, scale=0.25)
    d_out = rng.standard_normal(shape).astype(TYPES[dtype])
    saved = forward(operands, SM_80, dtype, options, second)
    found = backward(d_out, operands, options, wanted, second, **saved, target=SM_80)
    expected = backward(d_out.astype(np.float32), widened(operands), widened(options), wanted, second)
    for gradient in wanted:
        got, want = found[gradient].astype(np.float64), expected[gradient]
        size = np.linalg.norm(want) if want.size > 4 else np.abs(want).sum() + 1.0
        assert np.isfinite(got).all()
        assert np.linalg.norm(got - want) <= {"f16": 4e-3, "bf16": 3e-2}[dtype] * size, gradient
    again = backward(d_out, operands, options, wanted, second, **saved, target=SM_80)
    assert all(same(found[gradient], again[gradient]) for gradient in wanted)
