"""Gradients by simulated GPU kernels that have one each, where sums of several do not fit in registers, and by those of f32: against those of
f32 on a CPU."""
import numpy as np
import pytest

from test_attention_sums import draw
from test_gpu_gradient_rows import check

CASES = {
    "wide": dict(dtype="bf16", width=256, is_causal=True),
    "softcap": dict(dtype="f16", width=100, softcap=4.0),
    "one-wide-map": dict(dtype="f16", width=160, second=False, window=(20, 3)),
    "f32": dict(dtype="f32", width=40, norm="rms", weight=True, lam=(1, 9, 4), is_causal=True, q_offset=-2),  # the first rows see no key
    "f32-softcap": dict(dtype="f32", width=33, gate=True, window=(20, 3), softcap=4.0),
    "f32-one-map": dict(dtype="f32", width=32, second=False),
}


@pytest.mark.filterwarnings("error")  # a warning says that there are no kernels
@pytest.mark.parametrize("name", CASES)
def test_all_gradients_are_right_and_twice_the_same(name):
    case = dict(CASES[name])
    operands = draw(case["dtype"], queries=9, keys=40, width=case.pop("width"))
    for keys in ("k1", "v"):  # as many heads as k2
        operands[keys] = np.ascontiguousarray(operands[keys][:, :2])
    check(case, operands, ["q1", "k1", "v", "q2", "k2", "lam"], {})
