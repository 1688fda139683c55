"""GPU code beside attention and products: generated kernels, simulated, against NumPy in f64."""
import math
import re

import ml_dtypes
import numpy as np
import pytest

from diffattn import models, runtime
from diffattn.runtime import Executable

SM_80 = "cuda-sim:sm_80"
BF16 = ml_dtypes.bfloat16

NORM = """
func.func @{name}(%x: tensor<?x{n}x{t}>, %w: tensor<{n}x{t}>) -> tensor<?x{n}x{t}> {{
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %count = arith.constant {n}.0 : f32
  %eps = arith.constant 1.0e-5 : f32
  %rows = tensor.dim %x, %c0 : tensor<?x{n}x{t}>
  %e = tensor.empty(%rows) : tensor<?xf32>
  %init = linalg.fill ins(%zero : f32) outs(%e : tensor<?xf32>) -> tensor<?xf32>
  %sum = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}} ins(%x : tensor<?x{n}x{t}>) outs(%init : tensor<?xf32>) {{
  ^bb0(%a: {t}, %s: f32):
    {widen_a}
    %square = arith.mulf %wa, %wa : f32
    %next = arith.addf %s, %square : f32
    linalg.yield %next : f32
  }} -> tensor<?xf32>
  %out = tensor.empty(%rows) : tensor<?x{n}x{t}>
  %y = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (j)>,
      affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}}
      ins(%x, %sum, %w : tensor<?x{n}x{t}>, tensor<?xf32>, tensor<{n}x{t}>) outs(%out : tensor<?x{n}x{t}>) {{
  ^bb0(%a: {t}, %s: f32, %b: {t}, %o: {t}):
    {widen_a}
    {widen_b}
    %mean = arith.divf %s, %count : f32
    %more = arith.addf %mean, %eps : f32
    %scale = math.rsqrt %more : f32
    %p = arith.mulf %wa, %scale : f32
    %q = arith.mulf %p, %wb : f32
    {narrow}
    linalg.yield %r : {t}
  }} -> tensor<?x{n}x{t}>
  return %y : tensor<?x{n}x{t}>
}}
"""


def norm(name, n, t):
    half = t != "f32"
    widen = (lambda v: f"%w{v} = arith.extf %{v} : {t} to f32") if half else (
        lambda v: f"%zero{v} = arith.constant -0.0 : f32\n    %w{v} = arith.addf %{v}, %zero{v} : f32")
    narrow = f"%r = arith.truncf %q : f32 to {t}" if half else "%one = arith.constant 1.0 : f32\n    %r = arith.mulf %q, %one : f32"
    return NORM.format(name=name, n=n, t=t, widen_a=widen("a"), widen_b=widen("b"), narrow=narrow)


@pytest.fixture(scope="module")
def norms():
    sizes = {"small": (24, "f32"), "odd": (37, "f32"), "half": (256, "bf16"), "wide": (2500, "f16")}
    return sizes, Executable("".join(norm(name, *size) for name, size in sizes.items()), target=SM_80, threads=1)


@pytest.mark.parametrize("name, tolerance", [("small", 1e-6), ("odd", 1e-6), ("half", 2**-8), ("wide", 2**-10)])
def test_a_row_norm_is_one_kernel_and_right_in_any_batch(norms, name, tolerance):
    sizes, executable = norms
    n, t = sizes[name]
    dtype = {"f32": np.float32, "bf16": BF16, "f16": np.float16}[t]
    rng = np.random.default_rng(n)
    x, w = rng.standard_normal((5, n)).astype(dtype), rng.standard_normal(n).astype(dtype)
    (got,) = _list(executable.call(name, x, w))
    wide, weight = x.astype(np.float64), w.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * weight
    assert np.abs(got.astype(np.float64) - expected).max() <= tolerance * np.abs(expected).max()
    # A row alone, and at an address that 16-byte accesses do not allow.
    shifted = np.empty(n + 1, dtype)[1:].reshape(1, n)
    for row in (0, 3):
        shifted[:] = x[row]
        for alone in (x[row:row + 1].copy(), shifted):
            (single,) = _list(executable.call(name, alone, w))
            assert (single[0] == got[row]).all()
    (none,) = _list(executable.call(name, x[:0].copy(), w))
    assert none.shape == (0, n)


def _list(result):
    return result if isinstance(result, (list, tuple)) else [result]


