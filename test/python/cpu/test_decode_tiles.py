"""Few queries in bf16 by matrix tiles (`product = bf16_tiles` of `#diffattn.cpu_split_kv`), on every target that has them."""
import multiprocessing
import sys

import ml_dtypes
import numpy as np
import pytest

import diffattn
from attention_cases import Call, draw_signature, memref, plain_signature
from diffattn import attention_module, runtime
from kernel_library import call, compile_library, function_text, runnable_isas, signature
from paths import ROOT
from test_amx_tiles import product

ISAS = [isa for isa in runnable_isas() if isa.startswith("amx")]
BF16 = ml_dtypes.bfloat16
#: Widths of a head: whole tiles, pairs behind them, an odd column, more than is unrolled.
WIDTHS = [(64, 128), (32, 64), (80, 48), (33, 20), (20, 33), (2, 4), (300, 16)]


@pytest.fixture(params=ISAS)
def target(request):
    return f"cpu:{request.param}"


@pytest.mark.parametrize("number", [pytest.param(n, marks=pytest.mark.sampled(8)) for n in range(24)])
def test_random_calls(target, number):
    rng = np.random.default_rng(500 + number)
    sig = draw_signature(rng, dtype="bf16", widths=WIDTHS[number % len(WIDTHS)], maps=1 if number % 8 == 3 else 2)
    sig = {n: "bf16" if x == "f16" else x for n, x in sig.items()}  # numbers of masks and of the norm
    if number % 4 == 1:  # more rows than a tile has
        sig.update(signal=20, noise=10, key1=1, key2=int(rng.choice([1, 10])), value=int(rng.choice([1, 4])), shared=False)
    for queries in rng.permutation(9)[:2]:
        for keys in (int(rng.integers(1, 50)), int(rng.integers(500, 540))):
            Call(rng, sig, queries=max(int(queries), 1), keys=max(keys, 10)).check(target)


def same_bits(got, want):
    return got.shape == want.shape and got.tobytes() == want.tobytes()


# ---- scores, by a chain of scalar operations -------------------------------------------------------------------------

