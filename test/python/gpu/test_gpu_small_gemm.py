"""Products of few rows on a GPU, which have kernels of their own, simulated, against NumPy in f64."""
import ml_dtypes
import numpy as np
import pytest

from diffattn import runtime
from diffattn.runtime import Executable

TARGET = "cuda-sim:sm_80"
TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
ROUNDOFF = {"f32": 2.0 ** -24, "f16": 2.0 ** -11, "bf16": 2.0 ** -8}
FEW = 4  # rows that have a kernel

PRODUCT = """
func.func @product(%x: tensor<{m}x{k}x{t}>, %w: tensor<{n}x{k}x{t}>, %c: tensor<{m}x{n}x{to}>) -> tensor<{m}x{n}x{to}> {{
  %r = diffattn.gemm ins(%x, %w : tensor<{m}x{k}x{t}>, tensor<{n}x{k}x{t}>) outs(%c : tensor<{m}x{n}x{to}>)
    {{transpose_b{accumulate}}} -> tensor<{m}x{n}x{to}>
  return %r : tensor<{m}x{n}x{to}>
}}
"""
# Values of K: a part of a warp's turn, one turn and what is left of another, warps that share a row, several turns of them.
CASES = [("?", 33, 20, "f32", "f32", True), ("?", 77, 1000, "bf16", "f32", True), ("?", "?", 2944, "f16", "f32", False),
         ("?", 8, 1024, "bf16", "bf16", False), ("3", 5, 9000, "f16", "f16", True), ("?", 5, 16392, "bf16", "f32", True),
         ("1", 70, 4096, "f32", "f32", False), ("?", 7, 8, "bf16", "f32", False)]


def compiled(m, n, k, t, to, accumulate):
    return Executable(PRODUCT.format(m=m, n=n, k=k, t=t, to=to, accumulate=", accumulate" if accumulate else ""), target=TARGET)


def library_products(call, *arrays):
    """A call's result, None if it has none, and the number of products that the library computed: by the device, and by its simulator."""
    runtime.reset_counters()
    results = call("product", *arrays)
    return results[0] if results else None, runtime.counters().gemm_calls


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_are_right_and_do_not_depend_on_their_number(case):
    m, n, k, t, to, accumulate = case
    executable = compiled(*case)
    rng = np.random.default_rng(k)
    columns = 19 if n == "?" else n
    w = rng.standard_normal((columns, k)).astype(TYPES[t])
    x, c = rng.standard_normal((FEW + 2, k)).astype(TYPES[t]), rng.standard_normal((FEW + 2, columns)).astype(TYPES[to])
    exact = x.astype(np.float64) @ w.astype(np.float64).T + (c.astype(np.float64) if accumulate else 0)
    size = np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64)).T + np.abs(c.astype(np.float64))
    alone = None
    for rows in range(FEW + 2) if m == "?" else [int(m)]:
        got, asked = library_products(executable.call, x[:rows], w, c[:rows])
        assert asked == (0 if 1 <= rows <= FEW else 2 if rows else 1)
        wide = got.astype(np.float64)
        error = np.abs(wide - exact[:rows])
        assert (error <= ROUNDOFF[to] * np.abs(exact[:rows]) + 2.0 ** -20 * size[:rows]).all()
        if rows == 1:
            alone = got.copy()
        elif 1 < rows <= FEW and alone is not None:
            assert got[:1].tobytes() == alone.tobytes()
            # A row's place says nothing either.
            turned, _ = library_products(executable.call, x[:rows][::-1].copy(), w, c[:rows][::-1].copy())
            assert turned[::-1].tobytes() == got.tobytes()


@pytest.mark.parametrize("k", [24, 1000, 2944])
def test_odd_numbers_stay_where_they_are(k):
    """NaN and infinity reach what they are multiplied with alone, also where a thread's part ends beyond the row."""
    executable = compiled("?", 9, k, "bf16", "f32", False)
    x, w, c = np.ones((2, k), TYPES["bf16"]), np.ones((9, k), TYPES["bf16"]), np.zeros((2, 9), np.float32)
    w[4, k - 1], w[6, 0], x[1, k - 1] = np.nan, np.inf, -np.inf
    got, asked = library_products(executable.call, x, w, c)
    want = np.full((2, 9), k, np.float32)
    want[1] = -np.inf
    want[:, 4], want[0, 6], want[1, 6] = np.nan, np.inf, np.nan
    assert asked == 0
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("pitch, first, has_kernel", [(72, 8, True), (72, 1, False), (65, 0, False)])
def test_rows_that_16_bytes_do_not_divide_go_to_the_library(pitch, first, has_kernel):
    text = """
func.func @product(%x: memref<?x{p}xbf16>, %w: memref<24x{p}xbf16>, %c: memref<?x24xf32>) {{
  %c0 = arith.constant 0 : index
  %m = memref.dim %x, %c0 : memref<?x{p}xbf16>
  %a = memref.subview %x[0, {f}] [%m, 64] [1, 1] : memref<?x{p}xbf16> to memref<?x64xbf16, strided<[{p}, 1], offset: {f}>>
  %b = memref.subview %w[0, {f}] [24, 64] [1, 1] : memref<24x{p}xbf16> to memref<24x64xbf16, strided<[{p}, 1], offset: {f}>>
  diffattn.gemm ins(%a, %b : memref<?x64xbf16, strided<[{p}, 1], offset: {f}>>, memref<24x64xbf16, strided<[{p}, 1], offset: {f}>>)
    outs(%c : memref<?x24xf32>) {{transpose_b}}
  return
}}
"""
    executable = Executable(text.format(p=pitch, f=first), target=TARGET)
    rng = np.random.default_rng(3)
    x, w = (rng.integers(-4, 5, (rows, pitch)).astype(TYPES["bf16"]) for rows in (2, 24))
    c = np.full((2, 24), np.nan, np.float32)
    _, asked = library_products(executable.call, x, w, c)
    np.testing.assert_array_equal(c, x[:, first:first + 64].astype(np.float32) @ w[:, first:first + 64].astype(np.float32).T)
    assert asked == (0 if has_kernel else 2)
