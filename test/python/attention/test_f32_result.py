"""A result in f32 beside 16-bit operands is the result before it is rounded: bit for bit, whatever computes it."""
import numpy as np
import pytest

import diffattn
from attention_cases import TYPES, Call, plain_signature
from diffattn.runtime import InputError
from kernel_library import call, compile_library, runnable_isas, signature
from test_attention_random import BOUNDS, Inputs, check

V1 = dict(norm="rms", weight=True, causal=True, out_scale=0.8)
SIGNATURES = [
    dict(type="bf16", sizes=(64, 128), **V1),
    dict(type="bf16", small=True, gate=True, lam="signal", sigmoid=True, layout="bthd"),
    dict(type="f16"),
    dict(type="f16", small=True, bias="f16", unit=False, kv_len=True),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("isa", runnable_isas())
def test_on_every_instruction_set(isa, build_dir, tmp_path, full):
    chosen = SIGNATURES if full else SIGNATURES[runnable_isas().index(isa) % 2 :: 2]
    signatures = [signature(**changes, result=result) for changes in chosen for result in (None, "f32")]
    code = compile_library(signatures, isa, build_dir, tmp_path)
    names = ("q1", "k1", "q2", "k2", "v", "lam", "bias", "norm_weight", "gate", "kv_len", "q_offset", "out")
    for number in range(0, len(signatures), 2):
        kind = TYPES[signatures[number]["type"]]
        for tq in (1, 3, 60):
            results = []
            for k in (number, number + 1):
                inputs = Inputs(np.random.default_rng(number), signatures[k], dict(tq=tq, tk=130))
                call(code, k, [n for n in names if n in inputs.arrays], {n: inputs.in_layout(n) for n in inputs.arrays})
                check(inputs, isa, k, BOUNDS)
                results.append(inputs.arrays["out"])
            rounded, exact = results
            assert exact.dtype == np.float32 and np.array_equal(exact.astype(kind), rounded), (isa, signatures[number])
            assert (exact != rounded.astype(np.float32)).any()


@pytest.mark.parametrize("changes, queries", [
    (dict(norm="rms", weight="bf16", out_scale=0.8, causal=True, widths=(64, 128)), 33), (dict(), 1), (dict(dtype="f16"), 17),
    (dict(widths=(20, 33)), 17), (dict(widths=(128, 256), norm="rms"), 17), (dict(widths=(48, 80), gate=True), 20),
    (dict(layout="split", step=2, dtype="f16"), 9),
], ids=["v1", "decode", "f16", "elements", "pair", "general-gate", "strides"])
def test_on_the_simulated_gpu(changes, queries):
    for room in (8, 3):
        rounded = Call(np.random.default_rng(1), plain_signature(**changes), batch=2, queries=queries, keys=70, room=room)
        exact = Call(np.random.default_rng(1), plain_signature(**changes, result="f32"), batch=2, queries=queries, keys=70, room=room)
        got = exact.check("cuda-sim:sm_80")
        assert np.array_equal(got.astype(rounded.q1.dtype), rounded.run("cuda-sim:sm_80"))


def test_out_of_another_type_is_refused():
    q = np.ones((1, 1, 3, 16), np.float16)
    for wrong in (TYPES["bf16"], np.float64):
        with pytest.raises(InputError, match=r"out: expected float16 or float32, but got \w+"):
            diffattn.attention(q, q, q, q, q, 0.5, out=np.empty((1, 1, 3, 16), wrong))
    with pytest.raises(InputError, match="out: expected float32, but got float16"):
        diffattn.attention(*[q.astype(np.float32)] * 5, 0.5, out=np.empty((1, 1, 3, 16), np.float16))
