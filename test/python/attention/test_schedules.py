"""Schedules written by hand: whatever the verifiers of the families of kernels let pass gives the right answer, and what they
refuse, they refuse with what was expected."""
import numpy as np
import pytest

import diffattn
from attention_cases import BOUNDS, TYPES, memref
from attention_reference import attention as reference
from diffattn import attention_module, runtime
from kernel_library import runnable_isas

COUNT = {"cpu": 3, "cuda": 6}


def draw_cpu_schedules(rng, isa):
    """A list for a CPU, most of its numbers unusual ones; about half pass the verifier."""
    pick = lambda *options: options[rng.integers(len(options))]
    lanes = pick(4, 8, 16)
    made_for = f'isa = "{isa}", lanes = {lanes}, product = '
    prefill_product = pick("f32", "bf16_pairs")
    split_product = pick(prefill_product, "bf16_tiles")
    score = pick(1, 2, 3, 4, 8, 13), pick(1, 2, 3, 5, 6), pick(1, 2, 3, 8)
    product = pick(1, 2, 3, 6, 8, 16), pick(1, 2, 3, 4, 8), pick(1, 3, 4)
    rows = score[1] * lanes * product[0] // np.gcd(score[1] * lanes, product[0]) * pick(1, 1, 2)
    kv_block_size = lanes * score[0] // np.gcd(lanes, score[0]) * pick(1, 2, 5)
    prefill = (f"#diffattn.cpu_prefill<{made_for}{prefill_product}, q_block_size = {rows}, qk_tile = {list(score)}, pv_tile = {list(product)}, "
               f"kv_block_size = {kv_block_size}, two_pass_keys = {pick(0, 16, 60, 16384)}>")
    outputs = pick(1, 2, 8, 16, 32)
    split = (f"#diffattn.cpu_split_kv<{made_for}{split_product}, kv_split_size = {lanes * pick(1, 2, 7, 64)}, qk_rows = {pick(1, 2, 4, 8, lanes)}, "
             f"q_vectors = {pick(0, 3, 8, 16)}, pv_rows = {pick(1, outputs, 2)}, pv_keys = {pick(2, 6, 8, 100)}, "
             f"o_vectors = {outputs}, o_row_vectors = {pick(1, 2, 4, 8, 16, 32)}, prefetch_rows = {pick(0, 1, 64)}>")
    few = pick(0, 2, 8, 100)
    if pick(0, 0, 1):
        return split if few else prefill
    return ", ".join([f"#diffattn.when<max_queries = {few}, min_keys = {pick(0, few, few + 1)} : {split}>"] * bool(few) + [prefill])


def draw_gpu_schedules(rng):
    """A list for a GPU, and whether it takes at most 8 queries: keys are split."""
    pick = lambda *options: options[rng.integers(len(options))]

    def forward():
        return (f"#diffattn.gpu_forward<placement = {pick('both', 'both', 'pair', 'apart')}, warps = {pick(1, 2, 3, 4, 6, 8, 16)}, "
                f"row_tiles = {pick(1, 2)}, kv_block_size = {pick(16, 32, 48, 64, 128)}, stages = {pick(2, 3, 4)}, "
                f"q_in_registers = {pick('true', 'false')}>")

    def split():
        warps = pick(1, 2, 3, 8)
        return (f"#diffattn.gpu_split_kv<warps = {warps}, stages = {pick(2, 3, 4)}, q_in_registers = {pick('true', 'false')}, "
                f"kv_split_size = {16 * warps * pick(1, 2, 5)}>")

    if pick(0, 0, 1):
        return split(), True
    conditions = [f"#diffattn.when<max_queries = {pick(1, 8)} : {split()}>", f"#diffattn.when<unaligned = true : {forward()}>",
                  f"#diffattn.when<min_keys = {pick(40, 100)}, unaligned = true : {forward()}>", f"#diffattn.when<min_keys = 50 : {forward()}>"]
    return ", ".join([c for c in conditions if pick(0, 0, 0, 1)] + [forward()]), False


def run(rng, dtype, widths, attributes, target, queries, keys, *, static=False):
    """Whether the verifier let the schedule pass; a result that is wrong fails."""
    pick = lambda *options: options[rng.integers(len(options))]
    (d, dv), heads = widths, pick((2, 1, 1, 1, 2), (2, 2, 2, 1, 1))
    make = lambda h, t, w: rng.standard_normal((2, h, t, w)).astype(TYPES[dtype])
    arrays = dict(zip(("q1", "k1", "q2", "k2", "v"), (make(heads[0], queries, d), make(heads[2], keys, d), make(heads[1], queries, d),
                                                      make(heads[3], keys, d), make(heads[4], keys, dv))))
    options = dict(is_causal=pick(True, False), window=pick(None, None, (9, 4)), norm=pick(None, "rms"))
    text = attention_module.attributes_of(d, attention_module.options_of(
        0.17, options["is_causal"], options["window"], None, None, options["norm"], 1e-5, "inside", 1.0))
    arrays["lambda"] = np.float32(0.4).reshape(())
    if pick(0, 0, 1):
        arrays["bias"] = rng.standard_normal((2, 1, queries, keys)).astype(np.float32)
    arrays["init"] = np.full((2, heads[0], queries, dv), np.nan, TYPES[dtype])
    types = {name: memref(name, a) for name, a in arrays.items()}
    if static:
        for name in ("q1", "q2", "init"):
            types[name] = types[name].replace(f"x?x{arrays[name].shape[3]}x", f"x{queries}x{arrays[name].shape[3]}x")
    try:
        executable = runtime.Executable(attention_module.module(tuple(types.items()), f"{text}, {attributes}", False),
                                        target=target, cache=False)
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
def test_every_cpu_kernel_that_verifies_is_right(isa, full):
    passed = 0
    count = COUNT["cpu"] * (40 if full else 1)
    # Others on each ISA.
    for number in range(count) if full else range(runnable_isas().index(isa) * count, (runnable_isas().index(isa) + 1) * count):
        rng = np.random.default_rng(number)
        pick = lambda *options: options[rng.integers(len(options))]
        schedule = f"schedules = [{draw_cpu_schedules(rng, isa)}]"
        passed += run(rng, pick("f32", "bf16", "f16"), pick((16, 32), (20, 33), (64, 80)), schedule, f"cpu:{isa}",
                      pick(1, 3, 70, 97), pick(33, 90, 130))
    assert passed


def test_every_gpu_kernel_that_verifies_is_right(full):
    passed = 0
    for number in range(COUNT["cuda"] * (40 if full else 1)):
        rng = np.random.default_rng(number)
        pick = lambda *options: options[rng.integers(len(options))]
        text, few = draw_gpu_schedules(rng)
        schedule = f"schedules = [{text}]"
        passed += run(rng, pick("bf16", "f16"), pick((16, 32), (20, 33), (64, 80)), schedule, "cuda-sim:sm_80",
                      pick(1, 3) if few else pick(3, 9, 40), pick(33, 70), static=few)
    assert passed
