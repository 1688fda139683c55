"""The fused kernel against the f64 reference, on random configurations, for every ISA that this machine can run.

Signatures (types, masks, forms of lambda, norms, layouts) are drawn from a fixed seed and compiled once for each ISA, all
in one module, with dynamic sizes; each is then called with several shapes.
"""
import ctypes

import numpy as np
import pytest

from attention_cases import HALF_STEP, draw_lengths, draw_offsets, draw_segments
from attention_reference import attention, visible_keys
from kernel_library import TYPES, call, compile_library, function_text, runnable_isas

# Bounds on |error| / M: docs/numerics.md.
BOUNDS = {"f32": 5e-6, "f16": 1.5e-3, "bf16": 1.2e-2}
SIGNATURES, OF_ONE_MAP = 28, 10
HIGHEST = 2**63 - 1
SHAPES = 4


def draw_signature(rng, number):
    """One set of everything that is fixed at compile time; those from SIGNATURES on are of one map."""
    pick = lambda *options: options[rng.integers(len(options))]
    sig = dict(type=pick("f32", "f32", "f16", "bf16", "bf16"), causal=pick(False, True), window=None, softcap=None, bias=None,
               kv_len=pick(False, False, True), q_offset=pick(False, False, True), lam=pick(0, 1, "signal", "noise"),
               sigmoid=pick(False, True), norm=pick(None, "rms"), weight=False, eps=pick(1e-5, 0.0), eps_mode=pick("inside", "outside"),
               out_scale=pick(1.0, 0.7), scale=0.17, gate=pick(False, False, True), layout=pick("bhtd", "bthd"),
               shared_k=pick(False, False, True), unit=pick(True, True, True, False), sizes=pick(None, None, (32, 64), (64, 128), (8, 24)))
    if pick(0, 0, 1):
        sig["window"] = (pick(-1, 0, 3, 20, 2**62, HIGHEST), pick(-1, 0, 5, 2**62, HIGHEST))
    if pick(0, 0, 0, 1):
        sig["softcap"] = pick(1e-40, 5.0, 30.0, 3e38)
    if pick(0, 0, 1):
        sig["bias"] = pick("i1", sig["type"], "f32")
    if sig["norm"]:
        sig["weight"] = pick(False, True)
    sig["small"] = pick(False, True)
    # The result of 16-bit operands in f32: judged by their gate, for it is their arithmetic.
    sig["segments"] = pick(None, None, "i64", "i32")
    sig["result"] = "f32" if number % 2 and sig["type"] != "f32" else None
    sig["maps"] = 1 if number >= SIGNATURES else 2
    if sig["maps"] == 1:
        sig.update(lam=0, sigmoid=False, shared_k=False)
    # The first few walk through what must not depend on luck.
    if number < 3:
        sig.update(type=("f32", "f16", "bf16")[number], sizes=(64, 128), causal=number != 1, window=None, bias=None, softcap=None)
    return sig


@pytest.fixture(scope="module", params=runnable_isas())
def isa(request):
    return request.param


@pytest.fixture(scope="module")
def signatures(isa, full):
    rng = np.random.default_rng(7)
    drawn = [draw_signature(rng, i) for i in range(SIGNATURES + OF_ONE_MAP)]
    if not full:  # every third one of what is left to luck, and others on the next ISAs
        drawn = drawn[:3] + drawn[3 + runnable_isas().index(isa) % 3 :: 3]
    if isa == "amx-emulated":  # what is not for tiles is vectors twice as wide as AVX2's, and slow to compile
        for number, sig in enumerate(drawn):
            sig.update(type="bf16", bias="bf16" if sig["bias"] == sig["type"] else sig["bias"], unit=sig["unit"] or number % 3 > 0,
                       result=sig["result"] if number % 2 else None)
    return drawn


@pytest.fixture(scope="module")
def library(isa, signatures, build_dir, tmp_path_factory, full):
    """All signatures compiled for one ISA, and that ISA's name."""
    return isa, compile_library(signatures, isa, build_dir, tmp_path_factory.mktemp(isa), optimize=full)