def draw_chain(rng, queries, keys, width):
    """Queries and keys in whose products large terms cancel, so that every order of sums gives another one."""
    draw = lambda rows: rng.uniform(1, 2, (rows, width)) * rng.choice([-1, 1], (rows, width))
    q, k = draw(queries), draw(keys)
    columns = rng.permutation(width)
    given, taken = columns[: width // 4], columns[width // 4 : width // 4 * 2]
    for x, sign in ((q, -1), (k, 1)):
        x[:, given] *= 2**12
        x[:, taken] = sign * x[:, given]
    return q.astype(np.float32).astype(BF16), k.astype(np.float32).astype(BF16)


def scores(queries, keys):
    """[rows, keys] as tiles make them: steps of 32 columns, of which those that are missing are 0."""
    rows, width = queries.shape
    padded = -(-width // 32) * 32
    q, k = np.zeros((rows, padded), BF16), np.zeros((len(keys), padded), BF16)
    q[:, :width], k[:, :width] = queries, keys
    sums = np.zeros((len(keys), rows), np.float32)
    for c in range(0, padded, 32):
        pairs = q[:, c : c + 32].reshape(rows, 16, 2).swapaxes(0, 1).reshape(16, 2 * rows)
        sums = product(k[:, c : c + 32], pairs, sums)
    return sums.T


@pytest.mark.sampled(3)
@pytest.mark.parametrize("heads, width", [(1, 64), (3, 40), (4, 33), (17, 64), (5, 300)])
def test_scores_are_a_chain_of_scalar_operations(target, heads, width):
    rng = np.random.default_rng(heads)
    keys = 21
    q, k = draw_chain(rng, heads, keys, width)
    raw = scores(q, k).astype(np.float64)
    exact = q.astype(np.float64) @ k.astype(np.float64).T
    assert np.abs(raw - exact).max() > 1, "the order of sums is to be seen"
    scale = 2.0 / np.abs(raw).max()
    e = np.exp(float(np.float32(scale)) * (raw - raw.max(1, keepdims=True)))
    out = np.empty((1, heads, 1, keys), np.float32)
    values = np.eye(keys, dtype=np.float32).astype(BF16)[None, None]
    diffattn.attention(q[None, :, None], k[None, None], q[None, :, None], k[None, None], values, 0.0, scale=scale, target=target, out=out)
    np.testing.assert_allclose(out[0, :, 0], e / e.sum(1, keepdims=True), rtol=3e-6)


def test_subnormal_numbers_are_zero_and_can_be_had(target):
    """The form of every other instruction set, written as a schedule, keeps them: which form runs, the schedule says."""
    tiny = np.float32(2.0**-127)
    q, v = np.full((1, 1, 1, 32), 2.0**120, np.float32).astype(BF16), np.array([[[[1, 0], [0, 1]]]], np.float32).astype(BF16)
    k = np.zeros((1, 1, 2, 32), np.float32)
    k[0, 0, 0] = tiny
    k = k.astype(BF16)
    assert float(k[0, 0, 0, 0]) == tiny
    options = attention_module.attributes_of(32, attention_module.options_of(64.0, False, None, None, None, None, 1e-5, "inside", 1.0))
    arrays = dict(q1=q, k1=k, q2=q, k2=k, v=v, init=np.empty((1, 1, 1, 2), BF16), **{"lambda": np.float32(0).reshape(())})
    order = ("q1", "k1", "q2", "k2", "v", "lambda", "init")
    types = tuple((n, memref(n, arrays[n])) for n in order)
    isa = target.removeprefix("cpu:")
    split = (f'schedules = [#diffattn.cpu_split_kv<isa = "{isa}", lanes = 16, kv_split_size = 512, qk_rows = 4, q_vectors = 16, pv_rows = 2, '
             "pv_keys = 16, o_vectors = 16, o_row_vectors = 8{}>]")
    results = {}
    for name, schedule in (("chosen", ""), ("tiles", ", " + split.format(", product = bf16_tiles")), ("f32", ", " + split.format(""))):
        arrays["init"] = np.empty((1, 1, 1, 2), BF16)
        runtime.Executable(attention_module.module(types, options + schedule, False), target=target, cache=False).call(
            "attention", *[arrays[n] for n in order])
        results[name] = arrays["init"].astype(np.float32).ravel()
    np.testing.assert_array_equal(results["tiles"], [0.5, 0.5])
    np.testing.assert_array_equal(results["chosen"], [0.5, 0.5])
    assert results["f32"][0] > 0.99, results


# ---- what a row depends on -------------------------------------------------------------------------------------------

def operands(rng, queries, keys, *, batch=1, signal=8, noise=4, key=2, widths=(48, 32), room=0):
    def make(heads, length, width):
        memory = np.full((batch, length, heads, width + room), np.nan, np.float32).astype(BF16)
        memory[..., :width] = rng.standard_normal((batch, length, heads, width))
        return memory[..., :width].swapaxes(1, 2)

    return [make(signal, queries, widths[0]), make(key, keys, widths[0]), make(noise, queries, widths[0]), make(key, keys, widths[0]),
            make(key, keys, widths[1])]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("window", [None, (37, 0)])
def test_a_row_is_the_same_whatever_is_beside_it(target, window):
    rng = np.random.default_rng(4)
    options = dict(is_causal=True, window=window, target=target)
    q1, k1, q2, k2, v = operands(rng, 8, 1100, batch=3)
    whole = diffattn.attention(q1, k1, q2, k2, v, 0.3, **options)
    # Alone in the batch.
    for b in range(3):
        got = diffattn.attention(*(x[b : b + 1] for x in (q1, k1, q2, k2, v)), 0.3, **options)
        assert same_bits(got, whole[b : b + 1]), b
    # Without the other queries, which are later tokens too.
    for first, last in ((0, 1), (0, 3), (2, 7), (7, 8)):
        for length in (1092 + last, 1100):
            got = diffattn.attention(q1[:, :, first:last], k1[:, :, :length], q2[:, :, first:last], k2[:, :, :length], v[:, :, :length], 0.3,
                                     q_offset=np.full(3, 1092 + first), **options)
            assert same_bits(got, whole[:, :, first:last]), (first, last, length)
    # Without the other heads that share its keys.
    for head in (0, 1, 6):
        noise, key = head // 2, head // 4
        got = diffattn.attention(q1[:, head : head + 1], k1[:, key : key + 1], q2[:, noise : noise + 1], k2[:, key : key + 1],
                                 v[:, key : key + 1], 0.3, **options)
        assert same_bits(got, whole[:, head : head + 1]), head


HIDDEN = {"kv_len": slice(50, None), "mask": slice(0, 70, 3), "segments": slice(20, 41), "causal": slice(60, None)}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("widths", [(64, 32), (48, 32), (33, 16)])
@pytest.mark.parametrize("hide", HIDDEN)
def test_what_is_not_finite_stays_where_it_is_seen(target, hide, widths):
    rng = np.random.default_rng(6)
    arrays = operands(rng, 3, 70, widths=widths, room=3)
    hidden = np.zeros(70, bool)
    hidden[HIDDEN[hide]] = True
    options = {"kv_len": dict(kv_len=50), "mask": dict(attn_mask=~hidden[None, None, None]), "causal": dict(is_causal=True, q_offset=57),
               "segments": dict(segment_ids=(np.zeros((1, 3), np.int32), hidden[None].astype(np.int32)))}[hide]
    run = lambda *a: diffattn.attention(*a, 0.3, target=target, out=np.empty((1, 8, 3, widths[1]), np.float32), **options)
    clean = run(*arrays)
    assert np.isfinite(clean).all()
    for bad in (np.nan, np.inf):
        poisoned = [x.copy() for x in arrays]
        for number in (1, 3, 4):
            poisoned[number][:, :, hidden] = bad
        assert same_bits(run(*poisoned), clean), bad
    # A key that all see, of one head and map: the rows of its heads, and no other.
    for number, key in ((1, 1), (3, 0)):
        poisoned = [x.copy() for x in arrays]
        poisoned[number][0, key, 43, widths[0] - 1] = np.nan
        got = run(*poisoned)
        hit = np.arange(8) // 4 == key
        assert np.isnan(got[:, hit]).all() and same_bits(got[:, ~hit], clean[:, ~hit]), number
    # A query: its row of the heads that read it.
    for number, head, reads in ((0, 5, [5]), (2, 1, [2, 3])):
        poisoned = [x.copy() for x in arrays]
        poisoned[number][0, head, 1, 0] = np.nan
        got, want = run(*poisoned), clean.copy()
        assert np.isnan(got[0, reads, 1]).all(), number
        want[0, reads, 1] = got[0, reads, 1]
        assert same_bits(got, want), number


# ---- memory ----------------------------------------------------------------------------------------------------------

def call_between_forbidden_pages(target, width):
    sys.path.insert(0, str(ROOT / "test/python/fuzz/attack"))
    from guarded import Guarded

    rng = np.random.default_rng(width)
    for keys in (1, 15, 16, 17, 48, 513):
        arrays = operands(rng, 1, keys, signal=6, noise=3, key=3, widths=(width, 16))
        arrays = [np.ascontiguousarray(x) for x in arrays]
        want = diffattn.attention(*arrays, 0.3, target=target)
        for at_end in (True, False):
            placed, fences = [], []
            for x in arrays:
                fences.append(Guarded(x.nbytes, at_end))
                view = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * x.nbytes).from_address(fences[-1].address))
                view[...] = x.view(np.uint8).ravel()
                placed.append(view.view(BF16).reshape(x.shape))
            assert same_bits(diffattn.attention(*placed, 0.3, target=target), want), (keys, at_end)
            assert all(fence.slack_is_clean() for fence in fences)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("width", [64, 40, 33])
