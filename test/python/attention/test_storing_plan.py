"""`StoringPlan`: attention of keys and values in pages whose compiled function stores new ones first, as calls of an engine's step make it."""
import numpy as np
import pytest

import diffattn
from diffattn._attention import executable_of
from diffattn.array_facts import facts_of
from diffattn.attention_module import options_of
from diffattn.attention_operands import NAMES
from diffattn.attention_plan import StoringPlan
from diffattn.errors import InputError

ROWS, WIDTH, OPTIONS = 8, 16, {"is_causal": True, "norm": "rms"}


def step(shared=False):
    """Two requests of 3 and 11 keys with a query each: operands, and the new rows."""
    rng = np.random.default_rng(0)
    make = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    keys, values = make(5, 2 if shared else 4, ROWS, WIDTH), make(5, 2, ROWS, 2 * WIDTH)
    operands = {"q1": make(2, 2, 1, WIDTH), "k1": keys[:, :2], "q2": make(2, 2, 1, WIDTH), "k2": keys[:, -2:], "v": values, "lambda": np.float32([0.4, 0.6]),
                "kv_len": np.array([3, 11]), "block_table": np.array([[4, 0], [1, 3]], np.int32), "init": np.empty((2, 2, 1, 2 * WIDTH), np.float32)}
    return operands, (np.array([4 * ROWS + 2, 3 * ROWS + 2]), make(2, keys.shape[1], WIDTH), make(2, 2, 2 * WIDTH)), keys


def plan_of(operands, new, shared):
    specs = [facts_of(operands[name], name)[0] if name in operands else None for name in NAMES]
    return StoringPlan(tuple(specs), shared, options_of(**OPTIONS), tuple(facts_of(array, "new")[0] for array in new))


@pytest.mark.parametrize("shared", [False, True])
def test_results(shared):
    operands, new, keys = step(shared)
    plan = plan_of(operands, new, shared)
    arrays = [operands[NAMES[slot]] for slot in plan.slots] + list(new)
    code = executable_of("cpu", plan.module_of(options_of(**OPTIONS)), plan.entry, frames=1)
    call = lambda: code.call_again(b"attention", plan.packed([array.ctypes.data for array in arrays]), len(arrays))  # noqa: E731
    call()
    slots, new_keys, new_values = new
    for stored, pages in ((new_keys, keys), (new_values, operands["v"])):
        assert np.array_equal(pages[slots // ROWS, :, slots % ROWS], stored)
    q1, k1, q2, k2, v, lam = (operands[name] for name in NAMES[:6])
    expected = diffattn.attention(q1, k1, q2, k2, v, lam, block_table=operands["block_table"], kv_len=operands["kv_len"], **OPTIONS)
    assert np.array_equal(operands["init"], expected)
    # Tokens without a slot, and slots of pages that do not exist.
    kept, slots[:] = keys.copy(), [-1, -5]
    new_keys[:] = 0
    call()
    assert np.array_equal(keys, kept)
    slots[1] = 5 * ROWS
    with pytest.raises(diffattn.errors.RunError, match="expected a slice that begins from 0 to 4 on axis 0, but got 5"):
        call()
    assert np.array_equal(keys, kept)


@pytest.mark.parametrize("place, change, message", [
    (0, lambda slots: slots.astype(np.int32), "slots: expected int64, but got int32"),
    (1, lambda keys: keys[:, :3], r"new keys: expected shape \[2, 4, 16\], but got \[2, 3, 16\]"),
    (1, lambda keys: keys.astype(np.float16), "new keys: expected float32, but got float16"),
    (2, lambda values: values[:1], r"new values: expected shape \[2, 2, 32\], but got \[1, 2, 32\]"),
    (2, lambda values: values[..., ::-1], r"new values: expected a dense last axis, but got strides \[64, 32, -1\]"),
], ids=["slots", "heads", "type", "tokens", "strides"])
def test_new_rows_are_checked(place, change, message):
    operands, new, _ = step()
    with pytest.raises(InputError, match=message):
        plan_of(operands, [change(array) if place == at else array for at, array in enumerate(new)], False)
