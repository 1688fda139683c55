"""The kernel of gradients: random configurations under schedules of small blocks, which few queries and keys fill many of, and what must not
change a bit: threads, other batches, and what hidden keys hold.
"""
import functools

import attention_reference
import numpy as np
import pytest

from diffattn import runtime
from kernel_library import TYPES, runnable_isas, signature
from test_attention_backward import HEADED, Signature, gradients, judge

SIGNATURES, OF_ONE_MAP = 24, 12
# The ISAs whose vectors of f32 differ, and those that multiply bf16, by pairs or tiles.
LANES = {"generic": 4, "avx2": 8, "avx512": 16, "avx512bf16": 16, "amx-emulated": 16, "amx": 16}
PRODUCTS = {"avx512bf16": "bf16_pairs", "amx-emulated": "bf16_tiles", "amx": "bf16_tiles"}
ISAS = [isa for isa in LANES if isa in runnable_isas()]


def schedule(isa, rng):
    """A schedule for `isa` whose blocks of queries and keys are few vectors, with or without room for all maps."""
    pick = lambda *options: int(options[rng.integers(len(options))])
    vectors, rows, width, keys = pick(1, 2), pick(2, 4), pick(1, 2), pick(16, 32)
    product, tiles = PRODUCTS.get(isa, "f32"), f"[4, {vectors}, 2], pv_tile = [{rows}, {width}, 2]"
    if product == "bf16_tiles":
        tiles, keys = f"[16, {vectors}, 1], pv_tile = [{8 * rows}, 1, 1]", 32
    return make_schedule(isa, product, 2, tiles, keys, pick(0, 20, 1000), pick(2, 4, 16))


def make_schedule(isa, product, vectors, tiles, keys, two_pass_keys, slices):
    """The schedule of `vectors` vectors of queries in a block, and `slices` in a slice. `tiles`: qk_tile, and behind it pv_tile."""
    lanes = LANES[isa]
    return (f"#diffattn.cpu_backward<isa = \"{isa}\", lanes = {lanes}, q_block_size = {vectors * lanes}, qk_tile = {tiles}, kv_block_size = {keys}, "
            f"two_pass_keys = {two_pass_keys}, q_slice_size = {slices * lanes}, product = {product}>")


class Scheduled(Signature):
    """A signature whose op has a schedule, and no gradient of a bias."""

    QUERIES, KEYS = [1, 5, 16, 33, 50, 70], [1, 16, 17, 40, 75]

    def __init__(self, rng, number, isa, sig=None, maps=2):
        self.isa = isa
        super().__init__(rng, number, sig, maps)
        if rng.random() < 0.5:  # an epsilon whose place matters
            self.sig["eps"] = 0.5
        self.wanted = [name for name in self.wanted if name != "d_bias"]
        if not any(name.startswith("d_") for name in self.wanted):
            self.wanted.append("d_v")
            self.types["d_v"] = "f32"
        self.schedule = schedule(isa, rng)
        if isa in PRODUCTS and number % 8:  # beside a d_out of f32 all is widened
            self.types["d_out"] = self.sig["type"]

    def options(self, rng, number, maps):
        """Where bf16 is multiplied, three of four are of it."""
        drawn = super().options(rng, number, maps)
        if self.isa in PRODUCTS and number % 4:
            drawn.update(type="bf16", bias="bf16" if drawn["bias"] == drawn["type"] else drawn["bias"])
        return drawn

    def text(self, form, arrays):
        before, _, behind = super().text(form, arrays).rpartition("{scale = ")
        return f"{before}{{schedules = [{self.schedule}], scale = {behind}"


@functools.cache
def compiled(text, threads=None):
    return runtime.Executable(text, threads=threads, cache=False)


@pytest.fixture(scope="module", params=ISAS)
def isa(request):
    return request.param


@pytest.fixture(scope="module")
def signatures(isa, full):
    rng = np.random.default_rng(31)
    drawn = [Scheduled(rng, number, isa, maps=2 if number < SIGNATURES else 1) for number in range(SIGNATURES + OF_ONE_MAP)]
    step = 7 if PRODUCTS.get(isa) == "bf16_tiles" else 5  # none of them a divisor of the numbers of draws: types and widths differ
    return drawn if full else drawn[ISAS.index(isa) :: step]


