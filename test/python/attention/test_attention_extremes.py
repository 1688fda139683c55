"""The op at the ends of its ranges, on every lowering, against docs/spec.md in f64: positions and windows at which
sums in 32 or 64 bits wrap, kv_len beyond the keys, rows without keys, and numbers near the ends of f32."""
import itertools
import math

import numpy as np
import pytest

import diffattn
from attention_cases import BOUNDS, HALF_STEP, TYPES, module_of
from attention_reference import attention as reference
from diffattn import attention_module, runtime
from kernel_library import runnable_isas

HIGHEST = 2**63 - 1
#: Lowering and type: every instruction set's kernels, the decomposed op, and the kernels of a simulated GPU, tiled, by warpgroups and plain.
LOWERINGS = [*[f"cpu:{isa}" for isa in runnable_isas()], "plain", "cuda-sim:sm_80", "cuda-sim:sm_90a", "cuda-sim:sm_80 f32"]
_plain = {}


class Problem:
    """Operands of one head, with one batch for each of `rows` positions."""

    def __init__(self, dtype, queries, keys, batch=1, *, zero_scores=False, seed=0):
        rng = np.random.default_rng(seed)
        make = lambda length: rng.standard_normal((batch, 1, length, 16)).astype(TYPES[dtype])
        self.dtype = dtype
        self.arrays = [make(queries), make(keys), make(queries), make(keys), make(keys)]
        if zero_scores:
            self.arrays[0][...] = self.arrays[2][...] = 0

    def run(self, lowering, lam=0.3, **options):
        if lowering == "plain":
            return self._decomposed(lam, **options)
        return diffattn.attention(*self.arrays, lam, **options, target=lowering.split()[0])

    def _decomposed(self, lam, **options):
        """The op as linalg, which no target of `diffattn.attention` asks for."""
        arrays = dict(zip(("q1", "k1", "q2", "k2", "v"), self.arrays))
        arrays["lambda"] = np.asarray(lam, np.float32)
        if options.get("attn_mask") is not None:
            arrays["bias"] = options["attn_mask"]
        for name in ("kv_len", "q_offset"):
            if options.get(name) is not None:
                arrays[name] = np.asarray(options[name], np.int64)
        names = ("scale", "is_causal", "window", "softcap", "lam_activation", "norm", "norm_eps", "norm_eps_mode", "out_scale")
        defaults = dict(is_causal=False, norm_eps=1e-5, norm_eps_mode="inside", out_scale=1.0)
        attributes = attention_module.attributes_of(16, attention_module.options_of(*[options.get(n, defaults.get(n)) for n in names]))
        arrays["init"] = np.empty_like(self.arrays[0])
        module = module_of(arrays, attributes)
        if module not in _plain:
            _plain[module] = runtime.Executable(module, reference=True, name="attention")
        _plain[module].call("attention", *arrays.values())
        return arrays["init"]

    def check(self, lowering, lam=0.3, **options):
        got = self.run(lowering, lam, **options).astype(np.float64)
        if (mask := options.pop("attn_mask", None)) is not None:
            options["bias"] = np.where(mask, 0.0, -np.inf)
        for name in ("scale", "softcap", "out_scale", "norm_eps"):
            if options.get(name) is not None:
                options[name] = float(np.float32(options[name]))
        options.setdefault("scale", 0.25)
        with np.errstate(over="ignore", invalid="ignore"):
            expected, magnitude = reference(*self.arrays, np.asarray(lam, np.float32), **options)
        # GPUs take reciprocals below 2^-126 as 0.
        least = 2.0**-126 if lowering.startswith("cuda") else 0.0
        allowed = BOUNDS[self.dtype] * (magnitude + np.abs(expected)) + HALF_STEP[self.dtype] + least
        wrong = ~(np.abs(got - expected) <= allowed)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            chosen = {n: int(options[n][at[0]]) for n in ("kv_len", "q_offset") if n in options}
            raise AssertionError(f"{lowering}: {wrong.sum()} of {wrong.size} wrong, the first at {at}: got {got[at]}, expected "
                                 f"{expected[at]}; {chosen} {options}")
        return got


