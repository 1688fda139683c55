"""Tensor programs as importers write them on a simulated GPU: exact, or as NumPy says in f64."""
import ml_dtypes
import numpy as np
import pytest

from diffattn import runtime
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


def test_a_choice_of_buffers_may_be_either():
    # Two arrays are computed, one of them is taken by a condition and read across: not in the kernel that wrote it.
    x, y = np.random.default_rng(4).standard_normal((40, 40)).astype(np.float32), np.arange(40, dtype=np.float32)
    executable = Executable("""
#ij = affine_map<(i, j) -> (i, j)>
#ji = affine_map<(i, j) -> (j, i)>
#i = affine_map<(i, j) -> (i)>
!t = tensor<40x40xf32>
func.func @f(%p: i1, %x: !t, %y: tensor<40xf32>) -> (!t, tensor<40xf32>, !t) {
  %one = arith.constant 1.0 : f32
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : !t
  %a = linalg.generic {indexing_maps = [#ij, #ij], iterator_types = ["parallel", "parallel"]} ins(%x : !t) outs(%e : !t) {
    ^bb0(%u: f32, %o: f32):
      %v = arith.addf %u, %one : f32
      linalg.yield %v : f32
  } -> !t
  %b = linalg.generic {indexing_maps = [#ij, #ij], iterator_types = ["parallel", "parallel"]} ins(%x : !t) outs(%e : !t) {
    ^bb0(%u: f32, %o: f32):
      %v = arith.mulf %u, %u : f32
      linalg.yield %v : f32
  } -> !t
  %either = scf.if %p -> !t {
    scf.yield %a : !t
  } else {
    scf.yield %b : !t
  }
  %across = linalg.generic {indexing_maps = [#ji, #i, #ij], iterator_types = ["parallel", "parallel"]}
      ins(%either, %y : !t, tensor<40xf32>) outs(%e : !t) {
    ^bb0(%u: f32, %w: f32, %o: f32):
      %v = arith.addf %u, %w : f32
      linalg.yield %v : f32
  } -> !t
  %scaled = linalg.generic {indexing_maps = [#i, #ij], iterator_types = ["parallel", "parallel"]}
      ins(%y : tensor<40xf32>) outs(%a : !t) {
    ^bb0(%w: f32, %o: f32):
      %v = arith.mulf %o, %w : f32
      linalg.yield %v : f32
  } -> !t
  %er = tensor.empty() : tensor<40xf32>
  %init = linalg.fill ins(%zero : f32) outs(%er : tensor<40xf32>) -> tensor<40xf32>
  %sums = linalg.generic {indexing_maps = [#ij, #i], iterator_types = ["parallel", "reduction"]}
      ins(%scaled : !t) outs(%init : tensor<40xf32>) {
    ^bb0(%u: f32, %o: f32):
      %v = arith.addf %u, %o : f32
      linalg.yield %v : f32
  } -> tensor<40xf32>
  return %scaled, %sums, %across : !t, tensor<40xf32>, !t
}""", target=SM_80, cache=False)
    for first in (True, False):
        scaled, sums, across = executable.call("f", first, x, y)
        want = (x + 1) * y[:, None]
        assert (scaled == want).all() and (across == (x + 1 if first else x * x).T + y[:, None]).all()
        np.testing.assert_allclose(sums, want.astype(np.float64).sum(1), rtol=1e-5, atol=1e-3)


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


