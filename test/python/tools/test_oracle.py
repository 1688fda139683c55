"""Judging results by the module as given: what is right passes, and what is a little wrong does not."""
import re

import ml_dtypes
import numpy as np
import pytest

import diffattn
from diffattn import models, runtime
from paths import ROOT

GRAPHS = ["a_plain_fx", "b_where_onnx", "c_v1_fx", "f_return_a1_fx", "g_v1_jax"]
ATTENTION = """
func.func @f(%q1: tensor<1x2x6x16x{t}>, %k1: tensor<1x2x9x16x{t}>, %q2: tensor<1x2x6x16x{t}>, %k2: tensor<1x2x9x16x{t}>, %v: tensor<1x2x9x32x{t}>,
    %l: tensor<f32>) -> tensor<1x2x6x32x{t}> {{
  %e = tensor.empty() : tensor<1x2x6x32x{t}>
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<1x2x6x16x{t}>, tensor<1x2x9x16x{t}>, tensor<1x2x6x16x{t}>,
         tensor<1x2x9x16x{t}>, tensor<1x2x9x32x{t}>) lambda(%l : tensor<f32>) outs(%e : tensor<1x2x6x32x{t}>)
         {{scale = 0.25 : f32, is_causal}} -> tensor<1x2x6x32x{t}>
  return %o : tensor<1x2x6x32x{t}>
}}"""


def graph(name):
    text = (ROOT / "test/graphs" / f"{name}.mlir").read_text()
    with np.load(ROOT / "test/graphs" / f"{name}.npz") as arrays:
        inputs = [arrays[f"in{i}"] for i in range(sum(key.startswith("in") for key in arrays))]
    return text, re.search(r"func\.func (?:public )?@(\w+)", text).group(1), inputs


@pytest.mark.parametrize("name", GRAPHS)
def test_compiled_graphs_are_right_and_small_faults_are_seen(name):
    text, entry, inputs = graph(name)
    executable = runtime.Executable(text, cache=False)
    results = executable.call(entry, *inputs)
    judgement = executable.judge(text, entry, inputs, results)
    assert judgement and judgement.matches, judgement.lines
    assert len(judgement.lines) == len(results) and "of what is allowed" in judgement.lines[0]
    share = float(re.search(r"([\d.e-]+) of what is allowed", judgement.lines[0]).group(1))
    assert share < 0.5
    # The gate of docs/numerics.md is 5e-5 of the magnitude; a fault of a few times that in one element is seen.
    for number, result in enumerate(results):
        wrong = [r.copy() for r in results]
        place = tuple(n // 2 for n in result.shape)
        wrong[number][place] += 2e-4 * max(np.abs(result).max(), 0.1)
        judgement = executable.judge(text, entry, inputs, wrong)
        assert not judgement
        assert f"1 of {result.size} elements differ; at {list(place)} expected" in judgement.lines[number], judgement.lines
    # A key that one row does not see.
    nan = [results[0].copy(), *results[1:]]
    nan[0].flat[3] = np.nan
    assert not executable.judge(text, entry, inputs, nan)


@pytest.mark.parametrize("name, dtype, gate", [("f32", np.float32, 5e-5), ("f16", np.float16, 1.5e-3), ("bf16", ml_dtypes.bfloat16, 1.2e-2)])
def test_attention_is_judged_by_its_bound(name, dtype, gate):
    random = np.random.default_rng(0)
    text = ATTENTION.format(t=name)
    shapes = [(1, 2, 6, 16), (1, 2, 9, 16), (1, 2, 6, 16), (1, 2, 9, 16), (1, 2, 9, 32)]
    inputs = [random.standard_normal(shape).astype(dtype) for shape in shapes] + [np.array(0.9, np.float32)]
    executable = runtime.Executable(text, cache=False)
    result, = executable.call("f", *inputs)
    judgement = executable.judge(text, "f", inputs, [result])
    assert judgement, judgement.lines
    # The magnitude is at most 1.9 times the largest value.
    magnitude = 1.9 * np.abs(inputs[4].astype(np.float64)).max()
    wrong = result.astype(np.float64)
    wrong[0, 1, 3] += 4 * gate * magnitude
    assert not executable.judge(text, "f", inputs, [wrong.astype(dtype)])


def test_maps_that_cancel_are_judged_by_what_they_are_made_of():
    text = ATTENTION.format(t="f32")
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal(shape).astype(np.float32) for shape in [(1, 2, 6, 16), (1, 2, 9, 16), (1, 2, 9, 32)])
    inputs = [q, k, q, k, v, np.array(1, np.float32)]
    executable = runtime.Executable(text, cache=False)
    assert executable.judge(text, "f", inputs, [np.full((1, 2, 6, 32), 1e-7, np.float32)])
    assert not executable.judge(text, "f", inputs, [np.full((1, 2, 6, 32), 1e-3, np.float32)])


