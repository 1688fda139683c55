"""Schedules written by hand: whatever #diffattn.schedule and #diffattn.gpu_schedule let pass gives the right answer, and what
they refuse, they refuse with what was expected."""
import numpy as np
import pytest

import diffattn
from attention_cases import BOUNDS, TYPES
from attention_reference import attention as reference
from diffattn import _attention, runtime
from kernel_library import runnable_isas

COUNT = {"cpu": 6, "cuda": 10}


def draw_schedule(rng, isa):
    """A schedule of a CPU kernel, most of its numbers unusual ones; about half pass the verifier."""
    pick = lambda *options: options[rng.integers(len(options))]
    lanes = pick(4, 8, 16)
    score = pick(1, 2, 3, 4, 8, 13), pick(1, 2, 3, 5, 6), pick(1, 2, 3, 8)
    product = pick(1, 2, 3, 6, 8, 16), pick(1, 2, 3, 4, 8), pick(1, 3, 4)
    rows = score[1] * lanes * product[0] // np.gcd(score[1] * lanes, product[0]) * pick(1, 1, 2)
    kv_block_size = lanes * score[0] // np.gcd(lanes, score[0]) * pick(1, 2, 5)
    return (f'path = nest, isa = "{isa}", lanes = {lanes}, rows = {rows}, qk_tile = {list(score)}, pv_tile = {list(product)}, '
            f"kv_block_size = {kv_block_size}, two_pass_keys = {pick(0, 16, 60, 16384)}, split_rows = {pick(0, 2, 8, 100)}, "
            f"split_keys = {lanes * pick(1, 2, 7, 64)}, bf16_dot = {pick('true', 'false')}")


def draw_kernel(rng):
    """A schedule of a GPU kernel, and the most queries that it takes: 8 where keys are split."""
    pick = lambda *options: options[rng.integers(len(options))]
    placement, warps = pick("both", "both", "pair", "apart"), pick(1, 2, 3, 4, 6, 8, 16)
    keys, split = pick(16, 32, 48, 64, 128), 0
    if pick(0, 0, 1):
        placement, warps = "both", pick(1, 2, 3, 8)
        keys = 16 * warps
        split = keys * pick(1, 2, 5)
    text = (f"placement = {placement}, warps = {warps}, row_tiles = {pick(1, 2)}, keys = {keys}, stages = {pick(2, 3, 4)}, "
            f"q_in_registers = {pick('true', 'false')}, split_keys = {split}")
    return text, bool(split)


def run(rng, dtype, widths, attributes, target, queries, keys, *, static=False):
    """Whether the verifier let the schedule pass; a result that is wrong fails."""
    pick = lambda *options: options[rng.integers(len(options))]
    (d, dv), heads = widths, pick((2, 1, 1, 1, 2), (2, 2, 2, 1, 1))
    make = lambda h, t, w: rng.standard_normal((2, h, t, w)).astype(TYPES[dtype])
    arrays = dict(zip(("q1", "k1", "q2", "k2", "v"), (make(heads[0], queries, d), make(heads[2], keys, d), make(heads[1], queries, d),
                                                      make(heads[3], keys, d), make(heads[4], keys, dv))))
    options = dict(is_causal=pick(True, False), window=pick(None, None, (9, 4)), norm=pick(None, "rms"))
    text = _attention._attributes({"d": d}, _attention._options(0.17, options["is_causal"], options["window"], None, None,
                                                                options["norm"], 1e-5, "inside", 1.0))
    arrays["lambda"] = np.float32(0.4).reshape(())
    if pick(0, 0, 1):
        arrays["bias"] = rng.standard_normal((2, 1, queries, keys)).astype(np.float32)
    arrays["init"] = np.full((2, heads[0], queries, dv), np.nan, TYPES[dtype])
    types = {name: _attention._memref(name, a) for name, a in arrays.items()}
    if static:
        for name in ("q1", "q2", "init"):
            types[name] = types[name].replace(f"x?x{arrays[name].shape[3]}x", f"x{queries}x{arrays[name].shape[3]}x")
    try:
        executable = runtime.Executable(_attention._module(types, f"{text}, {attributes}", False), target=target, cache=False)
    except diffattn.errors.DiffAttnError as error:
        assert "expected" in str(error) and "but got" in str(error), error
        return False
    executable.call("attention", *arrays.values())
    expected, magnitude = reference(*[arrays[n] for n in ("q1", "k1", "q2", "k2", "v", "lambda")], scale=float(np.float32(0.17)),
                                    bias=arrays.get("bias"), **options)
    wrong = ~(np.abs(arrays["init"].astype(np.float64) - expected) <= BOUNDS[dtype] * (magnitude + np.abs(expected)) + 1e-7)
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} wrong: {dtype} {widths} {queries} {keys} {options} {attributes}"
    return True


@pytest.mark.parametrize("isa", runnable_isas())
def test_every_nest_that_verifies_is_right(isa, full):
    passed = 0
    for number in range(COUNT["cpu"] * (20 if full else 1)):
        rng = np.random.default_rng(number)
        pick = lambda *options: options[rng.integers(len(options))]
        schedule = f"schedule = #diffattn.schedule<{draw_schedule(rng, isa)}>"
        passed += run(rng, pick("f32", "bf16", "f16"), pick((16, 32), (20, 33), (64, 80)), schedule, f"cpu:{isa}",
                      pick(1, 3, 70, 97), pick(33, 90, 130))
    assert passed


def test_every_kernel_that_verifies_is_right(full):
    passed = 0
    for number in range(COUNT["cuda"] * (20 if full else 1)):
        rng = np.random.default_rng(number)
        pick = lambda *options: options[rng.integers(len(options))]
        text, few = draw_kernel(rng)
        names = ["diffattn.gpu_schedule", "diffattn.gpu_element_schedule"]
        schedule = ", ".join(f"{name} = #diffattn.gpu_schedule<{text}>" for name in names)
        passed += run(rng, pick("bf16", "f16"), pick((16, 32), (20, 33), (64, 80)), schedule, "cuda-sim:sm_80",
                      pick(1, 3) if few else pick(9, 40), pick(33, 70), static=few)
    assert passed