@pytest.mark.parametrize("name, dtype", [("f32", np.float32), ("f64", np.float64), ("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_remainders_and_rounding_are_exact(name, dtype):
    limits = ml_dtypes.finfo(dtype)
    special = np.array([0, -0.0, 1, -0.5, 2.5, -2.5, 3, 1e4, 1.49999, np.inf, -np.inf, np.nan, float(limits.max), float(limits.smallest_subnormal),
                        3 * float(limits.smallest_subnormal), float(limits.tiny)]).astype(dtype)
    rng = np.random.default_rng(2)
    drawn = (rng.standard_normal((2, 200)) * 10.0 ** rng.uniform(-4, 4.4, (2, 200))).astype(dtype)
    pairs = np.stack([one.ravel() for one in np.meshgrid(special, special)])
    x, y = np.concatenate([pairs, drawn], axis=1)
    rest, rounded = call(f"""
func.func @f(%x: tensor<?x{name}>, %y: tensor<?x{name}>) -> (tensor<?x{name}>, tensor<?x{name}>) {{
  %r = arith.remf %x, %y : tensor<?x{name}>
  %q = math.round %x : tensor<?x{name}>
  return %r, %q : tensor<?x{name}>, tensor<?x{name}>
}}""", x, y)
    wide, by = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(invalid="ignore"):
        whole = np.trunc(wide)
        away = np.copysign(whole + (np.abs(wide - whole) >= 0.5) * np.sign(wide), wide)
        np.testing.assert_array_equal(rest.astype(np.float64), np.fmod(wide, by))
    assert (np.signbit(rest) == np.signbit(x))[~np.isnan(rest)].all()
    np.testing.assert_array_equal(rounded.astype(np.float64), away.astype(dtype).astype(np.float64))


def test_64_bits_are_rounded_once_to_16():
    x = np.array([1 + 2.0**-11 + 2.0**-40, 65519.99, 65520.0, 2.0**-25, 2.0**-25 * 1.0001, -1e300, np.inf, 0.1])
    (got,) = call("""
func.func @f(%x: tensor<?xf64>) -> tensor<?xf16> {
  %r = arith.truncf %x : tensor<?xf64> to tensor<?xf16>
  return %r : tensor<?xf16>
}""", x)
    with np.errstate(over="ignore"):
        assert (got == x.astype(np.float16)).all()


@pytest.mark.parametrize("op", ["maxsi", "minui", "xori", "muli"])
def test_reductions_of_bytes_across_rows(op):
    # LLVM makes vectors of the elements that a thread combines.
    x = np.random.default_rng(3).integers(-128, 128, (4, 33, 3)).astype(np.int8)
    (got,) = call(f"""
func.func @f(%x: tensor<4x33x3xi8>) -> tensor<33x3xi8> {{
  %init = arith.constant dense<7> : tensor<33x3xi8>
  %r = linalg.generic {{indexing_maps = [affine_map<(i, j, k) -> (k, i, j)>, affine_map<(i, j, k) -> (i, j)>],
      iterator_types = ["parallel", "parallel", "reduction"]}} ins(%x : tensor<4x33x3xi8>) outs(%init : tensor<33x3xi8>) {{
    ^bb0(%a: i8, %s: i8):
      %t = arith.{op} %s, %a : i8
      linalg.yield %t : i8
  }} -> tensor<33x3xi8>
  return %r : tensor<33x3xi8>
}}""", x)
    of = {"maxsi": np.maximum, "minui": lambda a, b: np.minimum(a.view(np.uint8), b.view(np.uint8)).view(np.int8),
          "xori": np.bitwise_xor, "muli": np.multiply}[op]
    want = np.full((33, 3), 7, np.int8)
    for one in x:
        want = of(want, one)
    assert (got == want).all()


def test_assertions_in_branches_of_bodies():
    module = """
func.func @f(%table: tensor<6xf32>, %ids: tensor<?xi64>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %none = arith.constant -1 : i64
  %zero = arith.constant 0.0 : f32
  %n = tensor.dim %ids, %c0 : tensor<?xi64>
  %e = tensor.empty(%n) : tensor<?xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%ids : tensor<?xi64>) outs(%e : tensor<?xf32>) {
    ^bb0(%id: i64, %o: f32):
      %some = arith.cmpi ne, %id, %none : i64
      %v = scf.if %some -> f32 {
        %i = arith.index_cast %id : i64 to index
        %x = tensor.extract %table[%i] : tensor<6xf32>
        scf.yield %x : f32
      } else {
        scf.yield %zero : f32
      }
      linalg.yield %v : f32
  } -> tensor<?xf32>
  return %r : tensor<?xf32>
}"""
    executable = Executable(module, target=SM_80, cache=False)
    table = np.arange(1, 7, dtype=np.float32)
    ids = np.array([5, -1, 0, -1, 2])
    assert executable.call("f", table, ids)[0].tolist() == [6, 0, 1, 0, 3]
    for wrong in (6, -2):
        ids[3] = wrong
        with pytest.raises(runtime.RunError, match="expected an index from 0 and below 6 on axis 0"):
            executable.call("f", table, ids)


def test_concatenation_by_branches():
    # As StableHLO's passes write it; that no place is outside is proved, so nothing is asserted.
    module = """
func.func @f(%x: tensor<4x7xf32>, %y: tensor<2x7xf32>) -> tensor<6x7xf32> {
  %c4 = arith.constant 4 : index
  %e = tensor.empty() : tensor<6x7xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      outs(%e : tensor<6x7xf32>) {
    ^bb0(%o: f32):
      %i = linalg.index 0 : index
      %j = linalg.index 1 : index
      %first = arith.cmpi ult, %i, %c4 : index
      %v = scf.if %first -> f32 {
        %a = tensor.extract %x[%i, %j] : tensor<4x7xf32>
        scf.yield %a : f32
      } else {
        %k = arith.subi %i, %c4 : index
        %a = tensor.extract %y[%k, %j] : tensor<2x7xf32>
        scf.yield %a : f32
      }
      linalg.yield %v : f32
  } -> tensor<6x7xf32>
  return %r : tensor<6x7xf32>
}"""
    x, y = np.arange(28, dtype=np.float32).reshape(4, 7), -np.arange(14, dtype=np.float32).reshape(2, 7)
    assert (call(module, x, y)[0] == np.concatenate([x, y])).all()
    assert b"cf.assert" not in runtime.emit(module, "bufferized")


def test_loops_whose_counters_are_tensors():
    # As JAX's scan is written: the host counts, kernels compute what is carried. The last number comes from data.
    module = """
#none = affine_map<() -> ()>
#i = affine_map<(i) -> (i)>
func.func @f(%x: tensor<5x40xf32>, %seed: tensor<i64>, %n: i32) -> (tensor<40xf32>, tensor<i64>, tensor<i32>) {
  %zero = arith.constant dense<0> : tensor<i32>
  %one = arith.constant 1 : i32
  %fzero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<40xf32>
  %start = linalg.fill ins(%fzero : f32) outs(%e : tensor<40xf32>) -> tensor<40xf32>
  %r:3 = scf.while (%i = %zero, %sum = %start, %s = %seed) : (tensor<i32>, tensor<40xf32>, tensor<i64>)
      -> (tensor<i32>, tensor<40xf32>, tensor<i64>) {
    %ec = tensor.empty() : tensor<i1>
    %c = linalg.generic {indexing_maps = [#none, #none], iterator_types = []} ins(%i : tensor<i32>) outs(%ec : tensor<i1>) {
      ^bb0(%a: i32, %o: i1):
        %less = arith.cmpi slt, %a, %n : i32
        linalg.yield %less : i1
    } -> tensor<i1>
    %more = tensor.extract %c[] : tensor<i1>
    scf.condition(%more) %i, %sum, %s : tensor<i32>, tensor<40xf32>, tensor<i64>
  } do {
  ^bb0(%i: tensor<i32>, %sum: tensor<40xf32>, %s: tensor<i64>):
    %p = tensor.extract %i[] : tensor<i32>
    %at = arith.index_cast %p : i32 to index
    %row = tensor.extract_slice %x[%at, 0] [1, 40] [1, 1] : tensor<5x40xf32> to tensor<40xf32>
    %new = linalg.generic {indexing_maps = [#i, #i, #i], iterator_types = ["parallel"]}
        ins(%sum, %row : tensor<40xf32>, tensor<40xf32>) outs(%e : tensor<40xf32>) {
      ^bb0(%a: f32, %b: f32, %o: f32):
        %t = arith.addf %a, %b : f32
        linalg.yield %t : f32
    } -> tensor<40xf32>
    %ei = tensor.empty() : tensor<i32>
    %next = linalg.generic {indexing_maps = [#none, #none], iterator_types = []} ins(%i : tensor<i32>) outs(%ei : tensor<i32>) {
      ^bb0(%a: i32, %o: i32):
        %b = arith.addi %a, %one : i32
        linalg.yield %b : i32
    } -> tensor<i32>
    %es = tensor.empty() : tensor<i64>
    %mixed = linalg.generic {indexing_maps = [#none, #none, #none], iterator_types = []} ins(%i, %s : tensor<i32>, tensor<i64>)
        outs(%es : tensor<i64>) {
      ^bb0(%a: i32, %b: i64, %o: i64):
        %w = arith.extsi %a : i32 to i64
        %t = arith.muli %b, %b : i64
        %u = arith.addi %t, %w : i64
        linalg.yield %u : i64
    } -> tensor<i64>
    scf.yield %next, %new, %mixed : tensor<i32>, tensor<40xf32>, tensor<i64>
  }
  return %r#1, %r#2, %r#0 : tensor<40xf32>, tensor<i64>, tensor<i32>
}"""
    executable = Executable(module, target=SM_80, cache=False)
    x = np.arange(200, dtype=np.float32).reshape(5, 40)
    for n in (0, 1, 5):
        total, mixed, count = executable.call("f", x, np.array(3), n)
        want = 3
        for i in range(n):
            want = want * want + i
        assert (total == x[:n].sum(0)).all() and mixed == want and count == n
    with pytest.raises(runtime.RunError, match="expected a slice that begins from 0 to 4 on axis 0, but got 5"):
        executable.call("f", x, np.array(3), 6)


@pytest.mark.parametrize("op, of", [("powf", np.power), ("atan2", np.arctan2)])
def test_powers_and_angles_have_the_special_values_of_c(op, of):
    some = np.array([0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 1e-40, -1e-40, 1e30, -1e30, 3.4e38, np.inf, -np.inf, np.nan, 2.5, 1e15], np.float32)
    x, y = (one.ravel() for one in np.meshgrid(some, some))
    (got,) = call(f"""
func.func @f(%x: tensor<?xf32>, %y: tensor<?xf32>) -> tensor<?xf32> {{
  %r = math.{op} %x, %y : tensor<?xf32>
  return %r : tensor<?xf32>
}}""", x, y)
    with np.errstate(all="ignore"):
        want = of(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-37)
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()


@pytest.mark.parametrize("op, of", [("sinh", np.sinh), ("cosh", np.cosh), ("asinh", np.arcsinh), ("acosh", np.arccosh), ("atanh", np.arctanh),
                                    ("log10", np.log10)])
def test_hyperbolic_functions_near_and_far(op, of):
    x = np.array([0, -0.0, 1, -1, 2, -2, 0.5, 3, 1e-40, -1e-20, 1e-6, -1e-3, 1e5, -1e5, 88.5, 89, -89, 0.99999, 1.00001, 1e20, -1e30, np.inf, -np.inf, np.nan],
                 np.float32)
    (got,) = call(f"""
func.func @f(%x: tensor<?xf32>) -> tensor<?xf32> {{
  %r = math.{op} %x : tensor<?xf32>
  return %r : tensor<?xf32>
}}""", x)
    with np.errstate(all="ignore"):
        want = of(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-44)
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()
