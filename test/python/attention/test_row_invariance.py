"""A row of attention adds up in one order, however many queries and keys there are behind it."""
import ml_dtypes
import numpy as np
import pytest

import diffattn
from kernel_library import runnable_isas

#: Around one and more blocks of queries, of which the last may have a single row, and of keys.
LENGTHS = [1, 2, 7, 9, 13, 24, 25, 40, 47, 48, 49, 50, 96, 97, 144, 145, 193, 255, 256, 257, 289, 300, 329]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("masks", [{"is_causal": True}, {"window": (4, 0)}, {"window": (99, 0)}, {"window": (299, 0)}, {"window": (20, 3)}],
                         ids=lambda masks: "causal" if "is_causal" in masks else "window {} {}".format(*masks["window"]))
@pytest.mark.parametrize("target, dtype, width", [("cpu", np.float32, 8), ("cpu", ml_dtypes.bfloat16, 32),
                                                  ("cpu:amx-emulated", ml_dtypes.bfloat16, 32)],
                         ids=["vectors", "pairs", "tiles"])
def test_rows_do_not_depend_on_what_follows(masks, target, dtype, width):
    rng = np.random.default_rng(0)
    q1, k1, q2, k2 = rng.standard_normal((4, 1, 2, 330, width)).astype(dtype)
    v = rng.standard_normal((1, 2, 330, 16)).astype(dtype)
    whole = diffattn.attention(q1, k1, q2, k2, v, 0.3, target=target, **masks)
    ahead = masks.get("window", (0, 0))[1]
    for length in LENGTHS:
        part = diffattn.attention(*(np.ascontiguousarray(x[:, :, :length]) for x in (q1, k1, q2, k2, v)), 0.3, target=target, **masks)
        rows = max(length - ahead, 0)
        np.testing.assert_array_equal(part[:, :, :rows], whole[:, :, :rows], err_msg=f"{length} tokens")


#: Targets that multiply values in pairs of keys.
PAIRED = [f"cpu:{isa}" for isa in ("avx512bf16", "amx", "amx-emulated") if isa in runnable_isas()]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", PAIRED)
@pytest.mark.parametrize("keys, dv", [(300, 16), (301, 40)])
def test_values_that_heads_share_are_those_of_each_head(target, keys, dv):
    """Many readers of a head's values find them in pairs; a single one pairs them itself, from an odd key on and up to one if need be."""
    rng = np.random.default_rng(keys)
    q1, q2 = rng.standard_normal((2, 2, 4, 40, 32)).astype(ml_dtypes.bfloat16)
    k1, k2 = rng.standard_normal((2, 2, 1, keys, 32)).astype(ml_dtypes.bfloat16)
    v = rng.standard_normal((2, 1, keys, dv)).astype(ml_dtypes.bfloat16)
    v[0, 0, keys - 20, 3], v[1, 0, keys - 31, dv - 1] = np.nan, np.inf
    for masks in ({}, {"is_causal": True}, {"window": (7, 2)}, {"window": (64, 0)}, {"is_causal": True, "kv_len": np.array([keys - 7, keys - 40])},
                  {"q_offset": keys - 60, "is_causal": True}):
        together = diffattn.attention(q1, k1, q2, k2, v, 0.3, target=target, **masks).astype(np.float32)
        alone = [diffattn.attention(q1[:, [h]], k1, q2[:, [h]], k2, v, 0.3, target=target, **masks).astype(np.float32) for h in range(4)]
        np.testing.assert_array_equal(together, np.concatenate(alone, 1), err_msg=str(masks))
        # Some rows see what is not finite and others do not, if anything is hidden.
        finite = np.isfinite(together).all(-1)
        assert not finite.all() and finite.any() == bool(masks)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target, dtype", [(f"cpu:{isa}", ml_dtypes.bfloat16 if "bf16" in isa or "amx" in isa else np.float32) for isa in runnable_isas()])
@pytest.mark.parametrize("width", [32, 20])
def test_heads_may_lie_side_by_side(target, dtype, width):
    """One query and few, on keys of which each token's heads follow one another, from anywhere in a line of caches on: other lines are asked for
    ahead, and nothing else is different."""
    rng = np.random.default_rng(width)
    heads, keys, dv = 3, 700, 24

    def token_major(columns):
        memory = np.zeros(keys * heads * columns + 5, dtype)[5:]
        memory[:] = rng.standard_normal(memory.shape)
        return memory.reshape(1, keys, heads, columns).transpose(0, 2, 1, 3)

    k1, k2, v = token_major(width), token_major(width), token_major(dv)
    for queries in (1, 3):
        q1, q2 = rng.standard_normal((2, 1, 2 * heads, queries, width)).astype(dtype)
        for masks in ({}, {"kv_len": 600, "is_causal": True}, {"window": (130, 0)}):
            got = diffattn.attention(q1, k1, q2, k2, v, 0.3, target=target, **masks)
            dense1, dense2, dense_v = (np.ascontiguousarray(x) for x in (k1, k2, v))
            want = diffattn.attention(q1, dense1, q2, dense2, dense_v, 0.3, target=target, **masks)
            np.testing.assert_array_equal(got, want, err_msg=f"{queries} queries, {masks}")