def test_nothing_behind_keys_is_read(target, width):
    process = multiprocessing.get_context("spawn").Process(target=call_between_forbidden_pages, args=(target, width))
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("step", [1, 2])
def test_columns_apart(target, step):
    """Columns of keys that lie apart are copied, and the copies are multiplied: the bits are those of dense keys."""
    rng = np.random.default_rng(9)
    sig = plain_signature(widths=(64, 32), step=step, signal=4, noise=2, key1=2, key2=1, value=1)
    call = Call(rng, sig, batch=1, queries=2, keys=45)
    got = call.check(target)
    dense = [np.ascontiguousarray(x) for x in call.operands[:5]]
    assert same_bits(got, diffattn.attention(*dense, call.lam, **call.options, target=target))


def test_copies_of_keys_end_with_zeros(target, build_dir, tmp_path):
    """A thread's memory still holds the keys of the call before, NaN, behind the columns of narrower keys: known widths and others."""
    rng = np.random.default_rng(3)
    isa = target.removeprefix("cpu:")
    sig = signature(type="bf16")
    library, names = compile_library([sig], isa, build_dir, tmp_path), function_text(0, sig, isa)[1]

    def dynamic(*arrays):
        out = np.empty((*arrays[0].shape[:3], arrays[4].shape[3]), BF16)
        given = dict(zip(("q1", "k1", "q2", "k2", "v"), arrays), lam=np.asarray(0.3, np.float32), out=out)
        call(library, 0, names, {n: given[n] for n in names})
        return out

    def apart(x):
        return np.repeat(x, 2, axis=3)[..., ::2]

    for run in (dynamic, lambda *x: diffattn.attention(*map(apart, x), 0.3, scale=0.17, target=target)):
        make = lambda width: operands(rng, 1, 48, batch=8, signal=8, noise=8, key=1, widths=(width, 16))
        arrays = make(33)
        clean = run(*arrays)
        assert np.isfinite(clean.astype(np.float32)).all()
        before = make(64)
        for x in (before[1], before[3]):
            x[...] = np.nan
        assert np.isnan(run(*before).astype(np.float32)).all()
        assert same_bits(run(*arrays), clean)
