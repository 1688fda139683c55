"""`diffattn.PageTable`: tables of pages that several calls share, checked once."""
import re

import numpy as np
import pytest

import diffattn
from diffattn.errors import InputError, UsageError

TABLE, LENGTHS, STARTS = np.array([[3, 0], [4, -1]], np.int32), np.array([13, 2], np.int32), np.array([0, 3, 4], np.int32)


def operands(queries=4, batch=1, pages=5):
    rng = np.random.default_rng(0)
    q1, q2 = rng.normal(size=(2, batch, 2, queries, 32)).astype(np.float32)
    k1, k2 = rng.normal(size=(2, pages, 2, 8, 32)).astype(np.float32)
    return q1, k1, q2, k2, rng.normal(size=(pages, 2, 8, 64)).astype(np.float32), 0.3


@pytest.mark.parametrize("target", ["cpu", "cuda-sim:sm_80"])
@pytest.mark.parametrize("packed", [True, False])
def test_bits_are_those_of_the_tables(target, packed):
    call, starts = (operands(), {"cu_seqlens_q": STARTS}) if packed else (operands(1, 2), {})
    expected = diffattn.attention(*call, is_causal=True, block_table=TABLE, kv_len=LENGTHS, **starts, target=target)
    table, lengths = TABLE.copy(), LENGTHS.copy()
    made = diffattn.PageTable(table, lengths, pages=5, rows=8, **starts, **({"queries": 4} if packed else {}))
    table[:], lengths[:] = 99, 0  # it has copies
    for _ in range(2):
        assert np.array_equal(diffattn.attention(*call, is_causal=True, block_table=made, target=target), expected)
    q, k, _, _, v, _ = call
    one = diffattn.plain_attention(q, k, v, block_table=TABLE, kv_len=LENGTHS, **starts, target=target)
    assert np.array_equal(diffattn.plain_attention(q, k, v, block_table=made, target=target), one)


@pytest.mark.parametrize("changes, message", [
    ({"block_table": TABLE + 2}, "block_table: expected pages from 0 and below 5, but got 5 as page 0 of sequence 0"),
    ({"block_table": TABLE[0]}, "block_table: expected rank 2, but got shape [2]"),
    ({"block_table": TABLE.astype(np.int16)}, "block_table: expected int32 or int64, but got int16"),
    ({"kv_len": [13, -1]}, "kv_len: expected 0 to 9223372036854775807, but got -1 to 13"),
    ({"kv_len": [13]}, "kv_len: expected a number or shape [2], but got [1]"),
    ({"kv_len": 2.5}, "kv_len: expected integers, but got float64"),
    ({"cu_seqlens_q": [0, 4]}, "cu_seqlens_q: expected shape [3], but got [2]"),
    ({"cu_seqlens_q": [0, 3, 5]}, "cu_seqlens_q: expected 4, the number of queries, as the last number, but got 5"),
    ({"cu_seqlens_q": STARTS, "queries": None}, "queries: expected an integer of at least 0, but got None"),
    ({"rows": 0}, "rows: expected an integer of at least 1, but got 0"),
])
def test_wrong_tables(changes, message):
    given = {"block_table": TABLE, "kv_len": LENGTHS, "pages": 5, "rows": 8, "queries": 4} | changes
    with pytest.raises((InputError, UsageError), match="^" + re.escape(message)):
        diffattn.PageTable(given.pop("block_table"), given.pop("kv_len"), **given)


def test_calls_of_other_sizes():
    made = diffattn.PageTable(TABLE, LENGTHS, pages=5, rows=8, cu_seqlens_q=STARTS, queries=4)
    for call, size in ((operands(pages=4), "pages=4"), (operands(queries=5), "queries=5")):
        with pytest.raises(InputError, match=f"block_table: expected a PageTable of {size}, as the call has them, but got one of "):
            diffattn.attention(*call, is_causal=True, block_table=made)
    for name, value in (("kv_len", LENGTHS), ("cu_seqlens_q", STARTS)):
        with pytest.raises(UsageError, match=f"{name}: expected none with a PageTable, which has its own"):
            diffattn.attention(*operands(), is_causal=True, block_table=made, **{name: value})
    with pytest.raises(InputError, match=r"block_table: expected shape \[N, pages\] with N = 3 sequences, but got \[2, 2\]"):
        diffattn.attention(*operands(1, 3), block_table=diffattn.PageTable(TABLE, LENGTHS, pages=5, rows=8))