class Inputs:
    """Random operands of one shape, in the order [B, H, T, w], with the memory that the signature wants."""

    def __init__(self, rng, sig, fixed=None):
        pick = lambda *options: int(options[rng.integers(len(options))])
        fixed = fixed or {}
        hn = pick(1, 2)
        hs = hn * pick(1, 1, 2, 3)
        if sig["maps"] == 1:
            hn = hs
        divisor = lambda n: pick(*[x for x in range(1, n + 1) if n % x == 0])
        hk1, hk2, hv = divisor(hs), divisor(hn), divisor(hs)
        batch, tq, tk = pick(1, 2), pick(1, 1, 2, 7, 8, 9, 16, 17, 33, 48, 49, 97), pick(1, 2, 15, 16, 31, 64, 65, 130, 257, 300, 520)
        batch, tq, tk = [fixed.get(n, x) for n, x in (("batch", batch), ("tq", tq), ("tk", tk))]
        d, dv = sig["sizes"] or (pick(1, 2, 3, 8, 16, 20, 33, 64), pick(1, 2, 4, 15, 16, 17, 48, 65, 80, 112))
        self.sig, self.dtype = sig, TYPES[sig["type"]]
        self.arrays, self.rng = {}, rng
        shapes = dict(q1=(batch, hs, tq, d), k1=(batch, hk1, tk, d), q2=(batch, hn, tq, d), k2=(batch, hk2, tk, d), v=(batch, hv, tk, dv))
        for name, shape in shapes.items():
            if sig["maps"] == 2 or name not in ("q2", "k2"):
                self.arrays[name] = self.make(shape)
        if sig["shared_k"] and hk1 == hk2:
            self.arrays["k2"] = self.arrays["k1"]
        lam_shape = {0: (), 1: (hs,), "signal": (batch, tq, hs), "noise": (batch, tq, hn)}[sig["lam"]]
        if sig["maps"] == 2:
            self.arrays["lam"] = np.asarray(rng.normal(0.5, 0.4, lam_shape), np.float32)
        self.noise_heads = hn
        if sig["bias"]:
            shape = (pick(1, batch), pick(1, hn), pick(1, tq), tk)
            if sig["bias"] == "i1":
                self.arrays["bias"] = rng.random(shape) < 0.7
            else:
                bias = rng.standard_normal(shape)
                bias[rng.random(shape) < 0.1] = -np.inf
                self.arrays["bias"] = bias.astype(TYPES[sig["bias"]])
        if sig["weight"]:
            self.arrays["norm_weight"] = rng.normal(1, 0.3, dv).astype(np.float32)
        if sig["gate"]:
            self.arrays["gate"] = self.make((batch, hs, tq, dv))
        if sig["kv_len"]:
            self.arrays["kv_len"] = draw_lengths(rng, batch, tk)
        if sig["q_offset"]:
            self.arrays["q_offset"] = draw_offsets(rng, batch, tk)
        if sig["segments"]:
            segments = draw_segments(rng, batch, tq, tk, TYPES[sig["segments"]])
            for name, ids in zip(("q_segments", "kv_segments"), segments):
                step = 1 if sig["unit"] else 2
                memory = np.zeros((batch, ids.shape[1] * step + int(rng.integers(0, 3))), ids.dtype)
                self.arrays[name] = memory[:, : ids.shape[1] * step: step]
                self.arrays[name][...] = ids
        self.arrays["out"] = self.make((batch, hs, tq, dv), fill=np.nan, dtype=TYPES[sig["result"] or sig["type"]])

    def make(self, shape, fill=None, dtype=None):
        """An array [B, H, T, w] in memory of the signature's layout, with room around rows."""
        b, h, t, w = shape
        order = (b, t, h) if self.sig["layout"] == "bthd" else (b, h, t)
        step = 1 if self.sig["unit"] else 2
        memory = np.full(order + (w * step + int(self.rng.integers(0, 3)),), np.nan, dtype or self.dtype)
        view = memory[..., : w * step: step]
        view[...] = self.rng.standard_normal(view.shape) if fill is None else fill
        return view.swapaxes(1, 2) if self.sig["layout"] == "bthd" else view

    def in_layout(self, name):
        """The array with its axes in the order of the memref type."""
        array = self.arrays[name]
        headed = name in ("q1", "k1", "q2", "k2", "v", "gate", "out")
        return array.swapaxes(1, 2) if headed and self.sig["layout"] == "bthd" else array

    def reference(self):
        sig, a = self.sig, self.arrays
        return attention(*[a.get(n) for n in ("q1", "k1", "q2", "k2", "v", "lam")], scale=float(np.float32(sig["scale"])), is_causal=sig["causal"],
                         window=sig["window"], softcap=sig["softcap"] and float(np.float32(sig["softcap"])), bias=a.get("bias"), kv_len=a.get("kv_len"),
                         q_offset=a.get("q_offset"), lam_sigmoid=sig["sigmoid"], norm=sig["norm"],
                         norm_weight=a.get("norm_weight"), norm_eps=float(np.float32(sig["eps"])), norm_eps_mode=sig["eps_mode"],
                         q_segments=a.get("q_segments"), kv_segments=a.get("kv_segments"), out_scale=float(np.float32(sig["out_scale"])), gate=a.get("gate"))


