"""Packed sequences and pages in GPU kernels, on the simulator. Each sequence alone is judged by the f64 reference; packed, and from pages, it
has the same bits where the same kernel computes it."""
import ml_dtypes
import numpy as np
import pytest

import diffattn
from attention_cases import draw_signature, plain_signature
from diffattn.runtime import CompileError, DeviceArray, Executable, RunError
from test_sequences import MODULE, PAGE_ROWS, Packed, Pages, bounds, close, same

SM_80, SM_90A = "cuda-sim:sm_80", "cuda-sim:sm_90a"


def random_packed(rng, **fixed):
    sig = draw_signature(rng, mask=None, segments=None, kv_len=False, **fixed)
    sig["weight"] = sig["norm"] and "f32"
    # Each has more than 8 queries, which the kernel of whole rows takes.
    return Packed(rng, sig, count=int(rng.integers(1, 4)), queries=int(rng.integers(9, 50)))


#: The kernels of these widths are made of different parts.
RANDOM = [("bf16", (64, 128), SM_80), ("bf16", (128, 256), SM_80), ("f16", (20, 33), SM_80), ("f32", (8, 24), SM_80), ("bf16", (64, 128), SM_90A),
          ("f16", (96, 192), SM_90A)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype, widths, target", RANDOM)
def test_random_sequences(dtype, widths, target):
    rng = np.random.default_rng(8)
    packed = random_packed(rng, dtype=dtype, widths=widths, softcap=None, step=1)
    for call, part in zip(packed.calls, packed.run(target)):
        assert same(part, call.check(target)), call.describe()
    for call, part in zip(packed.calls, packed.run_paged(target, PAGE_ROWS[rng.integers(len(PAGE_ROWS))])):
        close(part, call)


@pytest.mark.parametrize("rows, target", [(1, SM_80), (24, SM_80), (16, SM_90A)])
def test_decoding_from_pages(rows, target):
    """The copy of the same pages, in their order and with as much place, gives the same bits."""
    rng = np.random.default_rng(rows)
    make = lambda *shape: rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
    lengths = [150, 33, 1]
    pages = Pages(rng, [[make(2, n, 32), make(2, n, 32), make(1, n, 64)] for n in lengths], rows)
    q1, q2 = make(3, 4, 1, 32), make(3, 2, 1, 32)
    options = dict(is_causal=True, window=(101, 0), kv_len=np.array(lengths), target=target)
    got = diffattn.attention(q1, pages.pages[0], q2, pages.pages[1], pages.pages[2], 0.4, block_table=pages.table, **options)
    k1, k2, v = (np.stack([np.concatenate([array[max(0, min(page, len(array) - 1))] for page in of], axis=1) for of in pages.table])
                 for array in pages.pages)
    assert same(got, diffattn.attention(q1, k1, q2, k2, v, 0.4, **options))
    # Sequences of one query each, one behind the other.
    rows_of = lambda x: x.swapaxes(0, 2)
    packed = diffattn.attention(rows_of(q1), pages.pages[0], rows_of(q2), pages.pages[1], pages.pages[2], 0.4, block_table=pages.table,
                                cu_seqlens_q=bounds([1, 1, 1]), **options)
    assert same(rows_of(packed), got)


def test_sequences_that_are_empty():
    rng = np.random.default_rng(2)
    queries, keys = [0, 30, 0, 20, 0], [4, 0, 0, 5, 0]
    make = lambda *shape: rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
    q1, q2, k1, k2, v = make(1, 2, 50, 8), make(1, 2, 50, 8), make(1, 1, 9, 8), make(1, 1, 9, 8), make(1, 1, 9, 16)
    options = dict(is_causal=True, target=SM_80)
    out = diffattn.attention(q1, k1, q2, k2, v, 0.4, cu_seqlens_q=bounds(queries), cu_seqlens_k=bounds(keys), **options)
    assert not out[:, :, :30].any()
    assert same(out[:, :, 30:], diffattn.attention(q1[:, :, 30:], k1[:, :, 4:], q2[:, :, 30:], k2[:, :, 4:], v[:, :, 4:], 0.4, **options))
    none = diffattn.attention(q1[:, :, :0], k1[:, :, :0], q2[:, :, :0], k2[:, :, :0], v[:, :, :0], 0.4, cu_seqlens_q=[0], cu_seqlens_k=[0], **options)
    assert none.shape == (1, 2, 0, 16)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_has_no_kernel():
    """Pages are copied out then; of sequences the host would have to read the bounds."""
    rng = np.random.default_rng(9)
    packed = Packed(rng, plain_signature(widths=(264, 8)), 1, queries=2, keys=9)
    with pytest.raises(CompileError, match="expected a kernel for cu_seqlens_q on a GPU, but got none: expected widths of heads up to 256"):
        packed.run(SM_80)
    call = packed.calls[0]
    pages = Pages(rng, [[getattr(call, name)[0] for name in ("k1", "k2", "v")]], 4)
    got = diffattn.attention(call.q1, pages.pages[0], call.q2, pages.pages[1], pages.pages[2], call.lam, block_table=pages.table, kv_len=9, scale=0.17,
                             target=SM_80)
    close(got, call)


def test_tables_that_lie_on_the_device():
    """A captured graph reads them in each run; what they hold is not checked before, and the simulator names what is wrong."""
    rng = np.random.default_rng(4)
    executable = Executable(MODULE, target=SM_80)
    make = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    k, v, table = make(3, 1, 5, 8), make(3, 1, 5, 16), np.array([[2, 0, -9], [1, -9, -9]], np.int32)
    paged = [make(2, 2, 3, 8), k, make(2, 2, 3, 8), v, np.float32(0.3), np.array([8, 5]), table, np.zeros((2, 2, 3, 16), np.float32)]
    expected = executable.call("paged", *paged)[0]
    run = executable.capture("paged", *paged)
    assert same(run()[0], expected)
    # The pages are put into another order.
    k[...], v[...] = k[[1, 2, 0]].copy(), v[[1, 2, 0]].copy()
    table[...] = [[1, 2, -9], [0, -9, -9]]
    assert same(run()[0], expected)
    table[0, 1] = 3
    with pytest.raises(RunError, match="index out of range: an entry of block_table is 3, which is out of range"):
        run()
    packed = [make(1, 2, 7, 8), make(1, 1, 9, 8), make(1, 2, 7, 8), make(1, 1, 9, 16), make(1, 7, 2), np.array([0, 4, 4, 7], np.int32),
              np.array([0, 3, 5, 9]), np.zeros((1, 2, 7, 16), np.float32)]
    on_device = [DeviceArray.from_host(executable, array) for array in packed]
    np.testing.assert_allclose(executable.call("packed", *on_device)[0], Executable(MODULE).call("packed", *packed)[0], rtol=0, atol=3e-6)
    packed[6] = np.array([0, 3, 5, 10])
    with pytest.raises(RunError, match="an entry of cu_seqlens_k is 10"):
        executable.call("packed", *packed)
