"""Sinks and logarithms of sums on simulated GPU kernels: against f64, with every way in which maps meet, and what they leave as it is."""
import numpy as np
import pytest

import diffattn
from attention_cases import Call, module_of, plain_signature
from attention_reference import attention as reference
from diffattn.runtime import Executable
from test_attention_sums import SINK, SINK2, TYPES, draw, same

SM_80, SM_86, SM_90, HOPPER = "cuda-sim:sm_80", "cuda-sim:sm_86", "cuda-sim:sm_90", "cuda-sim:sm_90a"
SUMS = dict(sink="f32", sink2="f32", lse=True)
#: Two signal heads to a noise head, of which one stores the logarithms.
SHARED_NOISE = dict(signal=4, noise=2, key1=2, key2=2, value=2)
ONE_MAP = dict(maps=1, widths=(64, 64), signal=4, noise=4, key1=2, value=2, sink="f32", lse=True)

#: Changes of the least signature, chip, and sizes (batch, queries, keys): few queries have ranges of keys, more than one where there are
#: more than 128 of these.
CASES = {
    "both": (dict(SUMS, **SHARED_NOISE, causal=True), SM_80, [(2, 20, 33), (2, 1, 300), (1, 40, 9)]),
    "of-their-type": (dict(SUMS, sink="bf16", sink2="bf16", widths=(64, 128), norm="rms", weight="bf16"), SM_86, [(1, 17, 40), (1, 2, 300)]),
    "sinks": (dict(sink="f32", sink2="f16", dtype="f16", gate=True), SM_80, [(1, 17, 40), (1, 1, 300)]),
    "one-sink": (dict(sink2="f32", lse=True, kv_len=True), SM_80, [(3, 17, 65), (3, 1, 300)]),
    "logarithms": (dict(SHARED_NOISE, lse=True, q_offset=True, causal=True), SM_90, [(3, 17, 65), (3, 1, 300)]),
    "bias": (dict(SUMS, mask="f32", softcap=4.0), SM_80, [(1, 20, 50), (1, 2, 150)]),
    "segments": (dict(SUMS, segments=np.int64, mask="bool"), SM_80, [(2, 33, 70), (1, 1, 300)]),
    "pair": (dict(SUMS, **SHARED_NOISE, widths=(96, 192), norm="rms"), SM_80, [(1, 17, 40)]),
    "pair-one-sink": (dict(sink2="f32", lse=True, widths=(128, 256)), SM_80, [(1, 17, 40), (1, 1, 150)]),
    "any-stride": (dict(SUMS, widths=(20, 33), step=2, layout="bthd"), SM_80, [(2, 17, 33), (1, 1, 150)]),
    "warpgroups": (dict(SUMS, **SHARED_NOISE, widths=(64, 128), causal=True), HOPPER, [(1, 130, 70), (1, 1, 300)]),
    "warpgroups-apart": (dict(SUMS, widths=(128, 128), shared=True), HOPPER, [(1, 70, 70)]),
    "one-map": (dict(ONE_MAP, causal=True), SM_80, [(2, 20, 33), (2, 1, 300), (1, 40, 9)]),
    "one-map-logarithms": (dict(ONE_MAP, sink=None, window=(30, 2), kv_len=True), SM_86, [(2, 33, 65), (3, 2, 300)]),
    "one-map-warpgroups": (dict(ONE_MAP, window=(127, 0)), HOPPER, [(1, 130, 200)]),
    "one-map-f32": (dict(ONE_MAP, dtype="f32", mask="f32", softcap=5.0, kv_len=True), SM_80, [(2, 9, 40)]),
    "f32": (dict(SUMS, **SHARED_NOISE, dtype="f32", causal=True), SM_80, [(1, 33, 65), (1, 1, 33), (1, 20, 9)]),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in ("both", "one-map", "f32") else pytest.mark.sampled(4)) for name in CASES])
def test_each_thing_is_right(name):
    changes, target, shapes = CASES[name]
    sig = plain_signature(**changes)
    for number, (batch, queries, keys) in enumerate(shapes):
        Call(np.random.default_rng(number), sig, batch=batch, queries=queries, keys=keys, room=8).check(target)


#: Sinks that add nothing to sums, by calls that ask for them.
NO_SINKS = dict(sink=np.full(4, -np.inf, np.float32), sink2=np.full(2, -np.inf, np.float32))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype, queries, target", [("bf16", 20, SM_80), ("bf16", 2, SM_80), ("f32", 9, SM_80), ("f16", 70, HOPPER)])
def test_logarithms_and_sinks_of_nothing_leave_every_bit(dtype, queries, target):
    operands, options = draw(dtype, queries, keys=150, width=64), dict(is_causal=True, target=target)
    plain = diffattn.attention(**operands, **options)
    result, *logs = diffattn.attention(**operands, **options, return_lse=True)
    assert same(plain, result)
    assert all(map(same, (plain, *logs), diffattn.attention(**operands, **options, **NO_SINKS, return_lse=True)))
    sunk = diffattn.attention(**operands, **options, sink=SINK, sink2=SINK2)
    assert not same(plain, sunk)
    assert same(sunk, diffattn.attention(**operands, **options, sink=SINK, sink2=SINK2, return_lse=True)[0])


@pytest.mark.parametrize("queries, target", [(2, SM_80), (20, SM_80), (70, HOPPER)])
def test_rows_without_keys(queries, target):
    operands = draw("bf16", queries, width=64)
    result, lse1, lse2 = diffattn.attention(**operands, kv_len=[0], sink=SINK, sink2=SINK2, return_lse=True, target=target)
    assert not result.any() and np.isneginf(lse1).all() and np.isneginf(lse2).all()


