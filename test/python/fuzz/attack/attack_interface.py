"""The C interface with arrays that lie about themselves, and with arrays that share memory."""
import ctypes

import numpy as np

from diffattn.arrays import CODES, MOST_RANK, Array, Result
from diffattn.runtime import Executable, library
from guarded import Fence
from judge import Tally

CALLS = 60
MODULE = """
func.func @rows(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %r = arith.addf %x, %x : tensor<?x4xf32>
  return %r : tensor<?x4xf32>
}
func.func @reverse(%a: tensor<?xf32> {bufferization.writable = true}, %b: tensor<?xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = tensor.dim %b, %c0 : tensor<?xf32>
  %last = arith.subi %n, %c1 : index
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>], iterator_types = ["parallel"]} outs(%a : tensor<?xf32>) {
  ^bb0(%old: f32):
    %i = linalg.index 0 : index
    %j = arith.subi %last, %i : index
    %y = tensor.extract %b[%j] : tensor<?xf32>
    linalg.yield %y : f32
  } -> tensor<?xf32>
  return %r : tensor<?xf32>
}
func.func @both(%a: tensor<6xf32> {bufferization.writable = true}, %b: tensor<6xf32> {bufferization.writable = true}) -> (tensor<6xf32>, tensor<6xf32>) {
  %r = arith.addf %a, %b : tensor<6xf32>
  %s = arith.subf %a, %b : tensor<6xf32>
  return %r, %s : tensor<6xf32>, tensor<6xf32>
}
func.func @read(%a: tensor<?xf32>, %b: tensor<?xf32>) -> tensor<?xf32> {
  %r = arith.addf %a, %b : tensor<?xf32>
  return %r : tensor<?xf32>
}
func.func @store(%a: memref<?xf32>, %b: memref<?xf32>) {
  memref.copy %b, %a : memref<?xf32> to memref<?xf32>
  return
}
"""
_code = None


def run(seed: int) -> Tally:
    global _code
    _code = _code or Executable(MODULE, cache=False)
    rng = np.random.default_rng([seed, 5])
    tally = Tally()
    for _ in range(CALLS):
        (_lies if rng.integers(2) else _shares)(rng, tally)
    return tally


def _lies(rng, tally):
    """One array of rank 2, right or with one field that is not."""
    pick = lambda options: options[rng.integers(len(options))]
    fence = Fence(rng)
    rows = pick([0, 1, 3])
    data = fence.copy(rng.standard_normal((rows, 4)).astype(np.float32))
    field = pick(["none", "rank", "dtype", "shape", "shape", "data", "strides", "null shape", "null strides", "count", "results", "entry", "threads"])
    one = (Array * 1)()
    one[0].data, one[0].dtype, one[0].rank = data.ctypes.data, CODES[data.dtype], 2
    shape, strides = (ctypes.c_int64 * 32)(rows, 4), (ctypes.c_int64 * 32)(4, 1)
    one[0].shape, one[0].strides = shape, strides
    entry, count, results, threads, must = b"rows", 1, 1, 0, "refuse"
    if field == "none":
        must = "take"
    elif field == "rank":
        one[0].rank = pick([-1, 0, 1, 3, MOST_RANK, MOST_RANK + 1, 33, 2**31 - 1, -(2**31)])
    elif field == "dtype":
        one[0].dtype = pick([-1, 1, 3, 10, 255, 256, 257, 2**31 - 1, -(2**31)])
    elif field == "shape":
        shape[pick([0, 1])] = pick([-1, -(2**63), 2**62, 2**63 - 1])
    elif field == "data":
        one[0].data = None
        must = "refuse" if rows else None
    elif field == "strides":
        # Strides of 0 read one row again and again, which is right; those beyond all memory are not.
        shape[0] = max(rows, 2)
        strides[0] = pick([2**62, -(2**62), 2**63 - 1, -(2**63)])
    elif field == "null shape":
        one[0].shape = ctypes.POINTER(ctypes.c_int64)()
    elif field == "null strides":
        one[0].strides = ctypes.POINTER(ctypes.c_int64)()
        must = None  # dense, or an error
    elif field == "count":
        count = pick([-1, 0, 2, 2**31 - 1, -(2**31)])
    elif field == "results":
        results = pick([-1, 0, -(2**31)])
    elif field == "entry":
        entry = pick([b"", b"row", b"rows\xff", None, b"x" * 100000])
    else:
        threads, must = pick([-1, -(2**31), 2**31 - 1]), None
    lib = library()
    out = (Result * 2)()
    holder = {}

    def call():
        lib.check(lib.call(_code._handle, entry, one, count, threads, out, results))
        raw = out[0]
        holder["shape"] = tuple(raw.shape[: raw.rank])
        got = np.ctypeslib.as_array(ctypes.cast(raw.data, ctypes.POINTER(ctypes.c_float)), holder["shape"]).copy()
        lib.free(raw.data)
        return got

    def judge(got):
        fence.check()
        assert np.array_equal(got, data + data)

    tally.attempt(call, judge, must=must, what=f"{field} {one[0].rank} {one[0].dtype} {shape[:2]} {strides[:2]} {count} {results} {entry} {threads}")


def _shares(rng, tally):
    """Two arguments in one piece of memory: beside each other, the same, or overlapping."""
    pick = lambda options: options[rng.integers(len(options))]
    fence = Fence(rng)
    entry = pick(["reverse", "both", "read", "store"])
    memory = fence.copy(rng.standard_normal(24).astype(np.float32))
    count = 6
    make = lambda: (lambda first, step: memory[first: first + step * count: step][:: pick([1, 1, -1])])(pick([0, 1, 6, 12]), pick([1, 1, 2]))
    a, b = make(), make()
    old = memory.copy()
    a0, b0 = a.copy(), b.copy()
    overlap = bool(np.shares_memory(a, b))
    between = bool(np.may_share_memory(a, b))
    # An array that is updated in place must be dense, and so must a memref without a layout.
    dense = a.strides == b.strides == (4,)
    must = "take" if entry == "read" or not between and dense else None

    def judge(results):
        fence.check()
        if entry == "read":
            assert np.array_equal(results[0], a0 + b0) and np.array_equal(memory, old)
        elif entry == "store":
            assert np.array_equal(a, b0)
        elif entry == "reverse":
            assert np.array_equal(results[0], b0[::-1]), "the value before the call is what is read"
        else:
            assert not overlap, "two results in one place"
            assert np.array_equal(results[0], a0 + b0) and np.array_equal(results[1], a0 - b0)

    tally.attempt(lambda: _code.call(entry, a, b), judge, must=must,
                  what=f"{entry}: two arrays at {(a.ctypes.data - memory.ctypes.data) // 4}, {(b.ctypes.data - memory.ctypes.data) // 4}, strides "
                       f"{a.strides}, {b.strides}")
