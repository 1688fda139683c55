"""A row of attention adds up in one order, however many queries and keys there are behind it."""
import numpy as np
import pytest

import diffattn

#: Around one and more blocks of queries, of which the last may have a single row, and of keys.
LENGTHS = [1, 2, 7, 9, 13, 24, 25, 40, 47, 48, 49, 50, 96, 97, 144, 145, 193, 255, 256, 257, 289, 300, 329]


@pytest.mark.parametrize("sight", [{"is_causal": True}, {"window": (4, 0)}, {"window": (99, 0)}, {"window": (299, 0)}, {"window": (20, 3)}],
                         ids=lambda sight: "causal" if "is_causal" in sight else "window {} {}".format(*sight["window"]))
def test_rows_do_not_depend_on_what_follows(sight):
    rng = np.random.default_rng(0)
    q1, k1, q2, k2 = rng.standard_normal((4, 1, 2, 330, 8)).astype(np.float32)
    v = rng.standard_normal((1, 2, 330, 16)).astype(np.float32)
    whole = diffattn.attention(q1, k1, q2, k2, v, 0.3, **sight)
    ahead = sight.get("window", (0, 0))[1]
    for length in LENGTHS:
        part = diffattn.attention(*(np.ascontiguousarray(x[:, :, :length]) for x in (q1, k1, q2, k2, v)), 0.3, **sight)
        rows = max(length - ahead, 0)
        np.testing.assert_array_equal(part[:, :, :rows], whole[:, :, :rows], err_msg=f"{length} tokens")
