"""Attention of which any sizes may be unknown when it is compiled, heads and widths too: the result is right whichever they are."""
import numpy as np
import pytest

from attention_cases import BOUNDS, TYPES
from attention_reference import attention as reference
from diffattn import attention_module, runtime
from kernel_library import runnable_isas

#: Most of the time is that of compiling, which takes longer for a CPU.
COUNT = {"cpu": 5, "cuda-sim": 8}
TARGETS = [*[f"cpu:{isa}" for isa in runnable_isas()], "cuda-sim:sm_80", "cuda-sim:sm_90"]


def draw(rng, target):
    """A case: the type of the operands, all of them by name, and the types that they are compiled for."""
    pick = lambda *options: options[rng.integers(len(options))]
    dtype = pick("f32", "bf16") if target.startswith("cuda") else pick("f32", "bf16", "f16")
    signal, noise, key1, key2, value = pick((4, 2, 1, 1, 1), (2, 2, 2, 1, 1), (6, 2, 2, 2, 3), (1, 1, 1, 1, 1))
    d, dv = pick((16, 32), (20, 33), (8, 8), (33, 17))
    queries, keys = pick(1, 3, 8, 9, 40), pick(1, 20, 70)
    make = lambda heads, length, width: rng.standard_normal((2, heads, length, width)).astype(TYPES[dtype])
    arrays = dict(q1=make(signal, queries, d), k1=make(key1, keys, d), q2=make(noise, queries, d), k2=make(key2, keys, d), v=make(value, keys, dv))
    arrays["lambda"] = np.float32(0.4).reshape(())
    arrays["init"] = np.full((2, signal, queries, dv), np.nan, TYPES[dtype])
    known = pick(0.0, 0.5, 0.9)
    types = {}
    for name, array in arrays.items():
        sizes = [f"{size}x" if rng.random() < known else "?x" for size in array.shape]
        types[name] = f"memref<{''.join(sizes)}{'f32' if name == 'lambda' else dtype}>"
    return dtype, arrays, types


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", TARGETS)
def test_any_size_may_be_unknown(target, full):
    for number in range(COUNT[target.split(":")[0]] * (20 if full else 1)):
        rng = np.random.default_rng([target.startswith("cuda"), number])
        dtype, arrays, types = draw(rng, target)
        options = dict(is_causal=bool(rng.integers(2)))
        text = attention_module.attributes_of(arrays["q1"].shape[3], attention_module.options_of(
            0.2, options["is_causal"], None, None, None, None, 1e-5, "inside", 1.0))
        executable = runtime.Executable(attention_module.module(tuple(types.items()), text, False), target=target, cache=False)
        executable.call("attention", *arrays.values())
        expected, magnitude = reference(*[arrays[n] for n in ("q1", "k1", "q2", "k2", "v", "lambda")], scale=float(np.float32(0.2)), **options)
        wrong = ~(np.abs(arrays["init"].astype(np.float64) - expected) <= BOUNDS[dtype] * (magnitude + np.abs(expected)) + 1e-7)
        assert not wrong.any(), f"case {number}: {wrong.sum()} of {wrong.size} wrong, of types {types}"