SEVERAL = """
func.func @softmax(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %a = tensor.dim %x, %c0 : tensor<?x?xf32>
  %b = tensor.dim %x, %c1 : tensor<?x?xf32>
  %e = tensor.empty(%a, %b) : tensor<?x?xf32>
  %s = linalg.softmax dimension(1) ins(%x : tensor<?x?xf32>) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
  return %s : tensor<?x?xf32>
}
func.func @transposed(%x: tensor<?x3x?xbf16>) -> tensor<?x?x3xbf16> {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %a = tensor.dim %x, %c0 : tensor<?x3x?xbf16>
  %b = tensor.dim %x, %c2 : tensor<?x3x?xbf16>
  %e = tensor.empty(%b, %a) : tensor<?x?x3xbf16>
  %t = linalg.transpose ins(%x : tensor<?x3x?xbf16>) outs(%e : tensor<?x?x3xbf16>) permutation = [2, 0, 1]
  return %t : tensor<?x?x3xbf16>
}
func.func @mixed(%x: tensor<?x40xf16>, %y: tensor<40xf32>, %k: tensor<?xi64>, %flag: tensor<?x1xi1>) -> tensor<?x20xbf16> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?x40xf16>
  %xs = tensor.extract_slice %x[0, 7] [%n, 20] [1, 1] : tensor<?x40xf16> to tensor<?x20xf16>
  %ys = tensor.extract_slice %y[16] [20] [1] : tensor<40xf32> to tensor<20xf32>
  %e = tensor.empty(%n) : tensor<?x20xbf16>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i)>,
      affine_map<(i, j) -> (i, 0)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%xs, %ys, %k, %flag : tensor<?x20xf16>, tensor<20xf32>, tensor<?xi64>, tensor<?x1xi1>) outs(%e : tensor<?x20xbf16>) {
  ^bb0(%a: f16, %b: f32, %i: i64, %f: i1, %o: bf16):
    %j = linalg.index 1 : index
    %ji = arith.index_cast %j : index to i64
    %ij = arith.addi %i, %ji : i64
    %n1 = arith.sitofp %ij : i64 to f32
    %a1 = arith.extf %a : f16 to f32
    %p = arith.mulf %a1, %b : f32
    %q = arith.addf %p, %n1 : f32
    %m = arith.negf %q : f32
    %s = arith.select %f, %q, %m : f32
    %t = arith.truncf %s : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<?x20xbf16>
  return %r : tensor<?x20xbf16>
}
func.func @gathered(%table: tensor<11x16xf32>, %ids: tensor<?xi64>) -> tensor<?x16xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %ids, %c0 : tensor<?xi64>
  %e = tensor.empty(%n) : tensor<?x16xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} ins(%ids : tensor<?xi64>) outs(%e : tensor<?x16xf32>) {
  ^bb0(%id: i64, %o: f32):
    %row = arith.index_cast %id : i64 to index
    %j = linalg.index 1 : index
    %v = tensor.extract %table[%row, %j] : tensor<11x16xf32>
    linalg.yield %v : f32
  } -> tensor<?x16xf32>
  return %r : tensor<?x16xf32>
}
func.func @columns(%x: tensor<?x?xbf16>, %zero: tensor<?xbf16>) -> tensor<?xbf16> {
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (j, i)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x?xbf16>) outs(%zero : tensor<?xbf16>) {
  ^bb0(%a: bf16, %s: bf16):
    %t = arith.addf %s, %a : bf16
    linalg.yield %t : bf16
  } -> tensor<?xbf16>
  return %r : tensor<?xbf16>
}
func.func @argmax(%x: tensor<?x50xf32>) -> (tensor<?xf32>, tensor<?xi64>) {
  %c0 = arith.constant 0 : index
  %low = arith.constant 0xFF800000 : f32
  %none = arith.constant 0 : i64
  %n = tensor.dim %x, %c0 : tensor<?x50xf32>
  %e = tensor.empty(%n) : tensor<?xf32>
  %f = tensor.empty(%n) : tensor<?xi64>
  %a = linalg.fill ins(%low : f32) outs(%e : tensor<?xf32>) -> tensor<?xf32>
  %b = linalg.fill ins(%none : i64) outs(%f : tensor<?xi64>) -> tensor<?xi64>
  %r:2 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x50xf32>) outs(%a, %b : tensor<?xf32>, tensor<?xi64>) {
  ^bb0(%v: f32, %most: f32, %at: i64):
    %j = linalg.index 1 : index
    %ji = arith.index_cast %j : index to i64
    %more = arith.cmpf ogt, %v, %most : f32
    %m = arith.select %more, %v, %most : f32
    %k = arith.select %more, %ji, %at : i64
    linalg.yield %m, %k : f32, i64
  } -> (tensor<?xf32>, tensor<?xi64>)
  return %r#0, %r#1 : tensor<?xf32>, tensor<?xi64>
}
func.func @extremes(%x: tensor<?xi64>, %y: tensor<?xf64>) -> (tensor<i64>, tensor<f64>, tensor<i1>) {
  %low = arith.constant dense<-9223372036854775808> : tensor<i64>
  %high = arith.constant dense<0x7FF0000000000000> : tensor<f64>
  %true = arith.constant dense<true> : tensor<i1>
  %m = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> ()>], iterator_types = ["reduction"]}
      ins(%x : tensor<?xi64>) outs(%low : tensor<i64>) {
  ^bb0(%a: i64, %s: i64):
    %t = arith.maxsi %s, %a : i64
    linalg.yield %t : i64
  } -> tensor<i64>
  %k = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> ()>], iterator_types = ["reduction"]}
      ins(%y : tensor<?xf64>) outs(%high : tensor<f64>) {
  ^bb0(%a: f64, %s: f64):
    %t = arith.minimumf %s, %a : f64
    linalg.yield %t : f64
  } -> tensor<f64>
  %b = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> ()>], iterator_types = ["reduction"]}
      ins(%x : tensor<?xi64>) outs(%true : tensor<i1>) {
  ^bb0(%a: i64, %s: i1):
    %c5 = arith.constant 5 : i64
    %u = arith.cmpi slt, %a, %c5 : i64
    %t = arith.andi %s, %u : i1
    linalg.yield %t : i1
  } -> tensor<i1>
  return %m, %k, %b : tensor<i64>, tensor<f64>, tensor<i1>
}
func.func @waves(%x: tensor<?xf32>) -> (tensor<?xf32>, tensor<?xf32>, tensor<?xf32>, tensor<?xf32>) {
  %s = math.sin %x : tensor<?xf32>
  %c = math.cos %x : tensor<?xf32>
  %t = math.tanh %x : tensor<?xf32>
  %e = math.erf %x : tensor<?xf32>
  return %s, %c, %t, %e : tensor<?xf32>, tensor<?xf32>, tensor<?xf32>, tensor<?xf32>
}
func.func @inserted(%cache: tensor<2x?x6xf16> {bufferization.writable = true}, %row: tensor<6xf16>, %at: tensor<i64>)
    -> tensor<2x?x6xf16> {
  %p = tensor.extract %at[] : tensor<i64>
  %i = arith.index_cast %p : i64 to index
  %r = tensor.insert_slice %row into %cache[1, %i, 0] [1, 1, 6] [1, 1, 1] : tensor<6xf16> into tensor<2x?x6xf16>
  return %r : tensor<2x?x6xf16>
}
func.func @scaled(%x: tensor<?xf32>, %scale: tensor<3xf32>, %k: index) -> tensor<?xf32> {
  %s = tensor.extract %scale[%k] : tensor<3xf32>
  %e = math.exp %s : f32
  %v = tensor.splat %e[%n] : tensor<?xf32>
  %r = arith.mulf %x, %v : tensor<?xf32>
  return %r : tensor<?xf32>
}
""".replace("%v = tensor.splat %e[%n]", "%c0 = arith.constant 0 : index\n  %n = tensor.dim %x, %c0 : tensor<?xf32>\n  %v = tensor.splat %e[%n]")


