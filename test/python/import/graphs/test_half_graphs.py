"""Graphs that multiply 16-bit operands in f32: raised to attention of the 16-bit type where they round to it, and within its gate."""
import re

import numpy as np
import pytest
from attention_cases import BOUNDS, HALF_STEP, TYPES
from attention_reference import attention
from diffattn.runtime import Executable, emit
from half_graphs import HEADS, LAMBDA, QUERIES, SCALE, SCALINGS, SHAPES, VALUE, WIDENINGS, spell
from paths import ROOT

OPERANDS = ("q1", "k1", "q2", "k2", "v")
GRAPHS = ROOT / "test/graphs"


def raised(text):
    """(element type of q, k and v, element type of the result, text) of the only attention."""
    out = emit(text, "raised").decode()
    types = re.findall(r"diffattn\.attention ins\(.*? : tensor<[\dx?]*x(\w+)>.*?\)\s+lambda.*? outs\(\S+ : tensor<[\dx?]*x(\w+)>\)", out)
    assert len(types) == 1, out
    return (*types[0], out)


def draw(half, options):
    """The arguments of the graph: q1, k1, q2, k2, v, then what its options add."""
    rng = np.random.default_rng(3)
    wide = lambda n: (n == "v" and options.get("wide_value")) or (n[0] == "q" and options.get("rotate"))
    arrays = [rng.standard_normal(SHAPES[n[0]]).astype(np.float32 if wide(n) else TYPES[half]) for n in OPERANDS]
    if options.get("temperature"):
        arrays.append(np.array(0.8, np.float32))
    if options.get("gate"):
        arrays.append(rng.standard_normal((HEADS, QUERIES, VALUE)).astype(TYPES[half]))
    if options.get("reader") == "factor":
        arrays.append(rng.standard_normal(VALUE).astype(np.float32))
    return arrays


def check(text, half, options, gate_of, target="cpu"):
    """Runs the graph and compares each result with f64 by the gate of `gate_of`."""
    arrays = draw(half, options)
    results = Executable(text, cache=False, target=target).call("main", *arrays)
    q1, k1, q2, k2, v = [x[None].astype(np.float64) for x in arrays[:5]]
    if options.get("rotate"):
        turn = lambda q: (q.astype(np.float32) * np.float32(0.75)).astype(TYPES[half]) if options["rotate"] == "rounded" else 1.5 * q
        q1, q2 = turn(q1), turn(q2)
    causal = dict(is_causal=True, q_offset=[0]) if options.get("mask") else {}
    v = v * (1.375 if options.get("scaled_value") else 1)
    expected, magnitude = attention(
        q1, k1, q2, k2, v, np.float32(LAMBDA), scale=SCALE * (float(arrays[5]) if options.get("temperature") else 1), **causal,
        norm="rms" if options.get("result") == "norm-f32" else None, gate=arrays[-1][None] if options.get("gate") else None)
    if options.get("reader") == "factor":
        expected, magnitude = expected * arrays[-1], magnitude * np.abs(arrays[-1])
    for got in results:
        compare(got[None], expected, magnitude, gate_of)


def compare(got, expected, magnitude, gate_of):
    error = np.abs(got.astype(np.float64) - expected)
    allowed = BOUNDS[gate_of] * (magnitude + np.abs(expected)) + HALF_STEP[gate_of]
    assert (error <= allowed).all(), f"off by {(error / allowed).max():.2f} of what is allowed"


