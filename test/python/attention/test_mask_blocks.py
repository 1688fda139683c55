"""Biases that hide every key of a block from a block of queries, or none: the kernel passes over the one, and does not edit the other where
the bias is of truth values. Against f64 on every instruction set; a row's bits must not depend on which of it happened."""
import numpy as np
import pytest

from kernel_library import TYPES, compile_library, runnable_isas, signature
from test_attention_random import BOUNDS, Inputs, check, run

LENGTHS = [dict(tq=97, tk=300), dict(tq=49, tk=31), dict(tq=60, tk=130), dict(tq=16, tk=7)]
#: Few queries: blocks of 512 keys.
LENGTHS += [dict(tq=1, tk=1100), dict(tq=3, tk=1537), dict(tq=8, tk=520)]
SIGNATURES = [
    dict(type="f32", bias="i1"), dict(type="f32", bias="f32"), dict(type="bf16", bias="i1"), dict(type="bf16", bias="bf16"),
    dict(type="f16", bias="i1", causal=True, kv_len=True, result="f32"), dict(type="f16", bias="f16", softcap=5.0, result="f32"), dict(type="bf16", bias="i1", segments="i64"),
    dict(maps=1, type="f32", bias="i1"), dict(maps=1, type="bf16", bias="bf16"),
    dict(type="f32", bias="i1", unit=False), dict(type="bf16", bias="f32", norm="rms", softcap=5.0), dict(type="bf16", bias="i1", small=False),
]


def masks(rng, tq, tk):
    """Which keys each query sees, by name."""
    i, j = np.arange(tq)[:, None] + tk - tq, np.arange(tk)[None]
    one = np.zeros((tq, tk), bool)
    one[rng.integers(tq), rng.integers(tk)] = True
    ends = np.zeros((tq, tk), bool)
    ends[[0, 0, -1, -1], [0, -1, 0, -1]] = True
    holed = np.ones((tq, tk), bool)
    holed[rng.integers(tq), rng.integers(tk)] = False
    return {
        "causal": j <= i, "window": (j <= i) & (j > i - 20), "all": np.ones((tq, tk), bool), "none": np.zeros((tq, tk), bool), "one": one, "ends": ends,
        "all but one": holed, "documents": i // 40 == j // 40, "blocks": rng.random((tq // 16 + 1, tk // 32 + 1)).repeat(16, 0).repeat(32, 1)[:tq, :tk] < 0.4,
        "padding": np.broadcast_to(j < rng.integers(tk + 1), (1, tk)),
    }


def as_bias(rng, sig, seen, heads):
    """`seen`, of one head or of `heads` of which every second one reads it from its end, in an array whose rows have room behind them."""
    shape = (1, heads, *seen.shape)
    seen = np.stack([seen[:, ::-1] if head % 2 else seen for head in range(heads)])
    memory = np.zeros((*shape[:3], (1 if sig["unit"] else 2) * shape[3] + 3), TYPES[sig["bias"]])
    bias = memory[..., : memory.shape[-1] - 3: 1 if sig["unit"] else 2]
    bias[...] = seen if sig["bias"] == "i1" else np.where(seen, rng.standard_normal(shape), -np.inf)
    return bias


@pytest.fixture(scope="module", params=runnable_isas())
def library(request, build_dir, tmp_path_factory, full):
    isa = request.param
    chosen = SIGNATURES if full else SIGNATURES[runnable_isas().index(isa) % 2 :: 2]  # the others on the next ISA
    signatures = [signature(**{"small": True, **changes}) for changes in chosen if isa != "amx-emulated" or changes["type"] == "bf16"]
    return isa, compile_library(signatures, isa, build_dir, tmp_path_factory.mktemp(isa), optimize=full), signatures


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: "x".join(map(str, lengths.values())))
def test_blocks_by_what_a_bias_holds(library, lengths, full):
    isa, code, signatures = library
    for number, sig in enumerate(signatures):
        rng = np.random.default_rng(number)
        inputs = Inputs(rng, {**sig, "bias": None}, {**lengths, "batch": 1})
        inputs.sig, arrays = sig, inputs.arrays
        for index, (name, seen) in enumerate(masks(rng, **lengths).items()):
            if (number + index + lengths["tq"]) % 2 and not full:
                continue
            arrays["bias"] = as_bias(rng, sig, seen, 1 if name == "padding" else inputs.noise_heads)
            clean = run((isa, code), number, inputs)
            check(inputs, isa, number, BOUNDS)
            # Rows alone, with all keys hidden from the others and with none.
            row, kept = int(rng.integers(seen.shape[0])), arrays["bias"].copy()
            for others in (False, True) if seen.shape[0] > 1 else ():
                arrays["bias"][...] = others if sig["bias"] == "i1" else 0 if others else -np.inf
                arrays["bias"][:, :, row] = kept[:, :, row]
                got = run((isa, code), number, inputs)
                assert np.array_equal(got[:, :, row], clean[:, :, row]), f"{isa} {sig} {name}: a row's bits depend on what others see"
            arrays["bias"][...] = kept
            # Keys that no row sees may hold anything.
            hidden = ~(seen | seen[:, ::-1] if arrays["bias"].shape[1] > 1 else seen).any(0)
            kept = {operand: arrays[operand].copy() for operand in ("k1", "k2", "v") if operand in arrays}
            for operand in kept:
                arrays[operand][:, :, hidden] = np.nan
            got = run((isa, code), number, inputs)
            for operand, values in kept.items():
                arrays[operand][...] = values
            assert np.array_equal(got, clean), f"{isa} {sig} {name}: what hidden keys hold was seen"