@pytest.fixture(scope="module")
def several():
    return Executable(SEVERAL, target=SM_80, threads=1)


def call(executable, name, *args):
    results = _list(executable.call(name, *args))
    return results[0] if len(results) == 1 else results


@pytest.mark.parametrize("shape", [(3, 8), (1, 1), (5, 37), (2, 1500), (0, 4), (4, 0)])
def test_softmax(several, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 10
    got = call(several, "softmax", x)
    wide = np.exp(x.astype(np.float64) - x.max(1, keepdims=True, initial=-np.inf).astype(np.float64))
    assert got.shape == shape and np.abs(got - wide / wide.sum(1, keepdims=True)).max(initial=0) < 1e-6


def test_elements(several):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((5, 3, 34)).astype(BF16)
    assert (call(several, "transposed", x) == x.transpose(2, 0, 1)).all()
    for n in (1, 13, 300):
        x, y = rng.standard_normal((n, 40)).astype(np.float16), rng.standard_normal(40).astype(np.float32)
        k, flag = rng.integers(-9, 9, n), rng.integers(0, 2, (n, 1)).astype(bool)
        value = x[:, 7:27].astype(np.float64) * y[16:36] + (k[:, None] + np.arange(20))
        expected = np.where(flag, value, -value)
        got = call(several, "mixed", x, y, k, flag).astype(np.float64)
        assert np.abs(got - expected).max() <= 2**-8 * np.abs(expected).max()
    table, ids = rng.standard_normal((11, 16)).astype(np.float32), np.array([10, 0, 3, 3])
    assert (call(several, "gathered", table, ids) == table[ids]).all()


def test_reductions(several):
    rng = np.random.default_rng(2)
    # Sums of half precision are rounded once.
    x = rng.uniform(1, 2, (600, 21)).astype(BF16)
    got = call(several, "columns", x, np.zeros(21, BF16))
    assert (np.abs(got.astype(np.float64) - x.astype(np.float64).sum(0)) <= 2**-8 * x.astype(np.float64).sum(0)).all()
    x = rng.standard_normal((6, 50)).astype(np.float32)
    most, at = call(several, "argmax", x)
    assert (most == x.max(1)).all() and (at == x.argmax(1)).all()
    for n in (0, 1, 700):
        x, y = rng.integers(-10**12, 5, n), rng.standard_normal(n)
        m, k, b = call(several, "extremes", x, y)
        assert m == x.max(initial=-2**63) and k == y.min(initial=np.inf) and b
        if n:
            assert not call(several, "extremes", np.where(np.arange(n) == n - 1, 5, x), y)[2]


def test_functions_of_f32_need_no_library(several):
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(-8, 8, 200), rng.uniform(-1e6, 1e6, 200), [0, -0.0, 3.0e38, np.inf, -np.inf, np.nan]])
    x = x.astype(np.float32)
    with np.errstate(invalid="ignore"):
        exact = x.astype(np.float64)
        expected = np.sin(exact), np.cos(exact), np.tanh(exact), np.array([math.erf(v) for v in exact])
    for got, want in zip(call(several, "waves", x), expected):
        assert np.array_equal(np.isnan(got), np.isnan(want))
        with np.errstate(invalid="ignore"):
            assert np.nanmax(np.abs(got - want)) < 3e-7