def dtype_of(lowering):
    return {"cuda-sim:sm_80": "f16", "cuda-sim:sm_90a": "bf16", "cpu:avx512bf16": "bf16"}.get(lowering, "f32")


def positions(window):
    """First queries around everything that a sum with `window` could meet."""
    near = [0, 1, -1, 7, -7, 40, 2**28, 2**29, 2**31, 2**40, 2**62, HIGHEST]
    for side in window or ():
        if side is not None and side >= 0:
            near += [side, side - 3, side + 9, HIGHEST - side]
    both = {x for y in near for x in (y, -y, -y - 1)}
    return sorted(x for x in both if -HIGHEST - 1 <= x <= HIGHEST)


WINDOWS = [None, (5, 3), (HIGHEST, HIGHEST), (2**29 + 5, 2**29), (2**62, -1), (-1, 2**31)]
SIZES = [(3, 40), (20, 40), (70, 90)]  # split over keys or decoded, one block, blocks


def sizes_of(lowering):
    return SIZES[:2] if lowering.startswith("cuda") else SIZES


@pytest.mark.sampled(8)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_positions_and_windows_do_not_wrap(lowering, window, causal):
    offsets = np.array(positions(window), np.int64)
    for queries, keys in sizes_of(lowering):
        Problem(dtype_of(lowering), queries, keys, len(offsets)).check(lowering, is_causal=causal, window=window, q_offset=offsets)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("options", [dict(), dict(is_causal=True), dict(window=(4, 2)), dict(window=(HIGHEST, 1))], ids=str)
def test_kv_len_may_exceed_the_keys(lowering, options):
    """The last query then stands at the last valid key, which is not in memory."""
    for queries, keys in sizes_of(lowering):
        lengths = np.array([0, 1, keys - 1, keys, keys + 1, keys + queries + 2, 2**29, 2**31 + 2, 2**62, HIGHEST], np.int64)
        Problem(dtype_of(lowering), queries, keys, len(lengths)).check(lowering, kv_len=lengths, **options)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("kind", ["numbers", "truth values"])
def test_a_bias_hides_keys_that_are_no_numbers(lowering, kind):
    """Padding may hold anything: -inf is not added to a score of NaN or infinity, it takes its place."""
    for queries, keys in sizes_of(lowering):
        problem = Problem(dtype_of(lowering), queries, keys)
        bias = np.random.default_rng(1).standard_normal((1, 1, queries, keys)).astype(np.float32)
        bias[..., -3:] = -np.inf
        if kind == "truth values":
            bias = bias > -np.inf
        expected = problem.run(lowering, attn_mask=bias, scale=0.25)
        for at, value in ((-1, np.nan), (-2, np.inf), (-3, -np.inf)):
            problem.arrays[1][:, :, at] = problem.arrays[3][:, :, at] = value
        np.testing.assert_array_equal(problem.run(lowering, attn_mask=bias, scale=0.25), expected)
        problem.arrays[3][:, :, 2] = np.nan  # seen: it stays
        assert np.isnan(problem.run(lowering, attn_mask=bias, scale=0.25)).all()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("lowering, dtype", [(f"cpu:{isa}", "bf16" if isa in ("avx512bf16", "amx", "amx-emulated") else "f32") for isa in runnable_isas()])
