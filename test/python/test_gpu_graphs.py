"""Tensor programs as importers write them on a simulated GPU: exact, or as NumPy says in f64."""
import numpy as np
import pytest

from diffattn.runtime import Executable

SM_80 = "cuda-sim:sm_80"


def call(module, *arguments, target=SM_80):
    return Executable(module, target=target, cache=False, threads=1).call("f", *arguments)


def test_a_body_reads_what_the_op_before_it_computed():
    # One kernel: the sum that the second op's body reads is another phase's, and no barrier is between.
    x = np.random.default_rng(0).standard_normal((4, 77)).astype(np.float32)
    (got,) = call("""
func.func @f(%x: tensor<4x77xf32>) -> tensor<f32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<f32>
  %init = linalg.fill ins(%zero : f32) outs(%e : tensor<f32>) -> tensor<f32>
  %sum = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> ()>],
      iterator_types = ["reduction", "reduction"]} ins(%x : tensor<4x77xf32>) outs(%init : tensor<f32>) {
    ^bb0(%a: f32, %s: f32):
      %t = arith.addf %s, %a : f32
      linalg.yield %t : f32
  } -> tensor<f32>
  %squares = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> ()>],
      iterator_types = ["reduction", "reduction"]} ins(%x : tensor<4x77xf32>) outs(%init : tensor<f32>) {
    ^bb0(%a: f32, %s: f32):
      %m = tensor.extract %sum[] : tensor<f32>
      %d = arith.subf %a, %m : f32
      %q = arith.mulf %d, %d : f32
      %t = arith.addf %s, %q : f32
      linalg.yield %t : f32
  } -> tensor<f32>
  return %squares : tensor<f32>
}""", x)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(got, ((wide - wide.sum()) ** 2).sum(), rtol=1e-5)


@pytest.mark.parametrize("op, of", [("maxsi", np.max), ("minsi", np.min), ("addi", np.sum), ("andi", np.bitwise_and.reduce),
                                    ("maxui", lambda x, axis: x.view(np.uint64).max(axis).view(np.int64)),
                                    ("minui", lambda x, axis: x.view(np.uint64).min(axis).view(np.int64))])
def test_reductions_of_indices(op, of):
    x = np.random.default_rng(1).integers(-(2**40), 2**40, (3, 50))
    start = {"maxsi": -(2**63), "minsi": 2**63 - 1, "minui": -1, "andi": -1}.get(op, 0)
    (got,) = call(f"""
func.func @f(%x: tensor<3x50xindex>) -> tensor<3xindex> {{
  %start = arith.constant {start} : index
  %e = tensor.empty() : tensor<3xindex>
  %init = linalg.fill ins(%start : index) outs(%e : tensor<3xindex>) -> tensor<3xindex>
  %r = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}} ins(%x : tensor<3x50xindex>) outs(%init : tensor<3xindex>) {{
    ^bb0(%a: index, %s: index):
      %t = arith.{op} %s, %a : index
      linalg.yield %t : index
  }} -> tensor<3xindex>
  return %r : tensor<3xindex>
}}""", x)
    assert (got == of(x, axis=1)).all()


def test_slices_of_any_size_begin_where_data_says():
    # Axes of one element and of a size that only the call knows are joined, and the place comes from memory of the device.
    module = """
func.func @f(%x: tensor<1x5x?xf32>, %at: tensor<i32>, %n: index) -> (tensor<1x5xf32>, tensor<1x?xf32>) {
  %p = tensor.extract %at[] : tensor<i32>
  %i = arith.index_cast %p : i32 to index
  %column = tensor.extract_slice %x[0, 0, %i] [1, 5, 1] [1, 1, 1] : tensor<1x5x?xf32> to tensor<1x5xf32>
  %row = tensor.extract_slice %x[0, %i, 0] [1, 1, %n] [1, 1, 2] : tensor<1x5x?xf32> to tensor<1x?xf32>
  return %column, %row : tensor<1x5xf32>, tensor<1x?xf32>
}"""
    x = np.arange(1 * 5 * 12, dtype=np.float32).reshape(1, 5, 12)
    for at in (0, 3):
        column, row = call(module, x, np.array(at, np.int32), 6)
        assert (column == x[:, :, at]).all() and (row == x[:, at, ::2]).all()


def test_rows_at_places_of_data_may_be_any_steps_apart():
    # Steps that are no multiple of 16 bytes, of an axis along which the slice begins at 0: read by elements.
    module = """
!x = memref<?x?x8xf32, strided<[?, ?, 1]>>
func.func @f(%x: !x, %at: memref<i64>, %y: memref<?x8xf32>) {
  %c0 = arith.constant 0 : index
  %n = memref.dim %x, %c0 : !x
  %p = memref.load %at[] : memref<i64>
  %i = arith.index_cast %p : i64 to index
  %part = memref.subview %x[0, %i, 0] [%n, 1, 8] [1, 1, 1] : !x to memref<?x8xf32, strided<[?, 1], offset: ?>>
  memref.copy %part, %y : memref<?x8xf32, strided<[?, 1], offset: ?>> to memref<?x8xf32>
  return
}"""
    flat = np.arange(3 * 33, dtype=np.float32)
    for step in (32, 33):
        x = np.lib.stride_tricks.as_strided(flat, (3, 4, 8), (4 * step, 32, 4))
        y = np.zeros((3, 8), np.float32)
        call(module, x, np.array(2), y)
        assert (y == x[:, 2]).all()
