"""Segment ids: `segment_ids` of `diffattn.attention` beside the boolean mask that says the same, and what must hold for any numbers."""
import diffattn
import ml_dtypes
import numpy as np
import pytest
from diffattn.runtime import InputError, UsageError

# Every instruction set is for test_attention_exact.py and test_attention_random.py.
TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}
BOUNDS = {"f32": 2e-6, "bf16": 1.6e-2}


def operands(rng, queries, keys, dtype="f32", *, batch=1, signal=2, noise=1, key=1, width=16, value=24, layout="bhtd"):
    def make(heads, length, size):
        if layout == "bhtd":
            return rng.standard_normal((batch, heads, length, size)).astype(TYPES[dtype])
        return rng.standard_normal((batch, length, heads, size)).astype(TYPES[dtype]).swapaxes(1, 2)

    return (make(signal, queries, width), make(key, keys, width), make(noise, queries, width), make(1, keys, width), make(key, keys, value), 0.4)


def seen_by(ids):
    return (ids[0][:, None, :, None] == ids[1][:, None, None, :])


def runs(*lengths):
    return np.repeat(np.arange(len(lengths)), lengths)[None]


def close(got, want, dtype):
    np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(want, np.float32), rtol=0, atol=BOUNDS[dtype] * 8)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("queries", [1, 3, 150])
def test_equals_the_boolean_mask(dtype, queries):
    rng = np.random.default_rng(queries)
    keys = 300
    choices = [runs(70, 1, 64, 100, 65), rng.integers(0, 3, (1, keys)), np.full((1, keys), -5), runs(keys), rng.permutation(keys)[None]]
    for number, ids in enumerate(choices):
        args = operands(rng, queries, keys, dtype)
        segments = ids[:, keys - queries:], ids
        for options in (dict(), dict(is_causal=True, window=(40, 0), softcap=20.0)):
            got = diffattn.attention(*args, **options, segment_ids=segments)
            close(got, diffattn.attention(*args, **options, attn_mask=seen_by(segments)), dtype)
        # All masks together, and the mask that says both.
        hide = rng.random((1, 1, queries, keys)) < 0.8
        options = dict(is_causal=True, window=(200, 3), kv_len=np.array([keys - 9]), q_offset=np.array([keys - queries - 5]))
        got = diffattn.attention(*args, **options, attn_mask=hide, segment_ids=segments)
        close(got, diffattn.attention(*args, **options, attn_mask=hide & seen_by(segments)), dtype)
        bias = np.where(hide, rng.standard_normal(hide.shape), -np.inf).astype(np.float32)
        got = diffattn.attention(*args, **options, attn_mask=bias, segment_ids=segments)
        close(got, diffattn.attention(*args, **options, attn_mask=np.where(seen_by(segments), bias, np.float32(-np.inf))), dtype)


@pytest.mark.parametrize("layout", ["bhtd", "bthd"])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_are_independent(layout, causal):
    rng = np.random.default_rng(1)
    lengths = [5, 64, 1, 130, 63, 48, 17]
    q1, k1, q2, k2, v, lam = operands(rng, sum(lengths), sum(lengths), signal=4, noise=2, key=2, layout=layout)
    whole = diffattn.attention(q1, k1, q2, k2, v, lam, is_causal=causal, segment_ids=(runs(*lengths), runs(*lengths)))
    for first, length in zip(np.cumsum([0, *lengths]), lengths):
        part = [x[:, :, first: first + length] for x in (q1, k1, q2, k2, v)]
        close(whole[:, :, first: first + length], diffattn.attention(*part, lam, is_causal=causal), "f32")


HUGE = [-(2**63), 2**63 - 1, 0, -1, 3, 3 + 2**32, 3 - 2**32, 2**62]


@pytest.mark.parametrize("queries", [2, 130])
def test_numbers_are_names(queries):
    """Other numbers for the same segments, huge, negative or equal in 32 bits, change nothing but which tiles are skipped."""
    rng = np.random.default_rng(2)
    keys = 257
    for ids in (np.sort(rng.integers(0, 8, (2, keys)), 1), rng.integers(0, 8, (2, keys))):
        args = operands(rng, queries, keys, batch=2)
        run = lambda names: diffattn.attention(*args, segment_ids=(names[:, -queries:], names))
        first = run(ids)
        assert np.array_equal(run(ids.astype(np.int32)), first)
        for _ in range(3):
            close(run(rng.permutation(np.array(HUGE))[ids]), first, "f32")
            close(run(rng.permutation(8).astype(np.int32)[ids] - 4), first, "f32")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("queries", [1, 2, 100])
