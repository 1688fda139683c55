"""Packed sequences and pages of keys: `cu_seqlens_q`, `cu_seqlens_k` and `block_table` of `diffattn.attention`.

Each sequence alone is judged by the f64 reference; packed it must have the same bits, and from pages it is judged again.
"""
import numpy as np
import pytest

import diffattn
from attention_cases import TYPES, Call, draw_signature, plain_signature
from attention_reference import attention as reference
from diffattn.runtime import Executable, InputError, RunError, UsageError
from interpreter import Interpreter
from kernel_library import runnable_isas

NAMES = ("q1", "k1", "q2", "k2", "v")
PAGE_ROWS = (1, 5, 8, 16, 24, 64)


def bounds(lengths, dtype=np.int32):
    return np.cumsum([0, *lengths]).astype(dtype)


class Pages:
    """Keys and values of sequences in pages, in an order of their own, with NaN around them; entries that no key needs are no pages."""

    def __init__(self, rng, sequences, rows, in_rows=False):
        """`sequences`: [heads, keys, width] arrays of each."""
        needed = [-(-arrays[0].shape[1] // rows) for arrays in sequences]
        free = rng.permutation(sum(needed) + 2)
        self.table = rng.choice(np.array([-1, -(2**31), 2**31 - 1, len(free)], np.int32), (len(sequences), max(needed) + 1))
        self.pages = []
        for array in sequences[0]:
            shape = (len(free), rows, array.shape[0], array.shape[2]) if in_rows else (len(free), array.shape[0], rows, array.shape[2])
            memory = np.full(shape, np.nan, array.dtype)
            self.pages.append(memory.swapaxes(1, 2) if in_rows else memory)
        for n, arrays in enumerate(sequences):
            for m in range(needed[n]):
                self.table[n, m], free = free[0], free[1:]
                for array, pages in zip(arrays, self.pages):
                    part = array[:, m * rows: (m + 1) * rows]
                    pages[self.table[n, m], :, : part.shape[1]] = part


class Packed:
    """Calls of one signature and one batch each, and the same as one call."""

    def __init__(self, rng, sig, count, **sizes):
        self.rng, self.sig = rng, sig
        self.calls = [Call(rng, sig, batch=1, **sizes) for _ in range(count)]
        queries, keys = (sum(getattr(call, name) for call in self.calls) for name in ("queries", "keys"))
        self.whole = whole = Call(rng, sig, batch=1, queries=queries, keys=keys)
        # A sequence without queries, and without keys, among the others.
        self.lengths = [[call.queries for call in self.calls], [call.keys for call in self.calls]]
        for name in NAMES:
            getattr(whole, name)[...] = np.concatenate([getattr(call, name) for call in self.calls], axis=2)
        if sig["shared"]:
            for call in (*self.calls, whole):
                call.k2 = call.k1
        for call in self.calls:
            if "norm_weight" in whole.options:
                call.options["norm_weight"] = whole.options["norm_weight"]
            if whole.lam.ndim < 3:
                call.lam = whole.lam
        if whole.lam.ndim == 3:
            whole.lam = np.concatenate([call.lam for call in self.calls], axis=1)
        if "gate" in whole.options:
            whole.options["gate"][...] = np.concatenate([call.options["gate"] for call in self.calls], axis=2)
        if "q_offset" in whole.options:
            whole.options["q_offset"] = np.concatenate([call.options["q_offset"] for call in self.calls])
        self.queries = bounds(self.lengths[0])

    def parts(self, result):
        return [result[:, :, first:end] for first, end in zip(self.queries, self.queries[1:])]

    def run(self, target):
        self.whole.options.update(cu_seqlens_q=self.queries, cu_seqlens_k=bounds(self.lengths[1], np.int64))
        return self.parts(self.whole.run(target))

    def run_paged(self, target, rows):
        whole, options = self.whole, self.whole.options
        options.pop("cu_seqlens_k", None)
        pages = Pages(self.rng, [[getattr(call, name)[0] for name in ("k1", "k2", "v")] for call in self.calls], rows, self.sig["layout"] == "bthd")
        whole.k1, whole.k2, whole.v = pages.pages
        if self.sig["shared"]:
            whole.k2 = whole.k1
        options.update(cu_seqlens_q=self.queries, block_table=pages.table, kv_len=np.array(self.lengths[1]))
        return self.parts(whole.run(target))


def close(got, call):
    """`call` says what is right, for the same target."""
    expected, magnitude = call.reference()
    assert np.all(np.abs(got.astype(np.float64) - expected) <= call.allowed(expected, magnitude)), call.describe()


def same(a, b):
    return a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("isa", runnable_isas())
def test_random_sequences(isa):
    rng = np.random.default_rng(31)
    is_emulated = isa == "amx-emulated"  # slow to compile; and a loop over sequences is no matter of instructions
    for number in range(1 if is_emulated else 2):
        fixed = dict(mask=None, segments=None, kv_len=False)
        if is_emulated:
            fixed.update(dtype="bf16", step=1, widths=(32, 64))
        packed = Packed(rng, draw_signature(rng, **fixed), count=int(rng.integers(1, 5)))
        target = f"cpu:{isa}"
        if not is_emulated:
            for call, part in zip(packed.calls, packed.run(target)):
                assert same(part, call.check(target)), call.describe()
        for call, part in zip(packed.calls, packed.run_paged(target, PAGE_ROWS[rng.integers(len(PAGE_ROWS))])):
            close(part, call)


def test_sequences_that_are_empty():
    rng = np.random.default_rng(2)
    queries, keys = [0, 3, 0, 2, 0], [4, 0, 0, 5, 0]
    make = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    q1, q2, k1, k2, v = make(1, 2, 5, 8), make(1, 2, 5, 8), make(1, 1, 9, 8), make(1, 1, 9, 8), make(1, 1, 9, 16)
    out = diffattn.attention(q1, k1, q2, k2, v, 0.4, cu_seqlens_q=bounds(queries), cu_seqlens_k=bounds(keys), is_causal=True)
    assert not out[:, :, :3].any()
    assert same(out[:, :, 3:], diffattn.attention(q1[:, :, 3:], k1[:, :, 4:], q2[:, :, 3:], k2[:, :, 4:], v[:, :, 4:], 0.4, is_causal=True))
    none = diffattn.attention(q1[:, :, :0], k1[:, :, :0], q2[:, :, :0], k2[:, :, :0], v[:, :, :0], 0.4, cu_seqlens_q=[0], cu_seqlens_k=[0])
    assert none.shape == (1, 2, 0, 16)
    # No page at all, and none that is needed.
    pages = [np.full((1, 1, 4, width), np.nan, np.float32) for width in (8, 8, 16)]
    for table in (np.zeros((1, 0), np.int32), np.full((1, 2), -1)):
        assert not diffattn.attention(q1, pages[0], q2, pages[1], pages[2], 0.4, block_table=table, kv_len=0).any()


#: The plainest one, and the one with the most instructions, whose vectors are widest.
ENDS = [isa for isa in runnable_isas() if not isa.startswith("amx")]
ENDS = dict.fromkeys((ENDS[0], ENDS[-1]))
TILES = [isa for isa in runnable_isas() if isa.startswith("amx")]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("isa", [*ENDS, *TILES])
@pytest.mark.parametrize("rows", [1, 16, 24, 512])
def test_decoding_from_pages(isa, rows):
    """Long caches: blocks of keys begin inside pages and with them, with and without windows that begin anywhere."""
    rng = np.random.default_rng(rows)
    lengths = [1500, 700, 1]
    cases = [("f32", 1, None), ("bf16", 3, (101, 0)), ("f16", 70, (300, 0))]
    for dtype, queries, window in cases[1:2] if isa in TILES else cases:
        make = lambda *shape: rng.standard_normal(shape).astype(TYPES[dtype])
        dense = [[make(2, n, 32), make(2, n, 32), make(1, n, 48)] for n in lengths]
        pages = Pages(rng, dense, rows, in_rows=rows == 24)
        q1, q2, lam = make(3, 4, queries, 32), make(3, 2, queries, 32), 0.5
        options = dict(scale=0.2, is_causal=True, window=window)
        out = diffattn.attention(q1, pages.pages[0], q2, pages.pages[1], pages.pages[2], lam, **options, block_table=pages.table,
                                 kv_len=np.array(lengths), target=f"cpu:{isa}")
        for n, (k1, k2, v) in enumerate(dense):
            call = Call(rng, plain_signature(dtype=dtype, signal=4, noise=2, key1=2, key2=2, value=1, widths=(32, 48)), batch=1, queries=queries,
                        keys=lengths[n])
            expected, magnitude = reference(q1[n: n + 1], k1[None], q2[n: n + 1], k2[None], v[None], np.float32(lam), **options)
            wrong = np.abs(out[n: n + 1].astype(np.float64) - expected) > call.allowed(expected, magnitude)
            assert not wrong.any(), (dtype, queries, window, n, np.argwhere(wrong)[0])


def test_windows_begin_anywhere_in_pages_that_tiles_of_values_fill():
    """Pages that whole tiles of values fill, but no vector of scores does, in blocks of whole pages: a schedule by hand."""
    if "avx2" not in runnable_isas():
        pytest.skip("this CPU has no AVX2, which the schedule is for")
    rng = np.random.default_rng(12)
    q, k, v = "tensor<1x2x1x8xf32>", "tensor<?x2x12x8xf32>", "tensor<?x2x12x16xf32>"
    schedule = ('#diffattn.cpu_split_kv<isa = "avx2", lanes = 8, kv_split_size = 240, qk_rows = 2, q_vectors = 8, pv_rows = 1, pv_keys = 4, '
                "o_vectors = 8, o_row_vectors = 8>")
    executable = Executable(f"""
func.func @paged(%q1: {q}, %k1: {k}, %q2: {q}, %k2: {k}, %v: {v}, %l: tensor<f32>, %len: tensor<1xi64>, %table: tensor<1x?xi32>,
    %init: tensor<1x2x1x16xf32>) -> tensor<1x2x1x16xf32> {{
  %0 = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : {q}, {k}, {q}, {k}, {v}) lambda(%l : tensor<f32>) kv_len(%len : tensor<1xi64>)
       block_table(%table : tensor<1x?xi32>) outs(%init : tensor<1x2x1x16xf32>)
       {{scale = 0.2 : f32, is_causal, window = array<i64: 101, 0>, schedules = [{schedule}]}} -> tensor<1x2x1x16xf32>
  return %0 : tensor<1x2x1x16xf32>
}}""", target="cpu:avx2")
    make = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    for keys in range(600, 624):
        dense = [make(2, keys, 8), make(2, keys, 8), make(2, keys, 16)]
        pages = Pages(rng, [dense], 12)
        q1, q2 = make(1, 2, 1, 8), make(1, 2, 1, 8)
        out = executable.call("paged", q1, pages.pages[0], q2, pages.pages[1], pages.pages[2], np.float32(0.5), np.array([keys]), pages.table.astype(np.int32),
                              np.zeros((1, 2, 1, 16), np.float32))[0]
        expected, magnitude = reference(q1, dense[0][None], q2, dense[1][None], dense[2][None], np.float32(0.5), scale=0.2, is_causal=True, window=(101, 0))
        np.testing.assert_array_less(np.abs(out - expected), 5e-6 * magnitude + 1e-6, err_msg=f"{keys} keys")


def test_lengths_may_exceed_the_pages():
    """As kv_len may exceed the keys in memory: the last query stands at a key that is not there."""
    rng = np.random.default_rng(5)
    make = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    k1, k2, v = make(2, 1, 8, 8), make(2, 1, 8, 8), make(2, 1, 8, 8)
    q1, q2 = make(1, 1, 3, 8), make(1, 1, 3, 8)
    options = dict(window=(9, 0), kv_len=20)
    dense = [np.concatenate([x[1], x[0]], axis=1)[None] for x in (k1, k2, v)]
    got = diffattn.attention(q1, k1, q2, k2, v, 0.4, block_table=[[1, 0]], **options)
    assert same(got, diffattn.attention(q1, dense[0], q2, dense[1], dense[2], 0.4, **options))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # no kernel has such wide heads
def test_loops_over_maps_in_memory():
    rng = np.random.default_rng(9)
    packed = Packed(rng, plain_signature(dtype="f32", causal=True, widths=(1032, 8), lam="signal", gate=True), 3, queries=5)
    for call, part in zip(packed.calls, packed.run("cpu")):
        assert same(part, call.check("cpu"))
    for call, part in zip(packed.calls, packed.run_paged("cpu", 6)):
        close(part, call)


WRONG = {
    "end": (InputError, "cu_seqlens_q: expected 6, the number of queries, as the last number, but got 5", dict(cu_seqlens_q=[0, 2, 5])),
    "begin": (InputError, "cu_seqlens_q: expected 0 as the first number, but got 1", dict(cu_seqlens_q=[1, 2, 6])),
    "fall": (InputError, "cu_seqlens_q: expected numbers that do not fall, but got 6 after 7 at 2", dict(cu_seqlens_q=[0, 7, 6])),
    "keys": (InputError, "cu_seqlens_k: expected 7, the number of keys, as the last number, but got 8", dict(cu_seqlens_k=[0, 3, 8])),
    "count": (InputError, r"cu_seqlens_k: expected shape \[3\], but got \[2\]", dict(cu_seqlens_k=[0, 7])),
    "none": (InputError, r"cu_seqlens_q: expected shape \[N \+ 1\], but got \[0\]", dict(cu_seqlens_q=np.zeros(0, np.int64))),
    "floats": (InputError, "cu_seqlens_q: expected int32 or int64, but got float64", dict(cu_seqlens_q=[0.0, 2.0, 6.0])),
    "alone": (UsageError, "cu_seqlens_q: expected it with either cu_seqlens_k or block_table", dict(cu_seqlens_k=None)),
    "lengths": (UsageError, "kv_len: expected none with cu_seqlens_k", dict(kv_len=3)),
    "offsets": (InputError, r"q_offset: expected a number or shape \[2\], but got \[3\]", dict(q_offset=[1, 2, 3])),
    "mask": (UsageError, "attn_mask: expected none with cu_seqlens_q and cu_seqlens_k", dict(attn_mask=np.ones((6, 7), bool))),
    "segments": (UsageError, "segment_ids: q_segments: expected none with",
                 dict(segment_ids=(np.zeros((1, 6), np.int32), np.zeros((1, 7), np.int32)))),
    "integral": (UsageError, "integral: expected none with", dict(integral=True)),
    "batches": (InputError, "q1: expected one batch, in which sequences follow one another, but got 2", dict(batch=2)),
    "pages-and-keys": (UsageError, "cu_seqlens_q: expected it with either", dict(block_table=[[0], [0]], kv_len=7)),
    "page": (InputError, "block_table: expected pages from 0 and below 1, but got 1 as page 0 of sequence 1",
             dict(cu_seqlens_k=None, block_table=[[0], [1]], kv_len=[0, 1])),
    "negative-page": (InputError, "block_table: expected pages from 0 and below 1, but got -1 as page 0 of sequence 0",
                      dict(cu_seqlens_k=None, block_table=[[-1], [0]], kv_len=1)),
    "table-rows": (InputError, r"block_table: expected shape \[N, pages\] with N = 2 sequences, but got \[1, 2\]",
                   dict(cu_seqlens_k=None, block_table=[[0, 0]], kv_len=1)),
    "table-rank": (InputError, r"block_table: expected shape \[N, pages\], but got \[2\]", dict(cu_seqlens_k=None, block_table=[0, 0], kv_len=1)),
    "no-lengths": (UsageError, "kv_len: expected it with block_table", dict(cu_seqlens_k=None, block_table=[[0], [0]])),
}


@pytest.mark.parametrize("target", ["cpu", "cuda-sim:sm_80"])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_tables(name, target):
    error, message, changed = WRONG[name]
    options = {"cu_seqlens_q": [0, 2, 6], "cu_seqlens_k": [0, 3, 7], **changed}
    batch = options.pop("batch", 1)
    q, k, out = np.zeros((batch, 2, 6, 8), np.float32), np.zeros((batch, 2, 7, 8), np.float32), np.full((batch, 2, 6, 8), 7, np.float32)
    with pytest.raises(error, match=message):
        diffattn.attention(q, k, q, k, k, 0.5, **options, out=out, target=target)
    assert (out == 7).all()  # before anything is written


@pytest.mark.parametrize("pages, rows", [(3, 0), (0, 4)])
def test_no_pages(pages, rows):
    q, k = np.zeros((1, 2, 6, 8), np.float32), np.zeros((pages, 2, rows, 8), np.float32)
    with pytest.raises(InputError, match=f"k1: expected at least one page, of at least one key, but got {pages} of {rows}"):
        diffattn.attention(q, k, q, k, k, 0.5, block_table=[[0]], kv_len=0)


MODULE = """
func.func @packed(%q1: tensor<1x2x?x8xf32>, %k1: tensor<1x1x?x8xf32>, %q2: tensor<1x2x?x8xf32>, %v: tensor<1x1x?x16xf32>, %l: tensor<1x?x2xf32>,
    %bq: tensor<?xi32>, %bk: tensor<?xi64>, %init: tensor<1x2x?x16xf32>) -> tensor<1x2x?x16xf32> {
  %0 = diffattn.attention ins(%q1, %k1, %q2, %k1, %v : tensor<1x2x?x8xf32>, tensor<1x1x?x8xf32>, tensor<1x2x?x8xf32>, tensor<1x1x?x8xf32>,
         tensor<1x1x?x16xf32>) lambda(%l : tensor<1x?x2xf32>) cu_seqlens_q(%bq : tensor<?xi32>) cu_seqlens_k(%bk : tensor<?xi64>)
       outs(%init : tensor<1x2x?x16xf32>) {scale = 0.5 : f32, is_causal} -> tensor<1x2x?x16xf32>
  return %0 : tensor<1x2x?x16xf32>
}
func.func @paged(%q1: tensor<?x2x?x8xf32>, %k1: tensor<?x1x?x8xf32>, %q2: tensor<?x2x?x8xf32>, %v: tensor<?x1x?x16xf32>, %l: tensor<f32>,
    %len: tensor<?xi64>, %table: tensor<?x?xi32>, %init: tensor<?x2x?x16xf32>) -> tensor<?x2x?x16xf32> {
  %0 = diffattn.attention ins(%q1, %k1, %q2, %k1, %v : tensor<?x2x?x8xf32>, tensor<?x1x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?x1x?x8xf32>,
         tensor<?x1x?x16xf32>) lambda(%l : tensor<f32>) kv_len(%len : tensor<?xi64>) block_table(%table : tensor<?x?xi32>)
       outs(%init : tensor<?x2x?x16xf32>) {scale = 0.5 : f32, is_causal} -> tensor<?x2x?x16xf32>
  return %0 : tensor<?x2x?x16xf32>
}
"""


def test_graphs_on_tensors(build_dir):
    """Compiled and interpreted, which is a reading of the op of its own; and what both refuse."""
    rng = np.random.default_rng(4)
    make = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    executable, interpreter = Executable(MODULE), Interpreter(build_dir, MODULE)
    packed = [make(1, 2, 7, 8), make(1, 1, 9, 8), make(1, 2, 7, 8), make(1, 1, 9, 16), make(1, 7, 2), np.array([0, 4, 4, 7], np.int32),
              np.array([0, 3, 5, 9]), np.zeros((1, 2, 7, 16), np.float32)]
    table = np.array([[2, 0, -9], [1, -9, -9]], np.int32)
    paged = [make(2, 2, 3, 8), make(3, 1, 5, 8), make(2, 2, 3, 8), make(3, 1, 5, 16), np.float32(0.3), np.array([8, 5]), table,
             np.zeros((2, 2, 3, 16), np.float32)]
    for name, arguments in (("packed", packed), ("paged", paged)):
        answer = interpreter.calls([(name, "exact", arguments)])[0]
        assert answer.kind == "ok", answer.message
        np.testing.assert_allclose(executable.call(name, *arguments)[0], answer.results[0], rtol=0, atol=3e-6)
    for name, arguments, number, value, message in (
            ("packed", packed, 5, np.array([0, 5, 4, 7], np.int32), "expected cu_seqlens_q not to fall below 5, but got 4"),
            ("packed", packed, 6, np.array([0, 3, 5, 8]), "expected cu_seqlens_k to end with 9"),
            ("packed", packed, 6, np.array([0, 3, 9]), "expected"),
            ("paged", paged, 6, table + 1, "expected pages from 0 and below 3 in block_table, but got 3"),
            ("paged", paged, 5, np.array([8, 6]), "expected pages from 0 and below 3 in block_table, but got -9")):
        wrong = [*arguments[:number], value, *arguments[number + 1:]]
        answer = interpreter.calls([(name, "exact", wrong)])[0]
        assert answer.kind != "ok" and message in answer.message, answer
        with pytest.raises(RunError, match=message):
            executable.call(name, *wrong)
