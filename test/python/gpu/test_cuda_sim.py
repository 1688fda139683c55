"""diffattn.attention on simulated GPU kernels: against docs/spec.md in f64, and against the CPU."""
import numpy as np
import pytest

import diffattn
from attention_cases import BF16, Call, draw_signature, plain_signature
from diffattn import attention_module, runtime

SM_80, SM_86, SM_89, SM_90 = "cuda-sim:sm_80", "cuda-sim:sm_86", "cuda-sim:sm_89", "cuda-sim:sm_90"
ONE_MAP = dict(maps=1, widths=(64, 64), signal=4, noise=4, key1=2, value=2)
V1 = dict(widths=(64, 128), norm="rms", weight="bf16", out_scale=0.8)

#: Options of the op, one at a time: changes of the least signature, chip, and sizes (batch, queries, keys).
CASES = {
    "none": (dict(), SM_80, [(1, 64, 64), (2, 17, 33)]),
    "v1-causal": (dict(V1, causal=True), SM_80, [(1, 65, 65), (2, 16, 33), (1, 1, 65)]),
    "v1-f16": (dict(V1, dtype="f16", weight="f16", causal=True), SM_86, [(1, 33, 64), (1, 8, 31)]),
    "window": (dict(window=(20, 3)), SM_80, [(1, 40, 70)]),
    "window-left-causal": (dict(window=(9, -1), causal=True), SM_90, [(1, 70, 70), (1, 5, 97)]),
    "bias-f32": (dict(mask="f32"), SM_80, [(2, 20, 50)]),
    "bias-own-type": (dict(mask="f16", dtype="f16"), SM_80, [(2, 20, 50)]),
    "boolean": (dict(mask="bool", causal=True), SM_80, [(2, 33, 70)]),
    "softcap": (dict(softcap=2.0), SM_80, [(1, 20, 40)]),
    "softcap-wide": (dict(softcap=30.0, widths=(128, 128), shared=True), SM_80, [(1, 20, 40)]),
    "kv-len": (dict(kv_len=True, causal=True), SM_80, [(3, 17, 65), (3, 1, 130)]),
    "offset": (dict(q_offset=True, causal=True), SM_80, [(3, 17, 65)]),
    "lengths": (dict(kv_len=True, q_offset=True, window=(30, 0)), SM_89, [(3, 33, 65)]),
    "empty-rows": (dict(V1, causal=True), SM_80, [(1, 40, 9), (1, 64, 1)]),
    "segments": (dict(segments=np.int64), SM_80, [(2, 130, 130), (3, 17, 65), (2, 1, 600)]),
    "segments-i32": (dict(segments=np.int32, dtype="f16", kv_len=True), SM_90, [(2, 70, 130), (3, 3, 130)]),
    "segments-causal": (dict(V1, segments=np.int64, causal=True), SM_86, [(2, 97, 97)]),
    "segments-window": (dict(segments=np.int32, window=(40, 5), q_offset=True), SM_89, [(2, 97, 97), (1, 2, 97)]),
    "segments-bias": (dict(segments=np.int64, mask="f32", softcap=2.0), SM_80, [(2, 33, 70), (1, 1, 70)]),
    "segments-boolean": (dict(segments=np.int64, mask="bool", widths=(128, 128), shared=True), SM_80, [(1, 33, 70)]),
    "segments-wide": (dict(V1, segments=np.int64, widths=(128, 256)), SM_90, [(1, 70, 97)]),
    "segments-any-stride": (dict(segments=np.int64, step=2, layout="bthd"), SM_80, [(2, 33, 97), (1, 1, 97)]),
    "segments-f32": (dict(dtype="f32", segments=np.int32, causal=True, mask="f32"), SM_80, [(2, 33, 97), (1, 1, 33)]),
    "lambda-head": (dict(lam="head", signal=6), SM_80, [(1, 17, 17)]),
    "lambda-signal": (dict(lam="signal", signal=4), SM_80, [(2, 17, 17)]),
    "lambda-noise": (dict(lam="noise", signal=4), SM_80, [(2, 17, 17)]),
    "lambda-head-sigmoid": (dict(lam="head", sigmoid=True), SM_80, [(1, 17, 17)]),
    "lambda-signal-sigmoid": (dict(lam="signal", sigmoid=True, signal=4), SM_86, [(2, 17, 17), (2, 1, 33)]),
    "lambda-noise-sigmoid": (dict(lam="noise", sigmoid=True, signal=4), SM_90, [(2, 17, 17)]),
    "groups": (dict(signal=8, noise=2, key1=4, key2=1, value=4), SM_80, [(2, 17, 40), (1, 1, 64)]),
    "groups-of-three": (dict(signal=6, noise=2, key1=1, key2=2, value=3), SM_80, [(2, 16, 16)]),
    "v2": (dict(widths=(128, 128), shared=True, signal=4, noise=4, key1=2, key2=2, lam="signal", sigmoid=True, causal=True), SM_90,
           [(1, 33, 64), (2, 1, 65)]),
    "motif": (dict(V1, widths=(128, 256), causal=True, signal=4, noise=1, key1=2, key2=1), SM_80, [(1, 33, 40)]),
    "v1-96": (dict(V1, widths=(96, 192), causal=True), SM_86, [(1, 17, 40)]),
    "gdla": (dict(widths=(192, 128), shared=True, gate=True, lam="signal", sigmoid=True, window=(20, 0)), SM_80, [(1, 20, 40)]),
    "norm-outside": (dict(norm="rms", eps_mode="outside", weight="f32"), SM_80, [(1, 20, 33)]),
    "gate": (dict(gate=True, norm="rms"), SM_80, [(2, 20, 33)]),
    "token-major": (dict(layout="bthd", signal=4, noise=2, key1=2, value=2), SM_80, [(2, 17, 33)]),
    "every-second-head": (dict(layout="split", causal=True), SM_80, [(2, 17, 33)]),
    "odd-widths": (dict(widths=(20, 33), causal=True), SM_80, [(1, 17, 33)]),
    "small-widths": (dict(widths=(2, 4), dtype="f16"), SM_80, [(1, 17, 33)]),
    "widest": (dict(widths=(256, 256)), SM_90, [(1, 5, 17)]),
    "stride-2": (dict(step=2, causal=True, layout="bthd"), SM_80, [(2, 17, 33)]),
    "stride-2-f16-gate": (dict(step=2, dtype="f16", gate=True, widths=(24, 40)), SM_86, [(1, 9, 33)]),
    "f32": (dict(dtype="f32", causal=True, norm="rms", weight="f32"), SM_80, [(1, 33, 65), (1, 1, 33)]),
    "one-map": (dict(ONE_MAP, causal=True), SM_80, [(1, 130, 130), (2, 1, 130), (1, 40, 9)]),
    "one-map-lengths": (dict(ONE_MAP, kv_len=True, q_offset=True, window=(30, 2), gate=True), SM_86, [(2, 33, 65), (3, 2, 300)]),
    "one-map-bias": (dict(ONE_MAP, mask="f32", signal=4, noise=4), SM_80, [(2, 20, 50), (1, 3, 70)]),
    "one-map-boolean": (dict(ONE_MAP, mask="bool", softcap=2.0, dtype="f16"), SM_89, [(2, 20, 50), (1, 1, 70)]),
    "one-map-segments": (dict(ONE_MAP, segments=np.int64, causal=True), SM_90, [(2, 70, 97), (2, 2, 300)]),
    "one-map-widest": (dict(maps=1, widths=(256, 256), softcap=30.0, norm="rms"), SM_80, [(1, 17, 70), (1, 1, 130)]),
    "one-map-192": (dict(maps=1, widths=(192, 128), causal=True), SM_90, [(1, 70, 40)]),
    "one-map-any-stride": (dict(maps=1, widths=(20, 33), step=2, layout="bthd"), SM_80, [(2, 33, 70), (1, 2, 70)]),
    "one-map-f32": (dict(ONE_MAP, dtype="f32", mask="f32", softcap=5.0, kv_len=True), SM_80, [(2, 9, 40)]),
    "f32-all": (dict(dtype="f32", mask="f32", softcap=5.0, gate=True, kv_len=True, q_offset=True, window=(20, 2), lam="noise",
                     sigmoid=True, signal=4, norm="rms", step=2), SM_86, [(2, 9, 40)]),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", CASES)
def test_each_thing_is_right_and_as_on_the_cpu(name):
    changes, target, shapes = CASES[name]
    sig = plain_signature(**changes)
    for number, (batch, queries, keys) in enumerate(shapes):
        call = Call(np.random.default_rng(number), sig, batch=batch, queries=queries, keys=keys, room=8)
        got, cpu = call.check(target).astype(np.float64), call.run("cpu").astype(np.float64)
        assert (np.abs(got - cpu) <= 2 * call.allowed(*call.reference())).all(), call.describe()


def test_rows_and_bases_that_are_not_aligned():
    """One kernel copies 16 bytes at a time, another elements; pointers and strides decide at every call."""
    sig = plain_signature(causal=True)
    for room in (0, 1, 4, 8):
        Call(np.random.default_rng(room), sig, batch=1, queries=17, keys=33, room=room).check(SM_80)
    call = Call(np.random.default_rng(7), sig, batch=1, queries=17, keys=33, room=8)
    for name in ("q1", "k2", "v"):
        array = getattr(call, name)
        memory = np.zeros(array.size + 8, array.dtype)
        skip = next(i for i in range(8) if (memory.ctypes.data + 2 * i) % 16 == 2)
        moved = memory[skip : skip + array.size].reshape(array.shape)
        moved[...] = array
        setattr(call, name, moved)
    call.check(SM_80)


@pytest.mark.parametrize("softcap", [None, 2000.0], ids=["kernel", "decomposed"])
def test_axes_that_run_backwards_or_stand_still(softcap):
    call = Call(np.random.default_rng(1), plain_signature(signal=4, noise=4, key1=4, key2=4, value=4, causal=True, softcap=softcap), batch=2,
                queries=17, keys=33, room=8)
    call.q1, call.v = call.q1[:, :, ::-1], call.v[:, :, ::-1]
    call.k1, call.v = call.k1[:, :, ::-1], call.v[:, ::-1]
    call.q2 = np.broadcast_to(call.q2[:, :1], call.q2.shape)
    call.check(SM_80)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", range(20))
def test_random_configurations(number):
    rng = np.random.default_rng(500 + number)
    sig = draw_signature(rng)
    target = [SM_80, SM_86, SM_90, SM_89][number % 4]
    for _ in range(2):
        Call(rng, sig).check(target)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", range(12))
def test_random_configurations_of_one_map(number):
    rng = np.random.default_rng(700 + number)
    sig = draw_signature(rng, maps=1)
    for _ in range(2):
        Call(rng, sig).check([SM_80, SM_86, SM_90, SM_89, "cuda-sim:sm_90a"][number % 5])


def test_a_thousand_configurations(full):
    if not full:
        pytest.skip("long: only with --full")
    for number in range(200):
        rng = np.random.default_rng(10000 + number)
        sig = draw_signature(rng)
        target = [SM_80, SM_86, SM_90, SM_89][number % 4]
        for _ in range(5):
            Call(rng, sig).check(target)


def test_a_row_is_the_same_in_any_batch_and_on_any_number_of_threads():
    sig = plain_signature(dtype="f16", causal=True, kv_len=True, lam="signal", signal=4)
    for queries, keys in ((1, 70), (2, 700), (40, 70)):
        call = Call(np.random.default_rng(queries), sig, batch=3, queries=queries, keys=keys, room=8)
        together = call.run(SM_80)
        call.q1, call.k1, call.q2, call.k2, call.v, call.lam = (x[1:2] for x in call.operands)
        call.options["kv_len"] = call.options["kv_len"][1:2]
        assert np.array_equal(call.run(SM_80), together[1:2])


def test_numbers_that_are_far_out():
    """Logits of 1e8 stay finite, and a finite bias, however low, is no mask."""
    call = Call(np.random.default_rng(3), plain_signature(dtype="f32", mask="f32"), batch=1, queries=9, keys=20)
    call.options["scale"] = 3e7
    assert np.isfinite(call.run(SM_80)).all()
    call = Call(np.random.default_rng(4), plain_signature(mask="f32"), batch=1, queries=17, keys=40, room=8)
    mask = np.zeros((1, 1, 17, 40), np.float32)
    mask[:, :, 5], mask[:, :, 7, :39], mask[:, :, 9, 5:] = -np.inf, -3.4e38, -3.4e38
    call.options["attn_mask"] = mask
    assert not call.check(SM_80)[:, :, 5].any()
    # In f32 the fill swallows the scores: every key counts the same.
    mask[:, :, 3] = -1e9
    got = call.run(SM_80)[:, :, 3].astype(np.float64)
    values = call.v.astype(np.float64)
    assert (np.abs(got - (1 - call.lam) * values.mean(2)) <= 1.2e-2 * (1 + np.abs(call.lam)) * np.abs(values).mean(2)).all()


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_bad_numbers_stay_where_they_are_seen(dtype):
    sig = plain_signature(dtype=dtype, kv_len=True, causal=True, norm="rms")
    call = Call(np.random.default_rng(5), sig, batch=1, queries=40, keys=70, room=8)
    call.options["kv_len"] = np.array([57])
    clean = call.run(SM_80)
    assert np.isfinite(clean.astype(np.float32)).all()
    # Keys and values that do not exist.
    for array in (call.k1, call.k2, call.v):
        array[:, :, 57:] = np.nan
    assert np.array_equal(call.run(SM_80), clean)
    # Keys that no query of the mask sees, though they exist: the last query alone sees the last key.
    call.k1[:, :, 56] = np.nan
    got = call.run(SM_80)
    assert np.array_equal(got[:, :, :-1], clean[:, :, :-1]) and np.isnan(got[:, :, -1].astype(np.float32)).all()
    call.k1[:, :, 56] = 0.5
    clean = call.run(SM_80)
    # A row of Q: that row of that head.
    call.q1[0, 1, 11] = np.nan
    got = call.run(SM_80)
    assert np.isnan(got[0, 1, 11].astype(np.float32)).all()
    got[0, 1, 11] = clean[0, 1, 11]
    assert np.array_equal(got, clean)


@pytest.mark.parametrize("chip", [SM_80, "cuda-sim:sm_90a"])
def test_a_gate_of_any_strides(chip):
    """Two columns are read at once only where rows allow it."""
    call = Call(np.random.default_rng(6), plain_signature(gate=True, widths=(64, 64)), batch=1, queries=40, keys=40)
    dense, rows = call.options["gate"], call.options["gate"].shape[:3]
    call.check(chip)
    for width, first in ((67, 0), (72, 1), (66, 2)):
        wider = np.full((*rows, width), np.nan, dense.dtype)
        call.options["gate"] = wider[..., first: first + 64]
        call.options["gate"][:] = dense
        call.check(chip)
    call.options["gate"] = np.asfortranarray(dense)
    call.check(chip)


def test_newer_and_older_chips():
    arrays = [np.ones((1, 1, 3, 32), BF16)] * 5
    executable = runtime.Executable(attention_module.module(
        (*((n, "memref<?x1x?x32xbf16>") for n in ("q1", "k1", "q2", "k2", "v", "init")), ("lambda", "memref<f32>")),
        "scale = 1.0 : f32", False), target="cuda-sim:sm_120")
    assert [(d.kind, d.message) for d in executable.diagnostics] == [
        ("analysis", "untuned: sm_120 gets the code and the schedules of sm_80")]
    with pytest.raises(runtime.UsageError, match="sm_80, sm_86, .*, sm_121, but got \"sm_75\""):
        diffattn.attention(*arrays, 0.5, target="cuda-sim:sm_75")
