"""A row of attention adds up in one order, however many queries and keys there are behind it."""
import ml_dtypes
import numpy as np
import pytest

import diffattn

#: Around one and more blocks of queries, of which the last may have a single row, and of keys.
LENGTHS = [1, 2, 7, 9, 13, 24, 25, 40, 47, 48, 49, 50, 96, 97, 144, 145, 193, 255, 256, 257, 289, 300, 329]


@pytest.mark.parametrize("sight", [{"is_causal": True}, {"window": (4, 0)}, {"window": (99, 0)}, {"window": (299, 0)}, {"window": (20, 3)}],
                         ids=lambda sight: "causal" if "is_causal" in sight else "window {} {}".format(*sight["window"]))
@pytest.mark.parametrize("target, dtype, width", [("cpu", np.float32, 8),
                                                  # Slow to compile.
                                                  pytest.param("cpu:amx-emulated", ml_dtypes.bfloat16, 32, marks=pytest.mark.sampled(2))],
                         ids=["vectors", "tiles"])
def test_rows_do_not_depend_on_what_follows(sight, target, dtype, width):
    rng = np.random.default_rng(0)
    q1, k1, q2, k2 = rng.standard_normal((4, 1, 2, 330, width)).astype(dtype)
    v = rng.standard_normal((1, 2, 330, 16)).astype(dtype)
    whole = diffattn.attention(q1, k1, q2, k2, v, 0.3, target=target, **sight)
    ahead = sight.get("window", (0, 0))[1]
    for length in LENGTHS:
        part = diffattn.attention(*(np.ascontiguousarray(x[:, :, :length]) for x in (q1, k1, q2, k2, v)), 0.3, target=target, **sight)
        rows = max(length - ahead, 0)
        np.testing.assert_array_equal(part[:, :, :rows], whole[:, :, :rows], err_msg=f"{length} tokens")