@pytest.mark.parametrize("queries", [3, 21])
def test_values_reach_exactly_the_rows_that_see_them(lowering, dtype, queries):
    """Infinity and NaN in the values of one key, of each partner of a pair: other rows stay bit by bit what they were."""
    keys = 37
    random = np.random.default_rng(2).random((1, 1, queries, keys)) < 0.6
    rows, columns = np.arange(queries)[:, None] + keys - queries, np.arange(keys)
    kinds = {"causal": ({"is_causal": True}, columns <= rows), "window": ({"window": (9, 3)}, (columns <= rows + 3) & (columns >= rows - 9)),
             "mask": ({"attn_mask": random}, random[0, 0])}
    for (name, (options, sees)), key, value in itertools.product(kinds.items(), (18, 19, 36), (np.nan, np.inf)):
        problem = Problem(dtype, queries, keys)
        before = problem.run(lowering, **options)[0, 0].astype(np.float32)
        problem.arrays[4][0, 0, key, :] = value
        after = problem.run(lowering, **options)[0, 0].astype(np.float32)
        message = f"{name}, values of key {key} are {value}"
        np.testing.assert_array_equal(after[~sees[:, key]], before[~sees[:, key]], err_msg=message)
        assert not np.isfinite(after[sees[:, key]]).any(), message


#: NaN as processors write it, as memory full of ones is read, and with bits that sums of exponents have taken for finite numbers.
NANS = (0x7FC00000, 0xFFFFFFFF, 0x7FC001FF, 0x7F800001)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("number", [0, 1])
def test_a_score_of_minus_infinity_hides_its_key_from_one_map(lowering, number):
    """The other map still sees the key, also where a hidden value beside it is not finite."""
    for queries, seen in ((20, dict(is_causal=True)), (3, dict(attn_mask=np.tri(3, 20, 16, dtype=bool)[None, None]))):
        problem = Problem(dtype_of(lowering), queries, 20)
        q, k = problem.arrays[2 * number : 2 * number + 2]
        q[...], q[..., 0], k[:, :, 2, 0] = 0, -1, np.inf
        finite = problem.check(lowering, **seen)
        problem.arrays[4][:, :, 19, 15] = np.inf
        np.testing.assert_array_equal(problem.run(lowering, **seen).astype(np.float64)[..., :15], finite[..., :15])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("lowering, dtype", [*((lowering, "f32") for lowering in LOWERINGS if lowering != "cuda-sim:sm_90a"),
                                             *((f"cpu:{isa}", "bf16") for isa in runnable_isas())])
@pytest.mark.parametrize("queries", [2, 12])
def test_nan_of_any_bits_reaches_its_rows(lowering, dtype, queries):
    """A NaN of bf16 has the upper half of those bits, or as many ones."""
    for operand, bits in itertools.product(("q1", "q2", "k1", "k2", "bias"), NANS):
        problem = Problem(dtype, queries, keys=11)
        arrays = dict(zip(("q1", "k1", "q2", "k2"), problem.arrays), bias=np.zeros((1, 1, queries, 11), np.float32))
        if arrays[operand].dtype == np.float32:
            arrays[operand].view(np.uint32)[0, 0, 1, 5] = bits
        else:
            arrays[operand].view(np.uint16)[0, 0, 1, 5] = bits >> 16 | (bits & 1)
        got = np.isnan(problem.run(lowering, attn_mask=arrays["bias"]))
        expected = np.full(queries, operand in ("k1", "k2"))
        expected[1] = True
        assert (got == expected[:, None]).all(), f"{operand} {bits:#x}: rows with NaN {np.flatnonzero(got.any(axis=-1))}"


@pytest.mark.sampled(12)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("mode", ["inside", "outside"])
@pytest.mark.parametrize("eps", [0.0, 1e-44])
def test_rows_without_keys_are_zero(lowering, mode, eps):
    norm = dict(norm="rms", norm_eps=eps, norm_eps_mode=mode)
    for queries, keys in sizes_of(lowering):
        problem = Problem(dtype_of(lowering), queries, keys)
        # No key at all, and none for the first rows; whatever lambda is.
        for lam in np.array([[0.3], [np.inf], [np.nan]], np.float32):
            assert not problem.run(lowering, lam, kv_len=np.array([0]), **norm).any()
            got = problem.run(lowering, lam, is_causal=True, q_offset=np.array([-2]), **norm)
            assert not got[:, :, :2].any()
        problem.check(lowering, is_causal=True, q_offset=np.array([-2]), **norm)
        # Keys whose values are 0.
        problem.arrays[4][...] = 0
        assert not problem.run(lowering, **norm).any()
    empty = Problem(dtype_of(lowering), 5, 0)
    assert not empty.run(lowering, **norm).any() and not empty.run(lowering, is_causal=True, **norm).any()