@pytest.mark.parametrize("seed", range(8))
def test_the_weight_of_an_only_key_is_a_quotient(seed):
    """The graph rounds nothing: 1 - 0.5 times a value. A kernel comes to 1 by powers and reciprocals, off by a few roundings."""
    text = """
func.func @f(%q1: tensor<1x20x16xf32>, %k1: tensor<1x16x1xf32>, %q2: tensor<1x20x16xf32>, %k2: tensor<1x16x1xf32>, %v: tensor<1x1x32xf32>) -> tensor<1x20x32xf32> {
  %zero = arith.constant 0.0 : f32
  %half = arith.constant dense<0.5> : tensor<1x20x1xf32>
  %es = tensor.empty() : tensor<1x20x1xf32>
  %zs = linalg.fill ins(%zero : f32) outs(%es : tensor<1x20x1xf32>) -> tensor<1x20x1xf32>
  %s1 = linalg.batch_matmul ins(%q1, %k1 : tensor<1x20x16xf32>, tensor<1x16x1xf32>) outs(%zs : tensor<1x20x1xf32>) -> tensor<1x20x1xf32>
  %s2 = linalg.batch_matmul ins(%q2, %k2 : tensor<1x20x16xf32>, tensor<1x16x1xf32>) outs(%zs : tensor<1x20x1xf32>) -> tensor<1x20x1xf32>
  %a1 = linalg.softmax dimension(2) ins(%s1 : tensor<1x20x1xf32>) outs(%es : tensor<1x20x1xf32>) -> tensor<1x20x1xf32>
  %a2 = linalg.softmax dimension(2) ins(%s2 : tensor<1x20x1xf32>) outs(%es : tensor<1x20x1xf32>) -> tensor<1x20x1xf32>
  %m = arith.mulf %a2, %half : tensor<1x20x1xf32>
  %d = arith.subf %a1, %m : tensor<1x20x1xf32>
  %ev = tensor.empty() : tensor<1x20x32xf32>
  %zv = linalg.fill ins(%zero : f32) outs(%ev : tensor<1x20x32xf32>) -> tensor<1x20x32xf32>
  %o = linalg.batch_matmul ins(%d, %v : tensor<1x20x1xf32>, tensor<1x1x32xf32>) outs(%zv : tensor<1x20x32xf32>) -> tensor<1x20x32xf32>
  return %o : tensor<1x20x32xf32>
}"""
    random = np.random.default_rng(seed)
    inputs = [random.standard_normal(shape).astype(np.float32) for shape in ((1, 20, 16), (1, 16, 1), (1, 20, 16), (1, 16, 1), (1, 1, 32))]
    executable = runtime.Executable(text, cache=False)
    results = executable.call("f", *inputs)
    judgement = executable.judge(text, "f", inputs, results)
    assert judgement, judgement.lines
    assert not executable.judge(text, "f", inputs, [results[0] * np.float32(1 + 1e-6)])


def test_what_is_exact_must_be_exact():
    text = """func.func @f(%a: tensor<4xi64>, %x: tensor<4xf32>) -> (tensor<4xi64>, tensor<4xf32>) {
      %b = arith.muli %a, %a : tensor<4xi64>
      %y = arith.negf %x : tensor<4xf32>
      return %b, %y : tensor<4xi64>, tensor<4xf32>
    }"""
    a, x = np.array([1, -2, 3, 2 ** 40]), np.array([1, 2, np.inf, np.nan], np.float32)
    executable = runtime.Executable(text, cache=False)
    b, y = executable.call("f", a, x)
    assert executable.judge(text, "f", [a, x], [b, y])
    assert not executable.judge(text, "f", [a, x], [b + 1, y])
    assert not executable.judge(text, "f", [a, x], [b, y * np.float32(1 + 1e-6)])
    assert not executable.judge(text, "f", [a, x], [b, np.where(np.isinf(y), np.float32(3e38), y)])
    assert not executable.judge(text, "f", [a, x], [b, np.where(np.isnan(y), np.float32(0), y)])


