"""Gradients of queries, keys and values by simulated GPU kernels, of all that an op may have, from what a forward call saved: against those of
f32 on a CPU, which are computed from the operands alone. What the kernels themselves do is held by unittests/GPU/GpuGradientsTest.cpp."""
import numpy as np
import pytest

from test_attention_sums import draw
from test_gpu_gradient_rows import check

CASES = {
    "normed": dict(dtype="bf16", norm="rms", weight=True, lam=(1, 9, 4), is_causal=True, q_offset=-2),  # the first rows see no key
    "gated-window-softcap": dict(dtype="f16", gate=True, window=(20, 3), softcap=4.0),
    "one-map": dict(dtype="bf16", norm="rms", second=False),
}


@pytest.mark.filterwarnings("error")  # a warning says that there are no kernels
@pytest.mark.parametrize("name", CASES)
def test_all_gradients_are_right_and_twice_the_same(name):
    case = dict(CASES[name])
    operands = draw(case["dtype"], queries=9, keys=40, width=32)
    for keys in ("k1", "v"):  # as many heads as k2
        operands[keys] = np.ascontiguousarray(operands[keys][:, :2])
    check(case, operands, ["q1", "k1", "v", "q2", "k2", "lam"], {})