@pytest.mark.parametrize("queries", [1, 20])
def test_sinks_far_from_the_scores(queries):
    """Above all of them by more than f32's exponents hold, and below; of many ranges of keys each counts once."""
    operands = draw("bf16", queries, keys=400)
    sink, sink2 = np.array([1e4, -1e4, 40, 0], np.float32), np.array([-1e4, 1e4], np.float32)
    result, *logarithms = diffattn.attention(**operands, sink=sink, sink2=sink2, return_lse=True, target=SM_80)
    expected, magnitude, *logs = reference(**operands, scale=float(np.float32(32**-0.5)), sink=sink, sink2=sink2, return_lse=True)
    assert (np.abs(result.astype(np.float64) - expected) <= 1.2e-2 * magnitude + 1e-30).all()
    for got, log in zip(logarithms, logs):
        np.testing.assert_allclose(got, log, rtol=5e-4)


@pytest.mark.parametrize("queries", [1, 9])
def test_a_scale_that_is_not_positive(queries):
    operands = draw("bf16", queries)
    result, *logarithms = diffattn.attention(**operands, scale=-0.3, sink=SINK, sink2=SINK2, return_lse=True, target=SM_80)
    expected, magnitude, *logs = reference(**operands, scale=float(np.float32(-0.3)), sink=SINK, sink2=SINK2, return_lse=True)
    assert (np.abs(result.astype(np.float64) - expected) <= 1.2e-2 * magnitude).all()
    for got, log in zip(logarithms, logs):
        np.testing.assert_allclose(got, log, rtol=5e-4, atol=5e-4)


def test_maps_that_are_apart():
    """Warps with one map each, of which each ends its own sums."""
    operands = draw("bf16", queries=20, keys=70, width=128)
    arrays = {"q1": operands["q1"], "k1": operands["k1"], "q2": operands["q2"], "k2": operands["k2"], "v": operands["v"],
              "lambda": operands["lam"].reshape(()), "sink": SINK, "sink2": SINK2.astype(TYPES["bf16"]), "init": np.full_like(operands["q1"], np.nan),
              "lse1": np.full((1, 4, 20), np.nan, np.float32), "lse2": np.full((1, 2, 20), np.nan, np.float32)}
    schedule = "schedules = [#diffattn.gpu_forward<placement = apart, warps = 8, row_tiles = 2, kv_block_size = 32>]"
    Executable(module_of(arrays, f"scale = 0.2 : f32, is_causal, {schedule}"), target=SM_80, name="attention").call("attention", *arrays.values())
    expected, magnitude, *logs = reference(**operands, scale=float(np.float32(0.2)), is_causal=True, sink=SINK, sink2=arrays["sink2"], return_lse=True)
    assert (np.abs(arrays["init"].astype(np.float64) - expected) <= 1.2e-2 * (magnitude + np.abs(expected))).all()
    for name, log in zip(("lse1", "lse2"), logs):
        np.testing.assert_allclose(arrays[name], log, rtol=5e-4, atol=5e-4)


@pytest.mark.parametrize("starts", [[0, 7, 7, 30], [0, 1, 2, 3]])
def test_packed_sequences_and_pages(starts):
    """Each sequence is computed as if it were alone: many queries, and few, whose keys are in ranges."""
    queries = starts[-1]
    operands = draw("bf16", queries=queries, keys=queries)
    starts = np.array(starts, np.int32)
    sums = dict(sink=SINK, sink2=SINK2, return_lse=True, is_causal=True, target=SM_80)
    packed = diffattn.attention(**operands, cu_seqlens_q=starts, cu_seqlens_k=starts.copy(), **sums)
    for first, end in zip(starts, starts[1:]):
        if first == end:
            continue
        expected, magnitude, *logs = reference(**{name: x if name == "lam" else x[:, :, first:end] for name, x in operands.items()},
                                               scale=float(np.float32(32**-0.5)), is_causal=True, sink=SINK, sink2=SINK2, return_lse=True)
        assert (np.abs(packed[0][:, :, first:end].astype(np.float64) - expected) <= 1.2e-2 * (magnitude + np.abs(expected))).all()
        for got, log in zip(packed[1:], logs):
            np.testing.assert_allclose(got[:, :, first:end], log, rtol=5e-4, atol=5e-4)
    pages = {name: x[0].reshape(x.shape[1], 3, queries // 3, 32).swapaxes(0, 1)[[1, 2, 0]] for name, x in operands.items() if name in ("k1", "k2", "v")}
    paged = diffattn.attention(**{**operands, **pages}, block_table=np.array([[2, 0, 1]], np.int32), kv_len=[queries], **sums)
    assert all(map(same, paged, diffattn.attention(**operands, **sums)))


def test_logarithms_of_one_map_alone():
    """Each destination may be asked for without the other, and a sink without the other's."""
    operands = draw("bf16", queries=9, keys=40)
    whole = diffattn.attention(**operands, sink2=SINK2, return_lse=True, target=SM_80)
    arrays = {"q1": operands["q1"], "k1": operands["k1"], "q2": operands["q2"], "k2": operands["k2"], "v": operands["v"],
              "lambda": operands["lam"].reshape(()), "sink2": SINK2, "init": np.empty_like(operands["q1"])}
    for name, heads, expected in (("lse1", 4, whole[1]), ("lse2", 2, whole[2])):
        given = {**arrays, name: np.full((1, heads, 9), np.nan, np.float32)}
        code = Executable(module_of(given, f"scale = 0x{np.float32(32**-0.5).view(np.uint32):08X} : f32"), target=SM_80, name="attention")
        code.call("attention", *given.values())
        assert same(given[name], expected) and same(given["init"], whole[0])
