"""Bad indices, slices, sizes, divisors and steps end a call with an error, on the CPU and on a simulated GPU; nothing outside of an
array is read or written, and nothing that is right is refused."""
import re
import signal

import numpy as np
import pytest

from diffattn import runtime
from diffattn.runtime import Executable

TARGETS = ["cpu", "cuda-sim:sm_80"]
I64_MIN, I64_MAX = -(2**63), 2**63 - 1


@pytest.fixture(params=TARGETS)
def compiled(request):
    return lambda text, **options: Executable(text, target=request.param, cache=False, **options)


def guarded(count, inside):
    """`count` numbers in the middle of a larger array, and the larger array."""
    around = np.full(count + 2 * inside, -7, np.float32)
    view = around[inside : inside + count]
    view[:] = np.arange(count)
    return view, around


def expect_error(call, message, *arrays):
    """Fails with `message`, and changes none of `arrays` outside of what was handed over."""
    before = [array.copy() for array in arrays]
    with pytest.raises(runtime.RunError, match=message):
        call()
    for array, old in zip(arrays, before):
        outside = old == -7
        np.testing.assert_array_equal(array[outside], old[outside])


INSERT = """
func.func @put(%c: tensor<?xf32> {bufferization.writable = true}, %x: f32, %at: index) -> tensor<?xf32> {
  %r = tensor.insert %x into %c[%at] : tensor<?xf32>
  return %r : tensor<?xf32>
}
func.func @put_slice(%c: tensor<?xf32> {bufferization.writable = true}, %x: tensor<?xf32>, %o: index) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?xf32>
  %r = tensor.insert_slice %x into %c[%o] [%n] [1] : tensor<?xf32> into tensor<?xf32>
  return %r : tensor<?xf32>
}
func.func @take_slice(%c: tensor<?xf32>, %o: index, %n: index, %s: index) -> tensor<?xf32> {
  %r = tensor.extract_slice %c[%o] [%n] [%s] : tensor<?xf32> to tensor<?xf32>
  return %r : tensor<?xf32>
}
func.func @every_third(%c: tensor<?xf32>, %o: index, %n: index) -> tensor<?xf32> {
  %r = tensor.extract_slice %c[%o] [%n] [3] : tensor<?xf32> to tensor<?xf32>
  return %r : tensor<?xf32>
}"""


TAKE = """
func.func @take(%c: tensor<?xf32>, %at: index) -> f32 {
  %r = tensor.extract %c[%at] : tensor<?xf32>
  return %r : f32
}"""


def test_elements(compiled):
    executable = compiled(INSERT)
    for at in (0, 3):
        view, around = guarded(4, 8)
        executable.call("put", view, 9.0, at)
        assert view[at] == 9 and (np.delete(around, 8 + at) != 9).all()
    for at in (4, -1, -8, 2**40, I64_MIN, I64_MAX):
        view, around = guarded(4, 8)
        expect_error(lambda: executable.call("put", view, 9.0, at),
                     f"argument 0 of 'put': expected an index from 0 and below 4 on axis 0, but got {at}", around)


def test_elements_of_the_host():
    executable = Executable(TAKE, cache=False)
    assert executable.call("take", np.arange(4, dtype=np.float32), 3)[0] == 3
    for array, at in ((np.ones(4, np.float32), 4), (np.ones(4, np.float32), -1), (np.ones(0, np.float32), 0)):
        with pytest.raises(runtime.RunError, match=rf"below {len(array)} on axis 0, but got {at}"):
            executable.call("take", array, at)


def test_slices(compiled):
    executable = compiled(INSERT)
    two = np.array([20, 21], np.float32)
    for at in (0, 2):
        view, around = guarded(4, 8)
        executable.call("put_slice", view, two, at)
        assert view[at : at + 2].tolist() == [20, 21] and (around == -7).sum() == 16
    for at in (3, -1, -3, I64_MIN, I64_MAX):
        view, around = guarded(4, 8)
        expect_error(lambda: executable.call("put_slice", view, two, at), f"begins from 0 to 2 on axis 0, but got {at}", around)
    view, around = guarded(4, 8)
    expect_error(lambda: executable.call("put_slice", view, np.ones(5, np.float32), 0),
                 "a slice of 0 to 4 elements on axis 0, but got 5", around)


