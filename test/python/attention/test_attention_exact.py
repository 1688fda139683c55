"""The fused kernels where the exact result is known, around the edges of tiles, KV blocks and blocks of queries, for every ISA at hand.

Every key has a code of signs, and a query is the code of one key times a number so large that softmax gives this key all
weight, or half of it, where one sign is left out and a second key agrees in all others. Values are small integers and
lambda is a power of two, so every result is a small multiple of 1/8: no tolerance hides a key that is missed, seen twice or
taken from a neighbour. Keys that no query sees hold NaN.
"""
import numpy as np
import pytest

from attention_cases import draw_segments
from attention_reference import visible_keys
from kernel_library import TYPES, call, compile_library, function_text, runnable_isas, signature

BITS = 10
#: Where code changes its way: sizes of vectors, register tiles, blocks of rows, chunks, and the limits of `small_schedule`.
QUERIES = [1, 2, 3, 4, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 97]
KEYS = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129, 255, 256, 257, 513]
SIGNATURES = [
    signature(type="f32", sizes=(16, 33)),
    signature(type="f32", causal=True, kv_len=True, q_offset=True, lam=1, small=True, sizes=(16, 64)),
    signature(type="f32", window=(5, 3), bias="f32", kv_len=True, small=True, layout="bthd"),
    signature(type="bf16", sizes=(17, 80), small=True, lam=1),
    signature(type="bf16", causal=True, kv_len=True, q_offset=True, sizes=(16, 48)),
    signature(type="bf16", window=(20, -1), bias="i1", small=True, sizes=(32, 33)),
    signature(type="f16", causal=True, window=(40, -1), kv_len=True, lam="signal", sizes=(16, 20)),
    signature(type="f16", bias="f16", lam="noise", sigmoid=True, layout="bthd", small=True, sizes=(12, 16)),
    signature(type="f32", segments="i64", small=True, sizes=(16, 33)),
    signature(type="f32", segments="i32", causal=True, window=(40, -1), bias="i1", kv_len=True, layout="bthd"),
    signature(type="bf16", segments="i64", causal=True, kv_len=True, small=True, sizes=(16, 48)),
    signature(type="bf16", segments="i32", lam=1, sizes=(32, 33)),
    signature(type="f16", segments="i64", causal=True, q_offset=True, lam="noise", sizes=(16, 20)),
    signature(maps=1, type="f32", causal=True, kv_len=True, q_offset=True, sizes=(16, 33)),
    signature(maps=1, type="f32", window=(5, 3), bias="f32", kv_len=True, small=True, layout="bthd"),
    signature(maps=1, type="bf16", causal=True, small=True, sizes=(17, 80)),
    signature(maps=1, type="bf16", segments="i64", window=(40, -1), bias="i1", sizes=(32, 48)),
    signature(maps=1, type="f16", kv_len=True, small=True, sizes=(12, 20)),
]


@pytest.fixture(scope="module", params=runnable_isas())
def library(request, build_dir, tmp_path_factory, full):
    """The code for one ISA and its signatures by their numbers: without --full every second one, and the others on the next ISA."""
    chosen = range(0 if full else runnable_isas().index(request.param) % 2, len(SIGNATURES), 1 if full else 2)
    code = compile_library([SIGNATURES[number] for number in chosen], request.param, build_dir, tmp_path_factory.mktemp(request.param), optimize=full)
    return code, list(chosen)


def codes(numbers):
    return ((numbers[..., None] >> np.arange(BITS)) & 1) * 2 - 1