def check(inputs, isa, number, bounds):
    expected, bound = inputs.reference()
    got = inputs.arrays["out"].astype(np.float64)
    tolerance = bounds[inputs.sig["type"]]
    # A norm divides by what may be close to nothing; there its epsilon bounds the quotient.
    error = np.abs(got - expected)
    allowed = tolerance * (bound + np.abs(expected)) + HALF_STEP[inputs.sig["type"]] + 1e-30
    shapes = {n: a.shape for n, a in inputs.arrays.items()}
    assert not np.isnan(got).any(), f"{isa} s{number}: NaN; {inputs.sig} {shapes}"
    worst = np.unravel_index(np.argmax(error / allowed), error.shape) if error.size else None
    assert (error <= allowed).all(), (f"{isa} s{number}: at {worst} got {got[worst]}, expected {expected[worst]}, "
                                      f"allowed error {allowed[worst]}; {inputs.sig} {shapes}")


def test_random_configurations(library, signatures, full):
    isa, code = library
    for number, sig in enumerate(signatures):
        rng = np.random.default_rng(1000 + number)
        names = function_text(number, sig, isa)[1]
        for _ in range(SHAPES * (10 if full else 1)):
            inputs = Inputs(rng, sig)
            call(code, number, names, {n: inputs.in_layout(n) for n in names})
            check(inputs, isa, number, BOUNDS)


def run(library, number, inputs):
    """The result of one call, as a copy."""
    isa, code = library
    inputs.arrays["out"][...] = np.nan
    names = function_text(number, inputs.sig, isa)[1]
    call(code, number, names, {n: inputs.in_layout(n) for n in names})
    return inputs.arrays["out"].astype(np.float32)


def seen_by(inputs, batch):
    """Which keys each query sees, by the position masks and the bias, for each noise head: [Hn, Tq, Tk]."""
    sig, a = inputs.sig, inputs.arrays
    tq, tk, hn = a["q1"].shape[2], a["k1"].shape[2], inputs.noise_heads
    one = lambda n: int(a[n][batch]) if n in a else None
    seen = np.repeat(visible_keys(tq, tk, sig["causal"], sig["window"], one("kv_len"), one("q_offset"))[None], hn, 0)
    if "q_segments" in a:
        seen = seen & (a["q_segments"][batch][:, None] == a["kv_segments"][batch])
    if "bias" in a:
        bias = a["bias"][batch % a["bias"].shape[0]]
        seen = seen & np.broadcast_to(bias if bias.dtype == np.bool_ else ~np.isneginf(bias.astype(np.float32)), seen.shape)
    return seen


@pytest.mark.parametrize("tq", [2, 97])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_numbers_reach_only_rows_that_see_them(library, signatures, tq, bad):
    for number, sig in enumerate(signatures):
        inputs = Inputs(np.random.default_rng(number), sig, dict(tq=tq, tk=130, batch=1))
        a = inputs.arrays
        clean = run(library, number, inputs)
        heads, hn = clean.shape[1], inputs.noise_heads
        # A row of Q: that row of that head alone.
        kept = a["q1"][0, 0, 1].copy()
        a["q1"][0, 0, 1] = np.nan
        got = run(library, number, inputs)
        a["q1"][0, 0, 1] = kept
        got[0, 0, 1] = clean[0, 0, 1]
        assert np.array_equal(got, clean), f"{library[0]} s{number}: a NaN in a query left its row; {sig}"
        # A row of V: the rows that see its key, of the heads that use it.
        key, hv = 57, a["v"].shape[1]
        kept = a["v"][0, 0, key].copy()
        a["v"][0, 0, key] = bad
        got = run(library, number, inputs)
        a["v"][0, 0, key] = kept
        for s in range(heads):
            uses = s // (heads // hv) == 0
            hit = seen_by(inputs, 0)[s // (heads // hn), :, key] & uses
            assert np.array_equal(got[0, s][~hit], clean[0, s][~hit]), f"{library[0]} s{number}: a bad value was seen; {sig}"
            assert not np.isfinite(got[0, s][hit]).all(axis=1).any(), f"{library[0]} s{number}: a bad value was lost; {sig}"


def test_a_row_is_the_same_in_any_batch_and_for_any_number_of_threads(library, signatures, build_dir):
    runtime = ctypes.CDLL(str(build_dir / "lib/libDiffAttnRuntime.so"))
    runtime.diffattn_rt_set_threads.argtypes = [ctypes.c_int64]
    for number, sig in enumerate(signatures):
        for tq in (1, 60):
            inputs = Inputs(np.random.default_rng(number), sig, dict(tq=tq, batch=2))
            both = run(library, number, inputs)
            runtime.diffattn_rt_set_threads(1)
            assert np.array_equal(run(library, number, inputs), both, equal_nan=True), f"{library[0]} s{number}: threads; {sig}"
            runtime.diffattn_rt_set_threads(0)
            for name, array in inputs.arrays.items():
                if name != "norm_weight" and array.ndim and not (name == "lam" and array.ndim == 1) and array.shape[0] == 2:
                    inputs.arrays[name] = array[1:]
            alone = run(library, number, inputs)
            assert np.array_equal(alone, both[1:], equal_nan=True), f"{library[0]} s{number}: batch; {sig}"
