"""X, the output before norm and gate, and O2, map 2 times the values, from simulated GPU kernels: against f64, with every way in which maps
meet."""
import numpy as np
import pytest

import diffattn
from attention_cases import BOUNDS, module_of
from attention_reference import attention as reference
from diffattn.errors import InputError, UsageError
from diffattn.runtime import Executable
from test_attention_sums import SINK2, TYPES, draw, same

SM_80, SM_86, HOPPER = "cuda-sim:sm_80", "cuda-sim:sm_86", "cuda-sim:sm_90a"


def check(x, expected, magnitude, dtype):
    assert (np.abs(x.astype(np.float64) - expected) <= BOUNDS[dtype] * (magnitude + np.abs(expected)) + 1e-7).all()


def check_second(o2, operands, dtype, **options):
    """Map 2 is one of its own, of as many heads as map 1."""
    q2 = operands["q2"].repeat(operands["q1"].shape[1] // operands["q2"].shape[1], axis=1)
    check(o2, *reference(q2, operands["k2"], None, None, operands["v"], None, **options), dtype)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("error:attention does not use wgmma")
@pytest.mark.parametrize("dtype, width, queries, target, saved", [
    ("bf16", 64, 20, SM_80, "bf16"), ("f16", 64, 1, SM_80, "f32"), ("bf16", 33, 9, SM_80, "bf16"), ("f32", 32, 9, SM_80, "f32"),
    ("bf16", 160, 17, SM_86, "f32"), ("f16", 64, 70, HOPPER, "f16"), ("bf16", 128, 70, HOPPER, "f32")])
def test_what_comes_before_norm_and_gate(dtype, width, queries, target, saved):
    """Both maps in a warp, by copies of 16 bytes and of elements, plain, a pair of warps, and by warpgroups, with both maps and with one."""
    operands, plain = draw(dtype, queries, keys=40, width=width), dict(is_causal=True, scale=0.25)
    gate = np.linspace(-2, 2, operands["q1"].size).reshape(operands["q1"].shape).astype(TYPES[dtype])
    options = dict(**plain, norm="rms", out_scale=0.5, gate=gate, target=target)
    x, o2 = (np.full(operands["q1"].shape, np.nan, TYPES[saved]) for _ in range(2))
    result, *logs = diffattn.attention(**operands, **options, x=x, o2=o2, return_lse=True)
    assert same(result, diffattn.attention(**operands, **options)) or queries == 1
    check(x, *reference(**operands, **plain), dtype)
    check_second(o2, operands, dtype, **plain)
    for got, log in zip(logs, reference(**operands, **plain, return_lse=True)[2:]):
        np.testing.assert_allclose(got, log, rtol=5e-4, atol=5e-4)
    whole, magnitude = reference(**operands, **plain, norm="rms", out_scale=0.5, gate=gate)
    check(result, whole, magnitude, dtype)


def test_one_map_and_packed_sequences():
    operands = draw("bf16", queries=30, keys=30, width=64)
    starts, q, k, v = np.array([0, 7, 7, 30], np.int32), operands["q1"], operands["k1"], operands["v"]
    options = dict(is_causal=True, scale=0.25, norm="rms", target=SM_80)
    x = np.full(q.shape, np.nan, TYPES["bf16"])
    diffattn.plain_attention(q, k, v, **options, cu_seqlens_q=starts, cu_seqlens_k=starts, x=x)
    for first, end in ((0, 7), (7, 30)):
        rows = np.s_[:, :, first:end]
        check(x[rows], *reference(q[rows], k[rows], None, None, v[rows], None, scale=0.25, is_causal=True), "bf16")


def test_maps_that_are_apart():
    operands = draw("bf16", queries=20, keys=70, width=128)
    arrays = {"q1": operands["q1"], "k1": operands["k1"], "q2": operands["q2"], "k2": operands["k2"], "v": operands["v"],
              "lambda": operands["lam"].reshape(()), "init": np.full_like(operands["q1"], np.nan), "x": np.full(operands["q1"].shape, np.nan, np.float32),
              "o2": np.full_like(operands["q1"], np.nan)}
    attributes = ("scale = 0.25 : f32, is_causal, norm = #diffattn.norm<rms>, "
                  "schedules = [#diffattn.gpu_forward<placement = apart, warps = 8, row_tiles = 2, kv_block_size = 32>]")
    Executable(module_of(arrays, attributes), target=SM_80, name="attention").call("attention", *arrays.values())
    check(arrays["x"], *reference(**operands, scale=0.25, is_causal=True), "bf16")
    check_second(arrays["o2"], operands, "bf16", scale=0.25, is_causal=True)


@pytest.mark.parametrize("dtype, width", [("bf16", 64), ("f16", 160), ("f32", 32)])
def test_second_map_alone(dtype, width):
    """Without norm and gate, with sinks, and where lambda is 0; rows 0 to 2 see no key."""
    operands = draw(dtype, queries=9, keys=40, width=width)
    operands["lam"] = np.float32(0.0)
    o2 = np.full(operands["q1"].shape, np.nan, TYPES[dtype])
    options = dict(scale=0.25, is_causal=True, sink2=SINK2)
    result = diffattn.attention(**operands, **options, q_offset=-3, o2=o2, target=SM_80)
    assert same(result, diffattn.attention(**operands, **options, q_offset=-3, target=SM_80))
    assert not o2[:, :, :3].any()
    check_second(o2, operands, dtype, scale=0.25, is_causal=True, q_offset=np.array([-3]), sink=SINK2.repeat(2))


def test_no_kernel_of_cpus_writes_the_second_map():
    operands = draw("f32", queries=5, keys=20)
    o2 = np.full(operands["q1"].shape, np.nan, np.float32)
    with pytest.warns(RuntimeWarning, match="no kernel of CPUs writes o2"):
        diffattn.attention(**operands, scale=0.25, o2=o2)
    check_second(o2, operands, "f32", scale=0.25)


def test_what_has_none():
    operands = draw("bf16", queries=3)
    x = np.zeros(operands["q1"].shape, np.float32)
    with pytest.raises(UsageError, match="x: expected none without norm and gate, because it is the result then"):
        diffattn.attention(**operands, x=x, target=SM_80)
    with pytest.raises(UsageError, match="o2: expected none with integral"):
        diffattn.attention(**operands, o2=x, integral=True)
    with pytest.raises(InputError, match="o2: expected shape"):
        diffattn.attention(**operands, o2=x[:, :2])
    with pytest.raises(InputError, match="o2: expected an array that shares no element with out"):
        diffattn.attention(**draw("f32", queries=3), out=x, o2=x)