def test_strided_slices(compiled):
    executable = compiled(INSERT)
    x = np.arange(10, dtype=np.float32)
    numbers = (-(2**62), -4, -1, 0, 1, 2, 3, 4, 9, 10, 11, 2**62, I64_MAX)
    for offset in numbers:
        for count in numbers:
            inside = count >= 0 and offset >= 0 and (offset + (count - 1) * 3 < 10 if count else offset <= 10)
            if inside:
                assert executable.call("every_third", x, offset, count)[0].tolist() == x[offset::3][:count].tolist()
            else:
                with pytest.raises(runtime.RunError, match="expected"):
                    executable.call("every_third", x, offset, count)


@pytest.mark.parametrize("stride", [-1, 0, 1, 2, 5, 2**62, I64_MAX, I64_MIN])
def test_strides_that_are_arguments(stride):
    executable = Executable(INSERT, cache=False)
    x = np.arange(10, dtype=np.float32)
    for offset in (0, 9, 10):
        for count in (0, 1, 2, 6):
            inside = stride >= 0 and (offset + (count - 1) * stride < 10 if count else offset <= 10)
            if inside:
                expected = [x[offset + i * stride] for i in range(count)]
                assert executable.call("take_slice", x, offset, count, stride)[0].tolist() == expected
            else:
                with pytest.raises(runtime.RunError, match="expected"):
                    executable.call("take_slice", x, offset, count, stride)


GATHER = """
#row = affine_map<(i, j) -> (i)>
#all = affine_map<(i, j) -> (i, j)>
func.func @embed(%ids: tensor<?xi64>, %table: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %ids, %c0 : tensor<?xi64>
  %e = tensor.empty(%n) : tensor<?x4xf32>
  %r = linalg.generic {indexing_maps = [#row, #all], iterator_types = ["parallel", "parallel"]} ins(%ids : tensor<?xi64>)
      outs(%e : tensor<?x4xf32>) {
    ^bb0(%id: i64, %o: f32):
      %row = arith.index_cast %id : i64 to index
      %j = linalg.index 1 : index
      %x = tensor.extract %table[%row, %j] : tensor<?x4xf32>
      linalg.yield %x : f32
  } -> tensor<?x4xf32>
  return %r : tensor<?x4xf32>
}
func.func @twice(%ids: tensor<?xi64>, %rows: tensor<?xi32>, %table: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %ids, %c0 : tensor<?xi64>
  %e = tensor.empty(%n) : tensor<?x4xf32>
  %r = linalg.generic {indexing_maps = [#row, #all], iterator_types = ["parallel", "parallel"]} ins(%ids : tensor<?xi64>)
      outs(%e : tensor<?x4xf32>) {
    ^bb0(%id: i64, %o: f32):
      %at = arith.index_cast %id : i64 to index
      %name = tensor.extract %rows[%at] : tensor<?xi32>
      %row = arith.index_cast %name : i32 to index
      %j = linalg.index 1 : index
      %x = tensor.extract %table[%row, %j] : tensor<?x4xf32>
      linalg.yield %x : f32
  } -> tensor<?x4xf32>
  return %r : tensor<?x4xf32>
}
func.func @gather(%table: tensor<?x4xf32>, %at: tensor<?x1xindex>) -> tensor<?x1x4xf32> {
  %r = tensor.gather %table[%at] gather_dims([0]) : (tensor<?x4xf32>, tensor<?x1xindex>) -> tensor<?x1x4xf32>
  return %r : tensor<?x1x4xf32>
}"""


@pytest.mark.parametrize("entry", ["embed", "gather"])
def test_rows_by_data(compiled, entry):
    executable = compiled(GATHER)
    table = np.arange(40, dtype=np.float32).reshape(10, 4)

    def call(ids, table):
        at = np.array(ids, np.int64)
        return executable.call("embed", at, table)[0] if entry == "embed" else executable.call("gather", table, at[:, None])[0][:, 0]

    for ids in ([0, 9, 3], [], [5] * 1000):
        np.testing.assert_array_equal(call(ids, table), table[np.array(ids, int)])
    for ids in ([10], [0, -1], [3] * 1000 + [I64_MAX], [I64_MIN, 1]):
        with pytest.raises(runtime.RunError, match="expected an index from 0 and below .* on axis 0"):
            call(ids, table)
    assert call([], table[:0]).shape == (0, 4)
    with pytest.raises(runtime.RunError, match="expected an index from 0 and below"):
        call([0], table[:0])