NUMBERS = [
    *[dict(softcap=cap) for cap in (1e-45, 1e-38, 1e4, 3.4e38)],
    *[dict(scale=scale) for scale in (0.0, 1e-45, 1e-38, 1e10, 2.0**64, -(2.0**64))],
    *[dict(scale=scale, softcap=cap) for scale, cap in ((1e-45, 1e-45), (2.0**64, 1e-45), (-(2.0**64), 3.4e38))],
    *[dict(out_scale=scale) for scale in (1e-45, -3e38)],
    *[dict(norm="rms", norm_eps=eps, norm_eps_mode=mode) for eps in (0.0, 1e-45, 3e38) for mode in ("inside", "outside")],
    dict(norm="rms", out_scale=1e38),
]


@pytest.mark.sampled(18)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("number", range(len(NUMBERS)), ids=lambda i: str(NUMBERS[i]))
def test_numbers_at_the_ends_of_f32(lowering, number):
    options = NUMBERS[number]
    for queries, keys in sizes_of(lowering)[:2]:
        for zero_scores in (True, False):
            problem = Problem(dtype_of(lowering), queries, keys, zero_scores=zero_scores)
            if abs(options.get("out_scale", 1)) > 1e4:  # the result would be infinite
                problem.arrays[4] *= np.asarray(0 if problem.dtype == "f16" else 1e-3, problem.arrays[4].dtype)
            problem.check(lowering, **options)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_lambda_at_the_ends_of_f32(lowering):
    for queries, keys in sizes_of(lowering)[:2]:
        problem = Problem(dtype_of(lowering), queries, keys)
        problem.check(lowering, 1e-45)
        problem.check(lowering, -1e-30)
        for lam in (3e38, -3e38):
            got = problem.run(lowering, lam, lam_activation="sigmoid").astype(np.float64)
            expected = problem.run(lowering, 1.0 if lam > 0 else 0.0).astype(np.float64)
            np.testing.assert_allclose(got, expected, rtol=0, atol={"f16": 2e-3, "bf16": 2e-2, "f32": 1e-6}[problem.dtype])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("lowering", [lowering for lowering in LOWERINGS if dtype_of(lowering) == "f32"])
@pytest.mark.parametrize("queries", [3, 20])
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_equal_weights_keep_their_digits(lowering, queries, share):
    """All keys but one have this part of its weight. One chain of additions would round them all alike: the bound counts roundings that differ."""
    for keys in (700, 2000) if lowering.startswith("cuda") else (700, 4000, 16384, 20000):
        problem = Problem("f32", queries, keys)
        (q1, k1, q2, k2, v), score = problem.arrays, -math.log(share)
        q1[...], q2[...], k1[...], k2[...], v[...] = 1, 1, 0, 0, 1
        k1[:, :, 0, 0] = k2[:, :, 0, 0] = 4 * score
        v[:, :, 0] = 0
        with np.errstate(all="raise"):
            expected, magnitude = reference(*problem.arrays, np.float32(0.25), scale=0.25)
        allowed = 2.0**-24 * (2 + 4 * 4 * max(score, 1) + 2 * math.sqrt(keys) + 16)  # docs/numerics.md
        assert (np.abs(problem.run(lowering, 0.25) - expected) <= allowed * magnitude).all(), f"{keys} keys"