def draw_bias(rng, kind, shape, dtype):
    """Rows that see few keys, rows that see none, and for numbers a constant in each row, which changes nothing."""
    hidden = rng.random(shape) < rng.choice([0.0, 0.3, 0.9], shape[:3] + (1,))
    hidden[..., : shape[3] // 2][rng.random(shape[:3]) < 0.2] = True
    hidden[rng.random(shape[:3]) < 0.1] = True
    if kind == "i1":
        return ~hidden
    return np.where(hidden, -np.inf, rng.integers(-5, 6, shape[:3] + (1,))).astype(dtype)


class Case:
    """Operands [B, H, T, w] of one shape, and the result."""

    def __init__(self, rng, sig, queries, keys):
        self.sig = sig
        batch, signal, noise, key1, key2, value = 2, *[(4, 2, 2, 1, 2), (2, 2, 1, 2, 1), (2, 1, 2, 1, 1)][rng.integers(3)]
        has_second = sig["maps"] == 2
        noise = noise if has_second else signal
        d, dv = sig["sizes"] or (int(rng.choice([BITS, 16, 23, 32])), int(rng.choice([1, 15, 16, 17, 33, 64])))
        dtype = TYPES[sig["type"]]
        a = self.arrays = {}
        if sig["kv_len"]:
            a["kv_len"] = rng.choice([keys, keys - 1, keys // 2, 0], batch, p=[0.3, 0.3, 0.3, 0.1])
        if sig["q_offset"]:
            a["q_offset"] = rng.integers(-2, keys + 1, batch)
        one = lambda name, b: int(a[name][b]) if name in a else None
        seen = np.stack([np.repeat(visible_keys(queries, keys, sig["causal"], sig["window"], one("kv_len", b), one("q_offset", b))[None],
                                   noise, 0) for b in range(batch)])
        if sig["segments"]:
            a["q_segments"], a["kv_segments"] = draw_segments(rng, batch, queries, keys, TYPES[sig["segments"]])
            seen &= (a["q_segments"][:, :, None] == a["kv_segments"][:, None])[:, None]
        if sig["bias"]:
            a["bias"] = draw_bias(rng, sig["bias"], (batch, noise, queries, keys), TYPES[sig["bias"]])
            seen &= a["bias"] if sig["bias"] == "i1" else ~np.isneginf(a["bias"].astype(np.float32))
        a["v"] = rng.integers(-8, 9, (batch, value, keys, dv)).astype(dtype)
        shapes = {0: (), 1: (signal,), "signal": (batch, queries, signal), "noise": (batch, queries, noise)}
        factor = rng.choice([0.25, 0.5, 2.0], shapes[sig["lam"]]).astype(np.float32)
        if sig["sigmoid"]:
            factor[...] = 0.5
        if has_second:
            a["lam"] = np.zeros_like(factor) if sig["sigmoid"] else factor
        if sig["lam"] in ("signal", "noise"):
            factor = factor.swapaxes(1, 2)[..., None]
        wide = lambda x: np.repeat(x, signal // x.shape[1], 1)
        values = wide(a["v"].astype(np.float64))
        first = self.make_map(rng, "q1", "k1", dtype, d, key1, wide(seen))
        second = self.make_map(rng, "q2", "k2", dtype, d, key2, seen) if has_second else np.zeros_like(first)
        if sig["lam"] == 1:
            factor = factor[:, None, None]
        factor = factor if factor.ndim < 4 else wide(factor)
        self.expected = first @ values - factor * (wide(second) @ values)
        self.seen = seen
        poisoned = ~seen.any((1, 2))
        for name in ("k1", "k2", "v") if has_second else ("k1", "v"):
            a[name][np.broadcast_to(poisoned[:, None], a[name].shape[:3])] = np.nan
        a["out"] = np.full((batch, signal, queries, dv), np.nan, dtype)

    def make_map(self, rng, query, key, dtype, width, key_heads, seen):
        """Fills one map's query and key; gives its weights [B, H, Tq, Tk]."""
        batch, heads, queries, keys = seen.shape
        mix = rng.integers(0, 1 << BITS, (batch, key_heads, 1))
        k = self.arrays[key] = np.zeros((batch, key_heads, keys, width), dtype)
        k[..., :BITS] = codes(np.arange(keys) ^ mix)
        # The first key that a row sees, the last, and any.
        last = keys - 1 - seen[..., ::-1].argmax(-1)
        any_ = (seen * rng.random(seen.shape)).argmax(-1)
        kind = rng.integers(0, 3, seen.shape[:3])
        target = np.where(kind == 0, seen.argmax(-1), np.where(kind == 1, last, any_))
        bit = rng.integers(0, 2 * BITS, target.shape)
        code = codes(target ^ np.repeat(mix, heads // key_heads, 1)) * (np.arange(BITS) != bit[..., None])
        q = self.arrays[query] = np.zeros((batch, heads, queries, width), dtype)
        q[..., :BITS] = code * 1024
        partner = np.where(bit < BITS, target ^ (1 << np.minimum(bit, BITS - 1)), target)
        number = np.arange(keys)
        weights = seen & ((number == target[..., None]) | (number == partner[..., None]))
        return weights / np.maximum(weights.sum(-1, keepdims=True), 1)

    def in_layout(self, name):
        array = self.arrays[name]
        headed = name in ("q1", "k1", "q2", "k2", "v", "out")
        if headed and self.sig["layout"] == "bthd":
            return np.ascontiguousarray(array.swapaxes(1, 2))
        return array


def check(library, number, case):
    code, chosen = library
    names = function_text(number, case.sig, "generic")[1]
    arrays = {n: case.in_layout(n) for n in names}
    call(code, chosen.index(number), names, arrays)
    got = arrays["out"].astype(np.float64)
    if case.sig["layout"] == "bthd":
        got = got.swapaxes(1, 2)
    # Results are multiples of 1/8. An exponential of 0 may be one unit away from 1.
    allowed = 1e-5
    wrong = ~np.isclose(got, case.expected, rtol=0, atol=allowed, equal_nan=True)
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        shapes = {n: a.shape for n, a in case.arrays.items()}
        pytest.fail(f"s{number}: {wrong.sum()} of {wrong.size} wrong, first at {at}: {got[at]}, expected {case.expected[at]}; {case.sig} {shapes}")


def test_exact_around_edges(library, full):
    for number in library[1]:
        rng = np.random.default_rng(number)
        few = [n for n in QUERIES if n <= 9]
        pairs = [(q, k) for q in QUERIES for k in (KEYS if full else [rng.choice(KEYS)])]
        pairs += [(rng.choice(few if i % 2 else QUERIES), k) for i, k in enumerate(KEYS)]
        for queries, keys in pairs:
            check(library, number, Case(rng, SIGNATURES[number], int(queries), int(keys)))


@pytest.mark.parametrize("queries", [2, 50])
def test_a_nan_in_the_bias_reaches_its_row_alone(library, queries):
    numbers = [number for number in library[1] if SIGNATURES[number]["bias"] not in (None, "i1")]
    assert numbers
    for number in numbers:
        case = Case(np.random.default_rng(100 + number), SIGNATURES[number], queries, 70)
        bias, rows = case.arrays["bias"], case.seen.sum(-1) > 1
        assert rows.any()
        batch, head, row = np.argwhere(rows)[rows.sum() // 2]
        bias[batch, head, row, case.seen[batch, head, row].argmax()] = np.nan
        group = case.expected.shape[1] // bias.shape[1]
        case.expected[batch, head * group: (head + 1) * group, row] = np.nan
        check(library, number, case)