def test_rows_by_data_that_data_finds(compiled):
    executable = compiled(GATHER)
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    rows = np.array([3, 9, 10, -1], np.int32)
    np.testing.assert_array_equal(executable.call("twice", np.array([1, 0], np.int64), rows, table)[0], table[[9, 3]])
    for ids in ([2], [0, 3], [4], [-1]):
        with pytest.raises(runtime.RunError, match="expected an index from 0 and below"):
            executable.call("twice", np.array(ids, np.int64), rows, table)


def test_the_index_is_told():
    executable = Executable(GATHER, cache=False)
    with pytest.raises(runtime.RunError, match="argument 1 of 'embed': expected an index from 0 and below 10 on axis 0, but got -3"):
        executable.call("embed", np.array([2, -3], np.int64), np.ones((10, 4), np.float32))


SCATTER = """
func.func @scatter(%rows: tensor<?x1x4xf32>, %c: tensor<?x4xf32> {bufferization.writable = true}, %at: tensor<?x1xindex>)
    -> tensor<?x4xf32> {
  %r = tensor.scatter %rows into %c[%at] scatter_dims([0]) unique
      : (tensor<?x1x4xf32>, tensor<?x4xf32>, tensor<?x1xindex>) -> tensor<?x4xf32>
  return %r : tensor<?x4xf32>
}"""


def test_rows_written_by_data(compiled):
    executable = compiled(SCATTER)
    rows = np.arange(8, dtype=np.float32).reshape(2, 1, 4)
    for at, fine in (([2, 0], True), ([0, 3], False), ([-1, 1], False)):
        around = np.full((7, 4), -7, np.float32)
        view = around[2:5]
        view[:] = 0
        if fine:
            executable.call("scatter", rows, view, np.array(at)[:, None])
            np.testing.assert_array_equal(view[at], rows[:, 0])
        else:
            expect_error(lambda: executable.call("scatter", rows, view, np.array(at)[:, None]), "expected a slice", around)
        assert (around[[0, 1, 5, 6]] == -7).all()


UPDATE = """
func.func @update(%new: tensor<?x4xf32>, %k: tensor<?x?x4xf32> {bufferization.writable = true},
    %v: tensor<?x?x4xf32> {bufferization.writable = true}, %at: tensor<?xi64>) -> (tensor<?x?x4xf32>, tensor<?x?x4xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %batch = tensor.dim %new, %c0 : tensor<?x4xf32>
  %k1, %v1 = scf.for %b = %c0 to %batch step %c1 iter_args(%kb = %k, %vb = %v) -> (tensor<?x?x4xf32>, tensor<?x?x4xf32>) {
    %p = tensor.extract %at[%b] : tensor<?xi64>
    %i = arith.index_cast %p : i64 to index
    %row = tensor.extract_slice %new[%b, 0] [1, 4] [1, 1] : tensor<?x4xf32> to tensor<4xf32>
    %kn = tensor.insert_slice %row into %kb[%b, %i, 0] [1, 1, 4] [1, 1, 1] : tensor<4xf32> into tensor<?x?x4xf32>
    %vn = tensor.insert_slice %row into %vb[%b, %i, 0] [1, 1, 4] [1, 1, 1] : tensor<4xf32> into tensor<?x?x4xf32>
    scf.yield %kn, %vn : tensor<?x?x4xf32>, tensor<?x?x4xf32>
  }
  return %k1, %v1 : tensor<?x?x4xf32>, tensor<?x?x4xf32>
}"""