def test_arguments_that_are_updated_are_judged():
    text = """func.func @f(%cache: tensor<3x4xf32> {bufferization.writable = true}, %x: tensor<1x4xf32>, %at: index) -> tensor<3x4xf32> {
      %r = tensor.insert_slice %x into %cache[%at, 0] [1, 4] [1, 1] : tensor<1x4xf32> into tensor<3x4xf32>
      return %r : tensor<3x4xf32>
    }"""
    executable = runtime.Executable(text, cache=False)
    cache, x = np.zeros((3, 4), np.float32), np.ones((1, 4), np.float32)
    before = cache.copy()
    result, = executable.call("f", cache, x, 1)
    assert result is cache
    assert executable.judge(text, "f", [before, x, 1], [cache])
    cache[2, 3] = 1e-3
    judgement = executable.judge(text, "f", [before, x, 1], [cache])
    assert not judgement and judgement.lines == ["result 0 and the oracle: 1 of 12 elements differ; at [2, 3] expected 0 to 1.4e-45, but got "
                                                 "0.00100000005"]


def test_a_model_with_weights_and_caches():
    """The trained example, with its loop over layers, rotary angles and caches in place."""
    folder = ROOT / "examples" / "tiny-lm"
    model = diffattn.load(folder, dtype="f32")
    text = str(models.build(model.config)) if hasattr(model, "config") else model.mlir
    ids = np.array([[5, 6, 7], [8, 9, 10]], np.int64)
    lengths = np.array([3, 2], np.int64)
    caches = model.new_caches(2, 8)
    before = [c.copy() for c in caches]
    results = model.executable.call("prefill", ids, lengths, *caches)
    judgement = model.executable.judge(text, "prefill", [ids, lengths, *before], results, weights=[folder])
    assert judgement, judgement.lines
    assert len(judgement.lines) == len(results)
    before = [c.copy() for c in caches]
    token = np.array([4, 3], np.int64)
    results = model.executable.call("decode", token, lengths, *caches)
    assert model.executable.judge(text, "decode", [token, lengths, *before], results, weights=[folder])
    caches[1].flat[7] += 1
    assert not model.executable.judge(text, "decode", [token, lengths, *before], results, weights=[folder])


def test_errors():
    text, entry, inputs = graph("a_plain_fx")
    executable = runtime.Executable(text, cache=False)
    results = executable.call(entry, *inputs)
    with pytest.raises(runtime.InputError, match="argument 0 of 'results of main': expected"):
        executable.judge(text, entry, inputs, [results[0][:1]])
    with pytest.raises(runtime.InputError, match="expected"):
        executable.judge(text, entry, inputs, [results[0].astype(np.float64)])
    with pytest.raises(runtime.UsageError, match="expected 1 argument"):
        executable.judge(text, entry, inputs, [])
    with pytest.raises(runtime.UsageError, match="'nothing'"):
        executable.judge(text, "nothing", inputs, results)
    with pytest.raises(runtime.IRError):
        executable.judge("no module", entry, inputs, results)
    with pytest.raises(runtime.IRError, match="256 levels of brackets"):  # deeper ones crash MLIR's parser
        executable.judge("#a = " + "[" * 100000, entry, inputs, results)
    with pytest.raises(runtime.UsageError, match="expected a function 'main', but the module has none"):
        executable.judge("module {}", entry, inputs, results)
    with pytest.raises(runtime.InputError, match="oracle: .*argument 0 of 'main': expected tensor<2xi64>, but got"):
        executable.judge("func.func @main(%a: tensor<2xi64>) -> tensor<2xi64> { return %a : tensor<2xi64> }".replace(
            "%a: tensor<2xi64>", ", ".join(f"%{x}: tensor<2xi64>" for x in "abcdef"[:len(inputs)])), entry, inputs, results)