def test_what_is_in_memory_stays_there(several):
    cache = np.zeros((2, 9, 6), np.float16)
    row = np.arange(6, dtype=np.float16)
    got = call(several, "inserted", cache, row, np.array(4))
    assert (got[1, 4] == row).all() and np.abs(got).sum() == row.sum()
    x, scale = np.arange(5, dtype=np.float32), np.array([0.0, 1.0, -2.0], np.float32)
    assert np.allclose(call(several, "scaled", x, scale, 2), x * np.exp(-2.0), rtol=1e-6)


def host_functions(text):
    """The functions of the host, without the module of kernels."""
    start = text.index("gpu.module @")
    depth, at = 0, text.index("{", start)
    for at in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            break
    return text[:start] + text[at + 1:]


SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 8, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "embed_dim": 24, "num_heads": 4, "rope_theta": 10000.0,
         "sliding_window": 5, "mamba_d_state": 4}
FAMILIES = [(kind, {}) for kind in models.BUILDERS]
FAMILIES.append(("diffllama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 16}))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind, more", FAMILIES, ids=[kind + "-dynamic" * bool(more) for kind, more in FAMILIES])
def test_the_host_computes_nothing_of_a_model(kind, more):
    text = str(models.build(SMALL | more | {"model_type": kind}, "bf16"))
    host = host_functions(runtime.emit(text, "gpu", target=SM_80).decode())
    assert "gpu.launch_func" in host and "func.func" in host
    # Host code may know sizes, and numbers that depend on them alone.
    assert not re.search(r"\b(linalg|vector|tensor)\.|memref\.(load|store|copy|get_global)|diffattn\.attention", host)


def test_assertions_in_bodies():
    executable = Executable("""
func.func @reciprocals(%x: tensor<?x40xf32>) -> tensor<?x40xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %hundred = arith.constant 100.0 : f32
  %n = tensor.dim %x, %c0 : tensor<?x40xf32>
  %e = tensor.empty(%n) : tensor<?x40xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} ins(%x : tensor<?x40xf32>) outs(%e : tensor<?x40xf32>) {
    ^bb0(%a: f32, %o: f32):
      %some = arith.cmpf one, %a, %zero : f32
      cf.assert %some, "expected no zeros"
      %small = arith.cmpf olt, %a, %hundred : f32
      cf.assert %small, "expected small numbers"
      %b = arith.divf %one, %a : f32
      linalg.yield %b : f32
  } -> tensor<?x40xf32>
  return %r : tensor<?x40xf32>
}""", target=SM_80)
    x = np.arange(1, 81, dtype=np.float32).reshape(2, 40)
    for _ in range(2):
        np.testing.assert_allclose(executable.call("reciprocals", x)[0], 1 / x, rtol=1e-6)
        for value, message in ((0, "expected no zeros"), (200, "expected small numbers")):
            wrong = x.copy()
            wrong[1, 39] = value
            with pytest.raises(runtime.RunError, match=message):
                executable.call("reciprocals", wrong)