@pytest.mark.parametrize("batch", [1, 3, 200])
def test_caches_written_by_data(compiled, batch):
    """Each row of a batch goes where its number says, in both caches; one that lies outside of either ends the call."""
    executable = compiled(UPDATE)
    rng = np.random.default_rng(batch)
    rows = rng.standard_normal((batch, 4)).astype(np.float32)
    around = np.full((2, batch + 4, 6, 4), -7, np.float32)
    k, v = around[0, 2:-2], around[1, 2:-2]
    at = rng.integers(0, 6, batch)
    executable.call("update", rows, k, v, at)
    for cache in (k, v):
        expected = np.full(cache.shape, -7, np.float32)
        expected[np.arange(batch), at] = rows
        np.testing.assert_array_equal(cache, expected)
    for wrong in (6, -1, I64_MIN, I64_MAX):
        at[batch // 2] = wrong
        expect_error(lambda: executable.call("update", rows, k, v, at), "expected a slice that begins", around[:, :2], around[:, -2:])
    at[:] = 0
    expect_error(lambda: executable.call("update", rows, k, v[:, :0].copy(), at), "expected a slice of 0 to", around[:, :2])
    if batch > 1:
        expect_error(lambda: executable.call("update", rows, k[:-1].copy(), v, at), "expected a slice that begins", around[:, :2])


LOOPS = """
#half = affine_map<(i) -> (i * 2 + 1)>
#id = affine_map<(i) -> (i)>
func.func @odd(%x: tensor<?xf32>, %y: tensor<?xf32> {bufferization.writable = true}) -> tensor<?xf32> {
  %r = linalg.generic {indexing_maps = [#half, #id], iterator_types = ["parallel"]} ins(%x : tensor<?xf32>) outs(%y : tensor<?xf32>) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
  } -> tensor<?xf32>
  return %r : tensor<?xf32>
}
func.func @shifted(%x: tensor<?xf32>, %y: tensor<?xf32> {bufferization.writable = true}, %by: index) -> tensor<?xf32> {
  %r = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel"]} outs(%y : tensor<?xf32>) {
    ^bb0(%b: f32):
      %i = linalg.index 0 : index
      %at = arith.addi %i, %by : index
      %a = tensor.extract %x[%at] : tensor<?xf32>
      linalg.yield %a : f32
  } -> tensor<?xf32>
  return %r : tensor<?xf32>
}
func.func @backwards(%x: memref<?xf32>, %y: memref<?xf32>, %n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %last = arith.subi %n, %c1 : index
  scf.for %i = %c0 to %n step %c1 {
    %at = arith.subi %last, %i : index
    %a = memref.load %x[%at] : memref<?xf32>
    memref.store %a, %y[%i] : memref<?xf32>
  }
  return
}
func.func @guarded(%x: memref<?xf32>, %y: memref<?xf32>, %n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %size = memref.dim %x, %c0 : memref<?xf32>
  scf.for %i = %c0 to %n step %c1 {
    %inside = arith.cmpi ult, %i, %size : index
    scf.if %inside {
      %a = memref.load %x[%i] : memref<?xf32>
      memref.store %a, %y[%i] : memref<?xf32>
    }
  }
  return
}"""


def test_indices_that_run_with_loops():
    executable = Executable(LOOPS, cache=False)
    x = np.arange(8, dtype=np.float32)
    assert executable.call("odd", x, np.zeros(4, np.float32))[0].tolist() == [1, 3, 5, 7]
    assert executable.call("odd", x[:0], np.zeros(0, np.float32))[0].tolist() == []
    with pytest.raises(runtime.RunError, match="argument 0 of 'odd': expected size 10 or more on axis 0, but got 8"):
        executable.call("odd", x, np.zeros(5, np.float32))
    for by, count, fine in ((0, 8, True), (3, 5, True), (3, 6, False), (-1, 2, False), (8, 0, True), (I64_MAX, 1, False),
                            (I64_MAX, 3, False), (I64_MIN, 1, False)):
        y = np.zeros(count, np.float32)
        if fine:
            assert executable.call("shifted", x, y, by)[0].tolist() == x[by : by + count].tolist()
        else:
            with pytest.raises(runtime.RunError, match="argument 0 of 'shifted': expected an index from 0 and below 8"):
                executable.call("shifted", x, y, by)


def test_loops_of_memrefs():
    executable = Executable(LOOPS, cache=False)
    x = np.arange(4, dtype=np.float32)
    for count, fine in ((4, True), (0, True), (-3, True), (5, False), (I64_MAX, False)):
        y, around = guarded(4, 8)
        if fine:
            executable.call("backwards", x, y, count)
            assert y[: max(count, 0)].tolist() == x[: max(count, 0)][::-1].tolist()
        else:
            expect_error(lambda: executable.call("backwards", x, y, count), "expected an index from 0 and below 4", around)
    # An access that a condition keeps from being reached is not refused.
    y = np.zeros(4, np.float32)
    executable.call("guarded", x, y, 6)
    assert y.tolist() == x.tolist()


def test_checks_stay_out_of_loops():
    bufferized = runtime.emit(GATHER, "bufferized").decode()
    body = bufferized[bufferized.index("func.func @embed") : bufferized.index("func.func @twice")]
    # One loop over the ids finds the worst of them; the loop over the elements has no check.
    assert body.count("linalg.generic") == 2 and body.count('iterator_types = ["reduction"]') == 1
    assert body.count("cf.assert") == 1 and not re.search(r"\^bb0[^}]*cf.assert", body)
    loops = runtime.emit(LOOPS, "bufferized").decode()
    backwards = loops[loops.index("func.func @backwards") : loops.index("func.func @guarded")]
    assert backwards.index("cf.assert") < backwards.index("scf.for") and "cf.assert" not in backwards[backwards.index("scf.for") :]


def test_unchecked():
    text = runtime.emit(GATHER, "bufferized", unchecked=True).decode()
    assert "cf.assert" not in text
    executable = Executable(GATHER, cache=False, unchecked=True)
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    # Row 5 of the first half is row 5 of the whole: nothing looks.
    assert executable.call("embed", np.array([5], np.int64), table[:5])[0][0].tolist() == table[5].tolist()


def test_the_cache_tells_checked_code_apart(tmp_path):
    table, five = np.arange(40, dtype=np.float32).reshape(10, 4), np.array([5], np.int64)
    Executable(GATHER, cache=tmp_path, unchecked=True).call("embed", five, table[:5])
    with pytest.raises(runtime.RunError):
        Executable(GATHER, cache=tmp_path).call("embed", five, table[:5])


SIZES = """
func.func @filled(%n: index, %m: index) -> tensor<?x?xf32> {
  %c = arith.constant 1.0 : f32
  %e = tensor.empty(%n, %m) : tensor<?x?xf32>
  %r = linalg.fill ins(%c : f32) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
  return %r : tensor<?x?xf32>
}
func.func @padded(%x: tensor<?xf32>, %low: index, %high: index) -> tensor<?xf32> {
  %z = arith.constant 0.0 : f32
  %r = tensor.pad %x low[%low] high[%high] {
  ^bb0(%i: index):
    tensor.yield %z : f32
  } : tensor<?xf32> to tensor<?xf32>
  return %r : tensor<?xf32>
}
func.func @shaped(%x: tensor<?xf32>, %shape: tensor<2xi64>) -> tensor<?x?xf32> {
  %r = tensor.reshape %x(%shape) : (tensor<?xf32>, tensor<2xi64>) -> tensor<?x?xf32>
  return %r : tensor<?x?xf32>
}
func.func @expanded(%x: tensor<?xf32>, %n: index) -> tensor<?x4xf32> {
  %r = tensor.expand_shape %x [[0, 1]] output_shape [%n, 4] : tensor<?xf32> into tensor<?x4xf32>
  return %r : tensor<?x4xf32>
}"""


def test_sizes_of_new_tensors():
    executable = Executable(SIZES, cache=False)
    assert executable.call("filled", 2, 3)[0].tolist() == [[1] * 3] * 2
    for n, m in ((-1, 3), (3, -1), (-2, -3), (2**62, 1), (2**32, 2**32), (2**33, 2**31), (I64_MIN, 0), (2**61, 8)):
        with pytest.raises(runtime.RunError, match="expected tensors of sizes that memory can hold"):
            executable.call("filled", n, m)
    x = np.arange(4, dtype=np.float32)
    assert executable.call("padded", x, 1, 2)[0].tolist() == [0, 0, 1, 2, 3, 0, 0]
    for low, high, side in ((-1, 0, "low"), (0, -1, "high"), (-2, 2, "low"), (I64_MIN, 0, "low")):
        with pytest.raises(runtime.RunError, match=f"pad: expected a {side} padding of axis 0 of 0 or more, but got -"):
            executable.call("padded", x, low, high)


def test_shapes_that_are_data():
    executable = Executable(SIZES, cache=False)
    x = np.arange(12, dtype=np.float32)
    assert executable.call("shaped", x, np.array([3, 4]))[0].tolist() == x.reshape(3, 4).tolist()
    for shape in ((3, 5), (-3, -4), (2**32, 2**32), (-1, 12), (2**63 // 4 * 1, 4)):
        for array in (x, x[:0]):
            with pytest.raises(runtime.RunError, match="expected"):
                executable.call("shaped", array, np.array(shape))
    assert executable.call("expanded", x, 3)[0].shape == (3, 4)
    for array, n in ((x, 2), (x, -3), (x[:0], 2**62), (x[:0], -(2**62)), (x[:0], I64_MIN)):
        with pytest.raises(runtime.RunError, match="expected"):
            executable.call("expanded", array, n)


NUMBERS = """
func.func @divide(%a: i64, %b: i64) -> i64 { %r = arith.divsi %a, %b : i64
  return %r : i64 }
func.func @rest(%a: i32, %b: i32) -> i32 { %r = arith.remsi %a, %b : i32
  return %r : i32 }
func.func @divide_unsigned(%a: i64, %b: i64) -> i64 { %r = arith.divui %a, %b : i64
  return %r : i64 }
func.func @rest_unsigned(%a: i64, %b: i64) -> i64 { %r = arith.remui %a, %b : i64
  return %r : i64 }
func.func @floor(%a: i64, %b: i64) -> i64 { %r = arith.floordivsi %a, %b : i64
  return %r : i64 }
func.func @ceil(%a: i64, %b: i64) -> i64 { %r = arith.ceildivsi %a, %b : i64
  return %r : i64 }
func.func @ceil_unsigned(%a: i64, %b: i64) -> i64 { %r = arith.ceildivui %a, %b : i64
  return %r : i64 }
func.func @shift(%a: i64, %b: i64) -> i64 { %r = arith.shli %a, %b : i64
  return %r : i64 }"""


@pytest.mark.parametrize("entry", ["divide", "rest", "divide_unsigned", "rest_unsigned", "floor", "ceil", "ceil_unsigned"])
def test_divisors(entry):
    executable = Executable(NUMBERS, cache=False)
    signed = "unsigned" not in entry
    lowest = -(2**31) if entry == "rest" else I64_MIN
    assert executable.call(entry, 7, 2)[0] == {"rest": 1, "rest_unsigned": 1, "ceil": 4, "ceil_unsigned": 4}.get(entry, 3)
    with pytest.raises(runtime.RunError, match="expected a divisor other than 0"):
        executable.call(entry, 7, 0)
    if signed:
        with pytest.raises(runtime.RunError, match="and a quotient that its type can hold"):
            executable.call(entry, lowest, -1)
        executable.call(entry, lowest + 1, -1)
        executable.call(entry, lowest, 1)


def test_shifts():
    executable = Executable(NUMBERS, cache=False)
    assert executable.call("shift", 3, 62)[0] == 3 * 2**62 - 2**64
    for by in (64, -1, I64_MAX):
        with pytest.raises(runtime.RunError, match="shli: expected a shift by less than the width of the type, 64 bits"):
            executable.call("shift", 3, by)


def test_divisors_that_are_data(compiled):
    executable = compiled("""
#id = affine_map<(i) -> (i)>
func.func @divide(%a: tensor<?xi32>, %b: tensor<?xi32>) -> tensor<?xi32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %a, %c0 : tensor<?xi32>
  %e = tensor.empty(%n) : tensor<?xi32>
  %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel"]} ins(%a, %b : tensor<?xi32>, tensor<?xi32>)
      outs(%e : tensor<?xi32>) {
    ^bb0(%x: i32, %y: i32, %o: i32):
      %q = arith.divsi %x, %y : i32
      linalg.yield %q : i32
  } -> tensor<?xi32>
  return %r : tensor<?xi32>
}""")
    array = lambda *numbers: np.array(numbers, np.int32)
    assert executable.call("divide", array(7, -9), array(2, 4))[0].tolist() == [3, -2]
    for a, b in ((array(7, 9), array(2, 0)), (array(-(2**31), 1), array(-1, 1))):
        with pytest.raises(runtime.RunError, match="divsi: expected a divisor other than 0"):
            executable.call("divide", a, b)


def test_steps_of_loops():
    executable = Executable("""
func.func @count(%from: index, %to: index, %step: index) -> index {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = scf.for %i = %from to %to step %step iter_args(%n = %c0) -> index {
    %m = arith.addi %n, %c1 : index
    scf.yield %m : index
  }
  return %r : index
}""", cache=False)
    assert executable.call("count", 0, 10, 3)[0] == 4
    assert executable.call("count", I64_MAX - 5, I64_MAX - 2, 3)[0] == 1
    for step in (0, -1, I64_MIN):
        with pytest.raises(runtime.RunError, match=f"for: expected a step of 1 or more, but got {step}"):
            executable.call("count", 0, 10, step)
    # The counter would wrap around, and the loop never end.
    with pytest.raises(runtime.RunError, match="so that the counter does not overflow"):
        executable.call("count", 0, I64_MAX, 2**62)


def test_functions_that_call_themselves():
    with pytest.raises(runtime.IRError, match="expected functions that do not call themselves, but 'f' does"):
        Executable("""
func.func @f(%a: i64) -> i64 {
  %r = func.call @f(%a) : (i64) -> i64
  return %r : i64
}""", cache=False)


def test_axes_that_a_tensor_does_not_have(compiled):
    executable = compiled("""
func.func @size(%x: tensor<?x4xf32>) -> tensor<?xf32> {
  %c7 = arith.constant 7 : index
  %n = tensor.dim %x, %c7 : tensor<?x4xf32>
  %e = tensor.empty(%n) : tensor<?xf32>
  return %e : tensor<?xf32>
}""")
    with pytest.raises(runtime.RunError, match="dim: expected an axis from 0 and below 2, but got 7"):
        executable.call("size", np.ones((3, 4), np.float32))


def test_layers_that_a_weight_does_not_have(tmp_path):
    from safetensors.numpy import save_file

    save_file({f"layers.{i}.w": np.full(4, i, np.float32) for i in range(2)}, tmp_path / "model.safetensors")
    executable = Executable("""
ml_program.global private @"layers.{}.w"(#ml_program.extern<tensor<4xf32>>) : tensor<4xf32> {diffattn.layers = 2 : i64}
func.func @weight(%layer: index) -> tensor<4xf32> {
  %w = diffattn.layer_weight @"layers.{}.w"[%layer] : tensor<4xf32>
  return %w : tensor<4xf32>
}""", weights=tmp_path, cache=False)
    assert executable.call("weight", 1)[0].tolist() == [1] * 4
    for layer in (2, -1, I64_MAX):
        with pytest.raises(runtime.RunError, match=f"layer_weight: expected a layer from 0 and below 2, but got {layer}"):
            executable.call("weight", layer)


def test_a_crash_of_the_parser_is_an_error():
    before = signal.getsignal(signal.SIGSEGV)
    with pytest.raises(runtime.IRError, match="expected MLIR to report what it cannot take, but it crashed"):
        Executable("""
func.func @f(%x: tensor<6x20xf32>, %z: tensor<6xf32>) -> tensor<6xf32> {
  %t = linalg.reduce { arith.addf } ins(%x : tensor<6x20xf32>) outs(%z : tensor<6xf32>) dimensions = [1.0]
  return %t : tensor<6xf32>
}""", cache=False)
    assert signal.getsignal(signal.SIGSEGV) == before
    # The process goes on as before.
    assert Executable(NUMBERS, cache=False).call("divide", 6, 2)[0] == 3


@pytest.mark.parametrize("assembly, constraints, message", [("garbage $0", "r", "invalid instruction mnemonic 'garbage'"),
                                                            ("nop # $0", "{zork}", "couldn't allocate input reg for constraint")])
def test_assembly_that_is_none_is_an_error(assembly, constraints, message):
    """LLVM would tell it and end the process."""
    with pytest.raises(runtime.CompileError, match="^module: expected LLVM to generate code for the module, but got: ") as raised:
        Executable(f"""
func.func @f(%x: tensor<3xf32>) -> tensor<3xf32> {{
  %number = arith.constant 0 : i32
  llvm.inline_asm has_side_effects "{assembly}", "{constraints}" %number : (i32) -> ()
  return %x : tensor<3xf32>
}}""", cache=False)
    assert message in str(raised.value)


def test_a_crash_of_the_code_generator_is_an_error(capfd):
    """LLVM ends the process where it has no code for something, here for a GPU's barrier on a CPU."""
    with pytest.raises(runtime.CompileError, match="^module: expected LLVM to generate code for the module, but it crashed"):
        Executable("""
func.func @f(%x: tensor<3xf32>) -> tensor<3xf32> {
  %barrier = arith.constant 0 : i32
  llvm.call_intrinsic "llvm.nvvm.barrier.cta.sync.aligned.all"(%barrier) : (i32) -> ()
  return %x : tensor<3xf32>
}""", cache=False)
    assert "Cannot select" in capfd.readouterr().err  # LLVM's own words
    assert Executable(NUMBERS, cache=False).call("divide", 6, 2)[0] == 3