def test_what_is_hidden_does_not_matter(dtype, queries):
    """NaN in keys and values of other segments, in whole tiles of them and beside visible ones; queries without a segment give 0."""
    rng = np.random.default_rng(3)
    keys = 400
    for ids in (runs(100, 37, 163, 100), rng.integers(0, 3, (1, keys))):
        q1, k1, q2, k2, v, lam = operands(rng, queries, keys, dtype)
        mine = np.where(rng.random((1, queries)) < 0.2, 77, 1)
        run = lambda: diffattn.attention(q1, k1, q2, k2, v, lam, segment_ids=(mine, ids))
        clean = run()
        for bad in (np.nan, np.inf):
            for x in (k1, k2, v):
                x[:, :, ids[0] != 1] = bad
            assert np.array_equal(run().astype(np.float32), clean.astype(np.float32))
        assert not clean[:, :, mine[0] == 77].astype(np.float32).any()


def test_decode_in_a_cache():
    """Numbers for the whole capacity; those behind kv_len are not looked at."""
    rng = np.random.default_rng(4)
    capacity = 900
    for queries in (1, 4):
        args = operands(rng, queries, capacity, batch=3, signal=8, noise=4, key=2)
        lengths = np.array([900, 513, 0])
        ids = rng.integers(0, 2, (3, 900)) if queries == 4 else np.sort(rng.integers(0, 3, (3, 900)), 1)
        mine = np.ones((3, queries), np.int64)
        run = lambda: diffattn.attention(*args, is_causal=True, kv_len=lengths, segment_ids=(mine, ids))
        got = run()
        close(got, diffattn.attention(*args, is_causal=True, kv_len=lengths, attn_mask=seen_by((mine, ids))), "f32")
        assert not got[2].any()
        ids[1, 513:] = 1
        assert np.array_equal(run(), got)


def test_strided_numbers():
    rng = np.random.default_rng(5)
    args = operands(rng, 70, 140, batch=2)
    ids = np.sort(rng.integers(0, 4, (2, 140)), 1)
    spread = np.zeros((2, 280), np.int64)[:, ::2]
    spread[...] = ids
    for queries in (70, 3):
        few = [x[:, :, :queries] if x.shape[2] == 70 else x for x in args[:5]]
        want = diffattn.attention(*few, 0.4, segment_ids=(ids[:, :queries], ids))
        assert np.array_equal(diffattn.attention(*few, 0.4, segment_ids=(spread[:, :queries], spread)), want)
        one = np.broadcast_to(ids[:1], ids.shape)
        close(diffattn.attention(*few, 0.4, segment_ids=(one[:, :queries], one)),
              diffattn.attention(*few, 0.4, segment_ids=(one[:, :queries].copy(), one.copy())), "f32")


def test_no_queries_and_no_keys():
    rng = np.random.default_rng(6)
    empty = lambda n: np.zeros((1, n), np.int64)
    assert diffattn.attention(*operands(rng, 0, 5), segment_ids=(empty(0), empty(5))).shape == (1, 2, 0, 24)
    assert not diffattn.attention(*operands(rng, 40, 0), segment_ids=(empty(40), empty(0))).any()


IDS = np.zeros((1, 6), np.int64), np.zeros((1, 9), np.int64)
WRONG = {
    "only one": (IDS[0], UsageError, r"segment_ids: expected \(q_segments, kv_segments\)"),
    "one and none": ((IDS[0], None), UsageError, r"segment_ids: expected \(q_segments, kv_segments\)"),
    "three": ((*IDS, IDS[0]), UsageError, r"segment_ids: expected \(q_segments, kv_segments\)"),
    "floats": ((IDS[0].astype(np.float32), IDS[1].astype(np.float32)), InputError, "q_segments: expected int64 or int32, but got float32"),
    "other integers": ((IDS[0].astype(np.uint64), IDS[1]), InputError, "q_segments: expected int64 or int32, but got uint64"),
    "two types": ((IDS[0], IDS[1].astype(np.int32)), InputError, "kv_segments: expected int64 as q_segments, but got int32"),
    "swapped": (IDS[::-1], InputError, r"q_segments: expected shape \[1, 6\], but got \[1, 9\]"),
    "rank": ((IDS[0][0], IDS[1]), InputError, r"q_segments: expected shape \[1, 6\], but got \[6\]"),
    "batches": ((IDS[0], np.zeros((2, 9), np.int64)), InputError, r"kv_segments: expected shape \[1, 9\], but got \[2, 9\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    segments, error, text = WRONG[name]
    with pytest.raises(error, match=text):
        diffattn.attention(*operands(np.random.default_rng(7), 6, 9), segment_ids=segments)
