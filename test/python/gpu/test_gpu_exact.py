"""Simulated GPU kernels on inputs whose answer is exact, around the edges of tiles, and properties that hold bit for bit."""
import mmap

import numpy as np
import pytest

import diffattn
from attention_cases import BF16, BOUNDS, TYPES, Call, memref, plain_signature
from attention_reference import visible_keys
from diffattn import _attention, attention_module, attention_plan, runtime

TARGET = "cuda-sim:sm_80"
SCALE = 2.0**-3


def codes(count, width):
    """Different vectors of -1 and 1, one for each number below `count`."""
    bits = (np.arange(count)[:, None] >> np.arange(min(width, 16))) & 1
    return np.concatenate([2.0 * bits - 1, np.ones((count, width - bits.shape[1]))], 1)


class Pointed:
    """Queries that each look at one key of either map: every weight is 1 or underflows to 0, so O = V[i1] - V[i2] / 2 exactly."""

    def __init__(self, seed, dtype, widths, queries, keys, *, signal=2, noise=2, key=2, causal=False, window=None, kv_len=None,
                 mask=None):
        rng = np.random.default_rng(seed)
        (d, dv), batch = widths, 1 if kv_len is None else len(kv_len)
        make = lambda array: np.ascontiguousarray(array, dtype=np.float32).astype(TYPES[dtype])
        names = codes(keys, d)
        self.k1 = self.k2 = make(np.broadcast_to(names, (batch, key, keys, d)))
        # Small whole numbers, different in every head, row and column.
        self.v = make(rng.integers(-8, 9, (batch, key, keys, dv)))
        self.options = dict(scale=SCALE, is_causal=causal, window=window, kv_len=None if kv_len is None else np.array(kv_len),
                            attn_mask=mask)
        self.expected = np.zeros((batch, signal, queries, dv), np.float32)
        looks = {name: np.zeros((batch, heads, queries), int) for name, heads in (("q1", signal), ("q2", noise))}
        for b in range(batch):
            seen = visible_keys(queries, keys, causal, window, None if kv_len is None else kv_len[b], None)
            if mask is not None:
                seen = seen & mask[0, 0]
            for i in range(queries):
                visible = np.flatnonzero(seen[i])
                if not visible.size:
                    continue
                for name, where in looks.items():
                    # The ends of what is visible, where masks go wrong, and places between.
                    where[b, :, i] = rng.choice([visible[0], visible[-1], *rng.choice(visible, 2)], where.shape[1])
                for s in range(signal):
                    values = self.v[b, s // (signal // key)].astype(np.float32)
                    self.expected[b, s, i] = (values[looks["q1"][b, s, i]] - values[looks["q2"][b, s // (signal // noise), i]] / 2)
        # One bit of difference is 2 * 512 * SCALE in the logits: its exponential is 0 in f32.
        self.q1, self.q2 = (make(512.0 * names[where]) for where in looks.values())

    def check(self, target=TARGET):
        got = diffattn.attention(self.q1, self.k1, self.q2, self.k2, self.v, 0.5, **self.options, target=target)
        assert np.array_equal(got.astype(np.float32), self.expected), np.argwhere(got.astype(np.float32) != self.expected)[:5]


EDGES = [(1, 1), (1, 32), (7, 31), (16, 33), (17, 64), (33, 65), (64, 63), (65, 97)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype, widths", [("bf16", (32, 64)), ("f16", (64, 128)), ("bf16", (128, 256)), ("f32", (16, 24)), ("f16", (20, 33))])
def test_every_query_gets_the_values_it_points_at(dtype, widths):
    for queries, keys in EDGES[:: 1 if widths == (32, 64) else 3]:
        Pointed(queries, dtype, widths, queries, keys).check()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype, widths", [("f16", (64, 128)), ("bf16", (128, 256)), ("bf16", (32, 72))])
def test_kernels_by_tensor_maps_give_the_values_that_queries_point_at(dtype, widths):
    """Prefill by warpgroups, and decode."""
    for queries, keys in [(16, 33), (65, 97), (129, 200), (2, 300)]:
        Pointed(queries, dtype, widths, queries, keys, causal=queries == 65).check("cuda-sim:sm_90a")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [dict(causal=True), dict(window=(5, 2)), dict(causal=True, signal=4, noise=2, key=1)],
                         ids=["causal", "window", "groups"])
def test_what_masks_let_through(options):
    for queries, keys in EDGES + [(33, 16), (64, 1)]:
        Pointed(keys, "bf16", (32, 64), queries, keys, **options).check()


def test_lengths_and_boolean_masks_let_through():
    for queries, keys in [(1, 65), (17, 64), (40, 33)]:
        Pointed(queries, "f16", (32, 64), queries, keys, causal=True, kv_len=[keys, keys // 2, 1, 0]).check()
        mask = np.random.default_rng(queries).random((1, 1, queries, keys)) < 0.1
        Pointed(queries, "f16", (32, 64), queries, keys, mask=mask).check()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("queries, options", [(1, dict()), (2, dict(causal=True)), (1, dict(signal=8, noise=4, key=1)),
                                              (2, dict(kv_len=[600, 3, 0], window=(520, 0)))],
                         ids=["one", "causal", "groups", "lengths"])
def test_decode_steps_point_across_blocks_of_keys(queries, options, monkeypatch):
    """A static number of queries, as in a decode step: keys are split in blocks of 128, or of 512 from 2049 on, which a second kernel joins."""
    opened = attention_module.memref

    def closed(name, array, *tables):
        text = opened(name, array, *tables)
        return text.replace(f"x{array.shape[1]}x?x", f"x{array.shape[1]}x{queries}x", 1) if name in ("q1", "q2", "init") else text

    monkeypatch.setattr(attention_plan, "memref", closed)
    monkeypatch.setattr(_attention, "_plans", {})
    for keys in (1, 64, 127, 128, 129, 600, 2049) if "kv_len" not in options else (600,):
        Pointed(keys, "bf16", (32, 64), queries, keys, **options).check()
    few, many = (memref("q1", np.zeros((1, 2, 9, 32), BF16)).replace("x2x?x", f"x2x{n}x") for n in (queries, "?"))
    kernels = runtime.emit(attention_module.module(
        (*((n, few) for n in ("q1", "q2", "init")), *((n, many) for n in ("k1", "k2", "v")), ("lambda", "memref<f32>")),
        "scale = 1.0 : f32", False), "gpu", target=TARGET).decode()
    assert "@diffattn_decode_" in kernels and "@diffattn_merge_" in kernels


def run(call, **changes):
    """The result of a call with some operands or options in the place of its own."""
    operands = [changes.pop(name, getattr(call, name)) for name in ("q1", "k1", "q2", "k2", "v", "lam")]
    return diffattn.attention(*operands, **{**call.options, **changes}, target=TARGET)


def near(got, expected, scale):
    assert np.abs(np.asarray(got, np.float64) - np.asarray(expected, np.float64)).max() <= BOUNDS["f16"] * scale


def make(seed=0, **changes):
    return Call(np.random.default_rng(seed), plain_signature(dtype="f16", **changes), batch=1, queries=40, keys=70, room=8)


def test_lambda_of_zero_is_attention_on_the_first_map():
    call = make()
    zero = np.float32(0)
    got = run(call, lam=zero)
    assert np.array_equal(got, run(call, lam=zero, q2=call.q1, k2=-call.k1))
    call.lam = zero
    call.check(TARGET)
    # A closed gate of lambda is the same, and an open one is lambda = 1.
    closed = np.full((1, 40, 2), -1e4, np.float32)
    assert np.array_equal(run(call, lam=closed, lam_activation="sigmoid"), got)
    assert np.array_equal(run(call, lam=-closed, lam_activation="sigmoid"), run(call, lam=np.float32(1)))


def test_constant_values_and_equal_maps():
    call = make()
    ones = np.ones_like(call.v)
    near(run(call, v=ones, lam=np.float32(0.25)), 0.75, 2)
    attention = run(call, lam=np.float32(0)).astype(np.float64)
    near(run(call, q2=call.q1, k2=call.k1, lam=np.float32(0.25)), 0.75 * attention, 5)
    # With a norm no lambda below 1 changes that.
    norm = dict(norm="rms", norm_eps=0.0, q2=call.q1, k2=call.k1)
    near(run(call, lam=np.float32(0.25), **norm), run(call, lam=np.float32(0.75), **norm), 10)


def test_a_norm_forgets_the_size_of_values():
    call = make()
    # Times 4 is exact, and so is everything that follows from it.
    assert np.array_equal(run(call, v=4 * call.v, norm="rms", norm_eps=0.0), run(call, norm="rms", norm_eps=0.0))


def test_a_wide_window_is_causal_and_the_first_row_sees_one_key():
    call = make(causal=True)
    causal = run(call, q_offset=0)
    assert np.array_equal(run(call, q_offset=0, is_causal=False, window=(1000, 0)), causal)
    near(causal[:, :, 0], (1 - call.lam) * call.v[:, :, 0].astype(np.float64), 5)


def test_rows_of_a_whole_are_its_chunks_and_its_decode_steps():
    call = make(causal=True)
    call.k1, call.k2, call.v = (x[:, :, :40] for x in (call.k1, call.k2, call.v))
    whole = run(call)
    for begin, end in ((0, 16), (16, 40), (39, 40), (7, 9)):
        rows = slice(begin, end)
        got = run(call, q1=call.q1[:, :, rows], q2=call.q2[:, :, rows], k1=call.k1[:, :, :end], k2=call.k2[:, :, :end],
                  v=call.v[:, :, :end])
        near(got, whole[:, :, rows], 5)


def test_halves_are_adjacent_heads_in_another_order():
    call = make(signal=4, noise=4, key1=4, key2=4, value=4)
    order = [0, 2, 1, 3]
    moved = run(call, **{name: getattr(call, name)[:, order] for name in ("q1", "k1", "q2", "k2", "v")})
    assert np.array_equal(moved, run(call)[:, order])


def test_groups_of_one_are_pairs():
    call = make(noise=1, key2=1)
    pairs = run(call, q2=np.repeat(call.q2, 2, 1), k2=np.repeat(call.k2, 2, 1))
    assert np.array_equal(run(call), pairs)


@pytest.mark.parametrize("step", [1, 2])
def test_addresses_past_4_gib(step):
    """Rows 2.5 GiB apart, of which only the touched pages exist."""
    apart, rows = 5 << 29, 3
    memory = mmap.mmap(-1, rows * apart, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000))
    call = Call(np.random.default_rng(step), plain_signature(step=step, causal=True), batch=1, queries=rows, keys=rows, room=8)
    near_result = call.check(TARGET)
    offset = 0
    for name in ("q1", "k1", "q2", "k2", "v"):
        old = getattr(call, name)
        _, heads, _, width = old.shape
        strides = (rows * apart, 2 * step * width, apart, 2 * step)
        new = np.ndarray(old.shape, BF16, memory, offset, strides)
        new[...] = old
        setattr(call, name, new)
        offset += 1 << 16
    assert np.array_equal(call.check(TARGET), near_result)