#: Everything that a graph may do, one at a time; the element type of the op's result.
SPELLINGS = {
    **{f"{w}-{s}": (dict(widening=w, scaling=s), "half") for w in WIDENINGS for s in SCALINGS},
    "rounded-scores": (dict(round_scores=True), "half"),
    "half-softmax": (dict(half_softmax=True), "half"),
    "softmax-in-steps": (dict(softmax_steps=True, round_scores=True), "half"),
    "half-softmax-in-steps": (dict(softmax_steps=True, half_softmax=True, mask=True), "half"),
    "half-softmax-wide-product": (dict(half_softmax=True, widening="ops", result="f32"), "f32"),
    "maps-not-rounded": (dict(round_maps=False), "half"),
    "maps-not-rounded-ops": (dict(round_maps=False, widening="ops"), "half"),
    "maps-not-rounded-body": (dict(round_maps=False, widening="body"), "half"),
    "maps-combined-in-half": (dict(combine_half=True), "half"),
    "values-first": (dict(combine="values"), "half"),
    "values-first-in-half": (dict(combine="values", combine_half=True), "half"),
    "values-first-not-rounded": (dict(combine="values", round_maps=False, widening="ops"), "half"),
    "f32-result": (dict(result="f32"), "f32"),
    "f32-result-ops": (dict(result="f32", widening="ops"), "f32"),
    "f32-result-values-first": (dict(result="f32", combine="values", widening="body"), "f32"),
    "rounded-before-f32-norm": (dict(result="norm-f32", round_maps=False, widening="ops"), "f32"),
    "rotated-and-rounded": (dict(rotate="rounded", widening="ops", round_maps=False), "half"),
    "rotated-and-rounded-product": (dict(rotate="rounded"), "half"),
    "mask": (dict(mask=True), "half"),
    "mask-on-rounded-scores": (dict(mask=True, round_scores=True), "half"),
    "mask-half-softmax": (dict(mask=True, half_softmax=True), "half"),
    "gate": (dict(gate=True), "half"),
    "gate-f32-result": (dict(gate=True, result="f32", widening="ops"), "f32"),
    "rounded-by-the-reader": (dict(result="f32", round_maps=False, widening="ops", reader="body"), "f32"),
    "rounded-by-two-readers": (dict(result="f32", round_maps=False, widening="ops", reader="two"), "f32"),
    "scaled-values": (dict(scaled_value="wide", round_maps=False), "half"),
    "scaled-values-before-f32-norm": (dict(scaled_value="wide", result="norm-f32"), "f32"),
    "rounded-behind-a-factor": (dict(result="f32", round_maps=False, widening="ops", reader="factor"), "f32"),
    "values-in-halves": (dict(value_in_halves=True), "half"),
    "values-in-halves-ops": (dict(value_in_halves=True, widening="ops", round_maps=False), "half"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_attention_of_the_16_bit_type(name, half):
    options, result = SPELLINGS[name]
    text = spell(half, **options)
    element, out, module = raised(text)
    assert (element, out) == (half, half if result == "half" else "f32")
    # Nothing widens q, k or v, and nothing widens the result; what rounds stands before the op or reads its result.
    rest = re.sub(r"^ *%\w+ = diffattn.attention", "", module, flags=re.M)
    if not options.get("reader"):
        assert "arith.extf" not in rest
    assert "arith.truncf" not in rest or options.keys() & {"rotate", "reader"}
    check(text, half, options, half)


@pytest.mark.parametrize("half, name", [("f16", "h_diffllama_attn_f16_sdpa_fx"), ("bf16", "h_diffllama_attn_bf16_onnx")])
def test_diffllama_as_importers_write_it(half, name):
    """torch-mlir of transformers' DiffLlama: scaled_dot_product_attention in f32 with its guard by fx, eager by ONNX."""
    text = (GRAPHS / f"{name}.mlir").read_text()
    element, out, module = raised(text)
    assert (element, out) == (half, half)
    # Lambda alone is widened.
    assert re.findall(r"arith\.extf %(\w+)", module) == ["extracted"]
    rng = np.random.default_rng(5)
    q, k, v = [rng.standard_normal((2, heads, 24, 16)).astype(TYPES[half]) for heads in (4, 2, 2)]
    causal = np.broadcast_to(np.tri(24, dtype=np.bool_), (2, 1, 24, 24))
    mask = causal if half == "f16" else np.where(causal, 0, -3.0e38).astype(TYPES[half])
    lam = np.array(0.325, TYPES[half])
    number = lambda x: float(np.array(x, TYPES[half]))
    expected, magnitude = attention(
        q[:, :2], k[:, :1], q[:, 2:], k[:, 1:], np.concatenate([v[:, :1], v[:, 1:]], 3), lam, scale=0.25, is_causal=True, norm="rms",
        norm_eps=number(1e-5) if half == "f16" else 1e-5, out_scale=number(0.8) if half == "f16" else 0.800781)
    (got,) = Executable(text, cache=False).call("main", q, k, v, mask, lam)
    compare(got.swapaxes(1, 2), expected, magnitude, half)


@pytest.mark.parametrize("half, name", [("bf16", "product-scores"), ("f16", "f32-result"), ("bf16", "rounded-before-f32-norm"),
                                        ("f16", "gate-f32-result")])
def test_on_the_simulated_gpu(half, name):
    options, _ = SPELLINGS[name]
    text = spell(half, **options)
    check(text, half, options, half, target="cuda-sim:sm_80")
    # Tensor cores multiply.
    assert f"mma.sync.aligned.m16n8k16.row.col.f32.{half}".encode() in emit(text, "ptx", target="cuda:sm_80")


#: Rounded nowhere, or not exact widenings of one type: f32, as the graph has it.
KEPT = {
    "rounded-nowhere": (dict(round_maps=False, result="f32", widening="ops"), "neither the maps nor the result is rounded to {}"),
    "rounded-nowhere-product": (dict(round_maps=False, result="f32"), "neither the maps nor the result is rounded to {}"),
    "rounded-scores-alone": (dict(round_maps=False, result="f32", round_scores=True), "neither the maps nor the result is rounded to {}"),
    "f32-queries": (dict(rotate="wide", widening="ops"), "q1 is no exact widening of {}"),
    "f32-temperature": (dict(temperature=True), "q1 is no exact widening of {}"),
    "f32-beside-a-gate": (dict(gate=True, round_maps=False, result="f32"), "neither the maps nor the result is rounded to {}"),
    "f32-values": (dict(wide_value=True, widening="ops"), "v is no exact widening of {}"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize("name", KEPT)
def test_f32_where_the_graph_wants_it(name, half):
    options, reason = KEPT[name]
    text = spell(half, **options)
    assert raised(text)[0] == "f32"
    messages = [d.message for d in Executable(text, cache=False).diagnostics if d.name == "ComputedInF32"]
    assert messages == [f"16-bit attention is computed in f32: {reason.format(half)}"]
    check(text, half, options, "f32" if options.get("result") == "f32" else half)