@pytest.fixture(scope="module")
def executable(signatures):
    return compiled("".join(one.text("tensor", one.draw(0)) for one in signatures))


def test_small_blocks(signatures, executable, full):
    for one in signatures:
        for seed in range(1 if one.isStatic else 20 if full else 3):
            arrays = one.draw(seed)
            judge(executable, one, arrays, executable.call(f"s{one.number}", *arrays.values()))


class Shaped(Scheduled):
    """Causal attention of three heads of queries for each of keys, of lengths of its own, in f32 or what the ISA multiplies. Gradients are f32."""

    def __init__(self, isa, number=1, shared=False, lengths=False, sigmoid=False, element=None):
        super().__init__(np.random.default_rng(5), number, isa,
                         signature(causal=True, norm="rms", weight=True, gate=True, lam="signal", sizes=(8, 16), kv_len=lengths, sigmoid=sigmoid))
        self.layouts, self.shared, self.saves = dict.fromkeys("qkvo", "bhtd"), shared, False
        self.operands = ["q1", "k1", "q2", *["k2"] * (not shared), "v", "d_out", "lambda", "norm_weight", "gate"]
        self.wanted = ["d_" + name for name in self.operands if name != "d_out"]
        self.operands += ["kv_len"] * lengths
        self.types.update(dict.fromkeys(self.operands + self.wanted, "f32"), kv_len="i64")
        self.element = element or ("bf16" if isa in PRODUCTS else "f32")
        self.types.update(dict.fromkeys((name for name in HEADED if name in self.operands), self.element))

    def draw(self, batches, queries=70, keys=70, heads=6, shared=3):
        """Arrays whose first batches are the same for each number of batches."""
        rngs = [np.random.default_rng([7, batch]) for batch in range(batches)]
        make = lambda *shape: np.stack([rng.standard_normal(shape, np.float32) for rng in rngs])
        arrays = {"q1": make(heads, queries, 8), "q2": make(heads, queries, 8), "k1": make(heads // shared, keys, 8), "k2": make(heads // shared, keys, 8),
                  "v": make(heads // shared, keys, 16), "d_out": make(heads, queries, 16), "gate": make(heads, queries, 16), "lambda": make(queries, heads),
                  "norm_weight": np.linspace(0.5, 1.5, 16, dtype=np.float32), "kv_len": np.full(batches, keys)}
        arrays = {name: arrays[name].astype(TYPES[self.types[name]]) for name in self.operands}
        return arrays | {name: np.empty(arrays[name[2:]].shape, TYPES[self.types[name]]) for name in self.wanted}


def fill(one, isa, again):
    """Gives a shape slices of 32 queries or less, and room for all maps or for those of 20 keys. What tiles do not multiply is widened."""
    product, vectors, tiles, keys = PRODUCTS.get(isa, "f32"), 1, "[4, 1, 2], pv_tile = [4, 1, 2]", 16
    if product == "bf16_tiles":
        if one.element == "bf16":
            vectors, tiles, keys = 2, "[16, 1, 1], pv_tile = [16, 1, 1]", 32
        else:
            product = "f32"
    one.schedule = make_schedule(isa, product, vectors, tiles, keys, 20 if again else 1000, vectors)
    return one


@pytest.fixture(scope="module")
def shaped(isa):
    """A kernel that keeps all maps and one that makes them again."""
    return [fill(Shaped(isa, 1), isa, False), fill(Shaped(isa, 3), isa, True)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("again", [False, True])
def test_threads_and_other_batches_change_no_bit(shaped, again):
    """Slices are work items where there are few groups of heads for each thread, and else follow one another."""
    one, results = shaped[again], {}
    for threads in (1, 2, 4):
        executable = compiled(one.text("tensor", one.draw(1)), threads)
        for batches in (1, 2, 9):
            results[threads, batches] = gradients(one, executable, one.draw(batches))
    for (threads, batches), got in results.items():
        for name in one.wanted:
            np.testing.assert_array_equal(got[name], results[1, batches][name], f"{name} of {threads} threads")
            if name != "d_norm_weight":
                np.testing.assert_array_equal(got[name][:1], results[1, 1][name], f"{name} of {batches} batches")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_hidden_pairs_may_hold_anything(shaped, again, bad):
    """A key that is not finite changes no query before it, and a query or its d_out no key behind it."""
    one = shaped[again]
    executable = compiled(one.text("tensor", one.draw(1)))
    clean, at = gradients(one, executable, one.draw(1)), 37
    for name in ("k1", "k2", "v"):
        arrays = one.draw(1)
        arrays[name][0, :, at, 3] = bad
        got = gradients(one, executable, arrays)
        for query in ("d_q1", "d_q2"):
            np.testing.assert_array_equal(got[query][0, :, :at], clean[query][0, :, :at], f"{query} by {name}")
            assert not np.isfinite(got[query][0, :, at:]).all(), (query, name)
    for name in ("q1", "q2", "d_out"):
        arrays = one.draw(1)
        arrays[name][0, :, at, 3] = bad
        got = gradients(one, executable, arrays)
        for key in ("d_k1", "d_k2", "d_v"):
            np.testing.assert_array_equal(got[key][0, :, at + 1:], clean[key][0, :, at + 1:], f"{key} by {name}")
        assert not np.isfinite(got["d_v"][0, :, : at + 1]).all(), name
        for query in ("d_q1", "d_q2"):
            np.testing.assert_array_equal(np.delete(got[query], at, 2), np.delete(clean[query], at, 2), f"{query} by {name}")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_without_keys_give_nothing(isa, again, bad):
    """Whatever stands in the batch that has no keys, also its lambda or the logits of it."""
    one = fill(Shaped(isa, lengths=True, sigmoid=not again), isa, again)
    executable = compiled(one.text("tensor", one.draw(1)))
    clean, dirty = one.draw(2), one.draw(2)
    clean["kv_len"][1] = dirty["kv_len"][1] = 0
    for name in one.operands:
        if name not in ("norm_weight", "kv_len"):
            dirty[name][1] = bad
    expected, got = gradients(one, executable, clean), gradients(one, executable, dirty)
    for name in one.wanted:
        np.testing.assert_array_equal(got[name], expected[name], name)
        assert np.isfinite(got[name]).all(), name
        assert name == "d_norm_weight" or not got[name][1].any() and got[name][0].any(), name


def tolerance(isa):
    """Largest error of a gradient, in parts of the largest: sums of f32, or of terms that are rounded to bf16."""
    return 1e-2 if isa in PRODUCTS else 5e-6


def test_properties_of_gradients(isa, shaped):
    """A constant that is added to all keys changes no map, so gradients of keys sum to 0; without lambda map 2 has none; and heads that share keys
    are heads with copies of them."""
    one = shaped[0]
    executable = compiled(one.text("tensor", one.draw(2)))
    arrays = one.draw(2)
    got = gradients(one, executable, arrays)
    for name in ("d_k1", "d_k2"):
        assert np.abs(got[name].sum(2)).max() < 2 * tolerance(isa) * np.abs(got[name]).sum(2).max(), name
    copies = {name: np.repeat(array, 3, 1) if name in ("k1", "k2", "v") else array for name, array in arrays.items()}
    copies.update({"d_" + name: np.empty_like(copies[name], np.float32) for name in ("k1", "k2", "v")})
    apart = gradients(one, executable, copies)
    for name in one.wanted:
        sums = apart[name].reshape(2, 2, 3, *apart[name].shape[2:]).sum(2) if name in ("d_k1", "d_k2", "d_v") else apart[name]
        np.testing.assert_allclose(got[name], sums, atol=tolerance(isa) * np.abs(sums).max(), err_msg=name)
    arrays["lambda"][:] = 0
    got = gradients(one, executable, arrays)
    assert not got["d_q2"].any() and not got["d_k2"].any() and got["d_lambda"].any() and got["d_q1"].any()


def test_one_matrix_of_keys(isa):
    """Where k2 is k1, d_k1 is the sum of both gradients."""
    both, one = Shaped(isa), Shaped(isa, shared=True)
    arrays = both.draw(2)
    arrays["k2"] = arrays["k1"]
    apart = gradients(both, compiled(both.text("tensor", arrays)), arrays)
    given = {name: arrays[name] for name in one.operands + one.wanted}
    got = gradients(one, compiled(one.text("tensor", given)), given)
    expected = {**apart, "d_k1": apart["d_k1"] + apart["d_k2"]}
    for name in one.wanted:
        np.testing.assert_allclose(got[name], expected[name], atol=tolerance(isa) * np.abs(expected[name]).max(), err_msg=name)


def exact_gradients(arrays, eps):
    given = {name: array for name, array in arrays.items() if not name.startswith("d_") and name != "lambda"}
    got = attention_reference.gradients(arrays["d_out"], lam=arrays["lambda"], **given, scale=signature()["scale"], is_causal=True, norm="rms",
                                        norm_eps=eps)
    return {f"d_{'lambda' if name == 'lam' else name}": gradient for name, gradient in got.items()}


def fused_calls(arrays, eps, rounded):
    """Gradients by the formulas of two fused calls, one for each map, as libraries have them: the maps, their gradients, both products with the
    values, X, dX and results are `rounded`."""
    f64 = {name: array.astype(np.float64) for name, array in arrays.items() if not name.startswith("d_") or name == "d_out"}
    heads, queries = f64["q1"].shape[1:3]
    group = heads // f64["k1"].shape[1]
    wide = lambda x: np.repeat(x, group, 1)
    narrow = lambda x: rounded(x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2))
    hidden = np.where(np.tri(queries, dtype=bool), 0, -np.inf)
    v, lam, scale = wide(f64["v"]), f64["lambda"].swapaxes(1, 2)[..., None], signature()["scale"]
    maps, outs = [], []
    for q, k in (("q1", "k1"), ("q2", "k2")):
        scores = scale * f64[q] @ wide(f64[k]).swapaxes(2, 3) + hidden
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        sums = powers.sum(-1, keepdims=True)
        maps.append(powers / sums)
        outs.append(rounded(rounded(powers) @ v / sums))
    x = rounded(outs[0] - lam * outs[1])
    rho = np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    n, slope = x / rho, 1 / (1 + np.exp(-f64["gate"]))
    dn = f64["norm_weight"] * f64["d_out"] * slope
    dx = rounded((dn - n * (dn * n).mean(-1, keepdims=True)) / rho)
    got = {"d_lambda": -(dx * outs[1]).sum(-1).swapaxes(1, 2), "d_v": 0}
    for number, (a, out, d_out) in enumerate(zip(maps, outs, (dx, rounded(-lam * dx))), 1):
        ds = rounded(a * (d_out @ v.swapaxes(2, 3) - (d_out * out).sum(-1, keepdims=True)))
        got[f"d_q{number}"] = rounded(scale * ds @ wide(f64[f"k{number}"]))
        got[f"d_k{number}"] = narrow(scale * ds.swapaxes(2, 3) @ f64[f"q{number}"])
        got["d_v"] = rounded(got["d_v"] + narrow(rounded(a).swapaxes(2, 3) @ d_out))
    return got


@pytest.mark.sampled(4)
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("element", ["bf16", "f16"])
def test_errors_are_those_of_two_fused_calls(isa, element, again):
    """At most 1.5 times of them, by norms, whether numbers are multiplied in pairs, by tiles or widened."""
    one = fill(Shaped(isa, element=element), isa, again)
    one.types.update({"d_" + name: element for name in ("q1", "k1", "q2", "k2", "v")})
    arrays = one.draw(4)
    got = gradients(one, compiled(one.text("tensor", arrays)), arrays)
    exact = exact_gradients(arrays, one.sig["eps"])
    fused = fused_calls(arrays, one.sig["eps"], lambda x: x.astype(np.float32).astype(TYPES[element]).astype(np.float64))
    for name in fused:
        ours, theirs = (np.linalg.norm(x[name] - exact[name]) / np.linalg.norm(exact[name]) for x in (got, fused))
        assert ours < 1.5 * theirs < 0.1, (name, ours, theirs)
