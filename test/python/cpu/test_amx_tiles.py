"""Products of AMX tiles on machines without AMX: `diffattn-emulate-amx`, bit for bit.

It is judged by the rule that was measured on the hardware, written down here a second time with libm's multiply-add.
"""
import ctypes
import ctypes.util
import subprocess

import ml_dtypes
import numpy as np
import pytest

from kernel_library import descriptor
from paths import LLVM

LOWER = ("diffattn-emulate-amx,convert-scf-to-cf,convert-vector-to-llvm,finalize-memref-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,convert-math-to-llvm,"
         "convert-arith-to-llvm,convert-index-to-llvm,reconcile-unrealized-casts")
TINY = np.float32(2.0**-126)
fmaf = ctypes.CDLL(ctypes.util.find_library("m")).fmaf
fmaf.restype, fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3


def flush(x):
    return np.where(np.abs(x) < TINY, np.copysign(np.float32(0), x), x).astype(np.float32)


def product(a, pairs, c):
    """c + a * b, where row p of `pairs` holds rows 2p and 2p + 1 of b side by side for each column."""
    a, pairs = flush(a.astype(np.float32)), flush(pairs.astype(np.float32))
    result = np.empty_like(c)
    for row in range(c.shape[0]):
        for column in range(c.shape[1]):
            chains = []
            for part in (0, 1):
                chain = np.float32(0)
                for k in range(a.shape[1] // 2):
                    chain = flush(np.float32(fmaf(a[row, 2 * k + part], pairs[k, 2 * column + part], chain)))
                chains.append(chain)
            result[row, column] = flush(flush(c[row, column]) + flush(chains[0] + chains[1]))
    return result


#: Tiles that loops hand on: two sums change places in each round, a product is added to the one that came by the loop while the one
#: of the round before, made by the same op, is still to be stored, and one is handed on as it came; then the same by scf.while, where a
#: branch decides what is handed on.
CARRIED = """func.func @carried(%a: memref<16x32xbf16>, %b: memref<16x32xbf16>, %c: memref<64x16xf32>) attributes {llvm.emit_c_interface} {
  %0 = arith.constant 0 : index
  %1 = arith.constant 1 : index
  %two = arith.constant 2 : index
  %5 = arith.constant 5 : index
  %16 = arith.constant 16 : index
  %32 = arith.constant 32 : index
  %48 = arith.constant 48 : index
  %ta = amx.tile_load %a[%0, %0] : memref<16x32xbf16> into !amx.tile<16x32xbf16>
  %tb = amx.tile_load %b[%0, %0] : memref<16x32xbf16> into !amx.tile<16x32xbf16>
  %x0 = amx.tile_load %c[%0, %0] : memref<64x16xf32> into !amx.tile<16x16xf32>
  %y0 = amx.tile_zero : !amx.tile<16x16xf32>
  %r:3 = scf.for %i = %0 to %5 step %1 iter_args(%x = %x0, %y = %y0, %z = %x0) -> (!amx.tile<16x16xf32>, !amx.tile<16x16xf32>, !amx.tile<16x16xf32>) {
    %next = amx.tile_mulf %ta, %tb, %y : !amx.tile<16x32xbf16>, !amx.tile<16x32xbf16>, !amx.tile<16x16xf32>
    amx.tile_store %c[%32, %0], %x : memref<64x16xf32>, !amx.tile<16x16xf32>
    scf.yield %next, %x, %z : !amx.tile<16x16xf32>, !amx.tile<16x16xf32>, !amx.tile<16x16xf32>
  }
  %w:3 = scf.while (%i = %0, %s = %r#1, %t = %r#0) : (index, !amx.tile<16x16xf32>, !amx.tile<16x16xf32>)
      -> (index, !amx.tile<16x16xf32>, !amx.tile<16x16xf32>) {
    %more = arith.cmpi slt, %i, %5 : index
    scf.condition(%more) %i, %s, %t : index, !amx.tile<16x16xf32>, !amx.tile<16x16xf32>
  } do {
  ^bb0(%i: index, %s: !amx.tile<16x16xf32>, %t: !amx.tile<16x16xf32>):
    %odd = arith.remui %i, %two : index
    %is_odd = arith.cmpi eq, %odd, %1 : index
    %more = amx.tile_mulf %ta, %tb, %s : !amx.tile<16x32xbf16>, !amx.tile<16x32xbf16>, !amx.tile<16x16xf32>
    %sum = scf.if %is_odd -> (!amx.tile<16x16xf32>) {
      scf.yield %more : !amx.tile<16x16xf32>
    } else {
      scf.yield %t : !amx.tile<16x16xf32>
    }
    %next = arith.addi %i, %1 : index
    scf.yield %next, %sum, %s : index, !amx.tile<16x16xf32>, !amx.tile<16x16xf32>
  }
  amx.tile_store %c[%0, %0], %r#0 : memref<64x16xf32>, !amx.tile<16x16xf32>
  amx.tile_store %c[%16, %0], %w#2 : memref<64x16xf32>, !amx.tile<16x16xf32>
  amx.tile_store %c[%48, %0], %r#2 : memref<64x16xf32>, !amx.tile<16x16xf32>
  amx.tile_store %a[%0, %0], %tb : memref<16x32xbf16>, !amx.tile<16x32xbf16>
  return
}
"""


@pytest.fixture(scope="module")
def multiply(build_dir, tmp_path_factory):
    """c += a * b for tiles of a few sizes, by name."""
    sizes = {"full": (16, 32, 16), "small": (3, 8, 5)}
    source = ""
    for name, (m, k, n) in sizes.items():
        a, b, c = f"{m}x{k}xbf16", f"{k // 2}x{2 * n}xbf16", f"{m}x{n}xf32"
        source += f"""func.func @{name}(%a: memref<{a}>, %b: memref<{b}>, %c: memref<{c}>) attributes {{llvm.emit_c_interface}} {{
  %0 = arith.constant 0 : index
  %ta = amx.tile_load %a[%0, %0] : memref<{a}> into !amx.tile<{a}>
  %tb = amx.tile_load %b[%0, %0] : memref<{b}> into !amx.tile<{b}>
  %tc = amx.tile_load %c[%0, %0] : memref<{c}> into !amx.tile<{c}>
  %r = amx.tile_mulf %ta, %tb, %tc : !amx.tile<{a}>, !amx.tile<{b}>, !amx.tile<{c}>
  amx.tile_store %c[%0, %0], %r : memref<{c}>, !amx.tile<{c}>
  return
}}
"""
    source += CARRIED
    mlir = subprocess.run([str(build_dir / "bin/diffattn-opt"), "-", f"--pass-pipeline=builtin.module({LOWER})"], input=source, capture_output=True,
                          text=True)
    assert mlir.returncode == 0, mlir.stderr
    ir = subprocess.run([str(LLVM / "mlir-translate"), "--mlir-to-llvmir"], input=mlir.stdout, capture_output=True, text=True, check=True).stdout
    shared = tmp_path_factory.mktemp("amx") / "tiles.so"
    subprocess.run([str(LLVM / "clang"), "-x", "ir", "-", "-O1", "-Wno-override-module", "-fPIC", "-shared", "-o", str(shared), "-lm"], input=ir,
                   text=True, check=True)
    library = ctypes.CDLL(str(shared))

    def run(name, a, pairs, c):
        result = c.copy()
        getattr(library, f"_mlir_ciface_{name}")(*[ctypes.byref(descriptor(array)) for array in (a, pairs, result)])
        return result

    return sizes, run


@pytest.mark.parametrize("name", ["full", "small"])
def test_products_are_the_hardwares(multiply, name):
    sizes, run = multiply
    m, k, n = sizes[name]
    rng = np.random.default_rng(5)
    for scale_a, scale_b, scale_c in [(1, 1, 4), (1e-18, 1e-19, 1e-36), (1e18, 1e18, 4), (1e-38, 1, 1e-38), (1e-20, 1e-18, 1e-38)]:
        draw = lambda shape, scale: (rng.uniform(-scale, scale, shape) * np.exp2(rng.integers(-4, 5, shape))).astype(np.float32)
        a, pairs = draw((m, k), scale_a).astype(ml_dtypes.bfloat16), draw((k // 2, 2 * n), scale_b).astype(ml_dtypes.bfloat16)
        c = draw((m, n), scale_c)
        want, got = product(a, pairs, c), run(name, a, pairs, c)
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_a_loop_hands_tiles_on(multiply):
    _, run = multiply
    rng = np.random.default_rng(6)
    a, pairs = (rng.standard_normal((16, 32)).astype(ml_dtypes.bfloat16) for _ in range(2))
    c = rng.standard_normal((64, 16)).astype(np.float32)
    x, y = c[:16], np.zeros((16, 16), np.float32)
    for _ in range(5):
        stored, (x, y) = x, (product(a, pairs, y), x)
    first, second = y, x
    for number in range(5):
        first, second = product(a, pairs, first) if number % 2 else second, first
    overwritten = a.copy()
    got = run("carried", overwritten, pairs, c)
    for part, want in zip(np.split(got, 4), (x, second, stored, c[:16])):
        np.testing.assert_array_equal(part, want)
    np.testing.assert_array_equal(overwritten, pairs)


def test_what_is_not_finite(multiply):
    _, run = multiply
    a, pairs, c = np.ones((16, 32), ml_dtypes.bfloat16), np.ones((16, 32), ml_dtypes.bfloat16), np.zeros((16, 16), np.float32)
    a[1, 3], a[2, 4], a[2, 5], pairs[7, 2] = np.inf, np.inf, -np.inf, np.nan
    got = run("full", a, pairs, c)
    # Column 1 is all NaN; row 2 too, where the sums of its chains meet.
    assert np.isnan(got[:, 1]).all() and np.isnan(got[2]).all()
    assert (np.delete(got[1], 1) == np.inf).all() and (np.delete(got[0], 1) == 32).all()
