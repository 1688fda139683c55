"""Calls that are captured once: what they read, return, count and refuse."""
import gc

import numpy as np
import pytest
from paths import ROOT
from test_device_arrays import MODULE, TARGET, changes
from test_device_dlpack import CudaArray

import diffattn
from diffattn import decoding
from diffattn.graph_capture import CapturedGraph
from diffattn.runtime import DeviceArray, Executable, InputError, RunError, UsageError

FUNCTIONS = """
func.func @take(%table: tensor<?x4xf32>, %at: tensor<?xi64>) -> tensor<?x4xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %rows = tensor.dim %table, %c0 : tensor<?x4xf32>
  %end = arith.index_cast %rows : index to i64
  %n = tensor.dim %at, %c0 : tensor<?xi64>
  %true = arith.constant dense<true> : tensor<i1>
  %all = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> ()>], iterator_types = ["reduction"]}
      ins(%at : tensor<?xi64>) outs(%true : tensor<i1>) {
    ^bb0(%j: i64, %ok: i1):
      %low = arith.cmpi sge, %j, %zero : i64
      %high = arith.cmpi slt, %j, %end : i64
      %both = arith.andi %ok, %low : i1
      %still = arith.andi %both, %high : i1
      linalg.yield %still : i1
  } -> tensor<i1>
  %inside = tensor.extract %all[] : tensor<i1>
  cf.assert %inside, "expected rows of the table"
  %e = tensor.empty(%n) : tensor<?x4xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, c) -> (i)>, affine_map<(i, c) -> (i, c)>],
      iterator_types = ["parallel", "parallel"]} ins(%at : tensor<?xi64>) outs(%e : tensor<?x4xf32>) {
    ^bb0(%j: i64, %o: f32):
      %first = arith.maxsi %j, %zero : i64
      %last = arith.subi %end, %one : i64
      %near = arith.minsi %first, %last : i64
      %row = arith.index_cast %near : i64 to index
      %c = linalg.index 1 : index
      %x = tensor.extract %table[%row, %c] : tensor<?x4xf32>
      linalg.yield %x : f32
  } -> tensor<?x4xf32>
  return %r : tensor<?x4xf32>
}
func.func @columns(%x: memref<?x6xf32>) -> memref<?x2xf32, strided<[?, ?], offset: ?>> {
  %c0 = arith.constant 0 : index
  %n = memref.dim %x, %c0 : memref<?x6xf32>
  %y = memref.alloc(%n) : memref<?x6xf32>
  linalg.add ins(%x, %x : memref<?x6xf32>, memref<?x6xf32>) outs(%y : memref<?x6xf32>)
  %part = memref.subview %y[0, 1] [%n, 2] [1, 1] : memref<?x6xf32> to memref<?x2xf32, strided<[6, 1], offset: 1>>
  %cast = memref.cast %part : memref<?x2xf32, strided<[6, 1], offset: 1>> to memref<?x2xf32, strided<[?, ?], offset: ?>>
  return %cast : memref<?x2xf32, strided<[?, ?], offset: ?>>
}
func.func @count(%x: tensor<?xf32>) -> index {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?xf32>
  return %n : index
}"""
SCALE = """
ml_program.global private @w(#ml_program.extern<tensor<4xf32>>) : tensor<4xf32>
func.func @scale(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %w = ml_program.global_load_const @w : tensor<4xf32>
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?x4xf32>
  %e = tensor.empty(%n) : tensor<?x4xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, c) -> (i, c)>, affine_map<(i, c) -> (c)>, affine_map<(i, c) -> (i, c)>],
      iterator_types = ["parallel", "parallel"]} ins(%x, %w : tensor<?x4xf32>, tensor<4xf32>) outs(%e : tensor<?x4xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %p = arith.mulf %a, %b : f32
      linalg.yield %p : f32
  } -> tensor<?x4xf32>
  return %r : tensor<?x4xf32>
}"""


@pytest.fixture(scope="module")
def executable():
    return Executable(MODULE, target=TARGET)


@pytest.fixture(scope="module")
def functions():
    return Executable(FUNCTIONS, target=TARGET)


def test_every_run_reads_the_host_anew(executable):
    cache, x, at = DeviceArray.zeros(executable, (3, 8), np.float32), np.ones(8, np.float32), np.array([0])
    append = executable.capture("append", cache, x, at)
    assert append.fallback_reason == ""
    (result, twice), asked = changes(executable, append)
    assert result is cache and np.all(twice == 2) and asked["launches"] == 1 and append.fallback_reason == ""
    for row, value in ((2, 5), (1, 7)):
        x[:], at[:] = value, row
        (result, twice), asked = changes(executable, append)
        assert result is cache and np.all(twice == 2 * value)
        assert asked == {"allocations": 0, "bytes_in": 32 + 8, "bytes_out": 32, "bytes_within": 0, "launches": 1}
    assert cache.to_host()[:, 0].tolist() == [1, 7, 5]
    # The next run writes where the last one did, as long as someone looks.
    before = twice
    x[:] = 9
    append()
    assert np.all(before == 18)
    del append
    gc.collect()
    assert np.all(before == 18)


def test_other_calls_between_runs(executable):
    cache, x, at = DeviceArray.zeros(executable, (3, 8), np.float32), np.ones(8, np.float32), np.array([0])
    append = executable.capture("append", cache, x, at)
    append()
    larger = DeviceArray.zeros(executable, (50000, 8), np.float32)
    executable.call("append", larger, np.full(8, 3, np.float32), np.array([49999]))
    x[:], at[:] = 4, 1
    assert np.all(append()[1] == 8)
    assert cache.to_host()[:, 0].tolist() == [1, 4, 0] and larger.to_host()[-1, 0] == 3


def test_assertions_are_told_after_the_run(functions):
    at = np.array([1, 0, 2])
    take = functions.capture("take", DeviceArray.from_host(functions, np.arange(12, dtype=np.float32).reshape(3, 4)), at)
    for _ in range(2):  # kernel by kernel, then as a graph
        at[:] = 1, 3, 2
        with pytest.raises(RunError, match="^'take': expected rows of the table$"):
            take()
        at[:] = 2, 1, 2
        assert take()[0][:, 0].tolist() == [8, 4, 8]
        assert take.fallback_reason == ""


def test_a_result_that_is_not_dense(functions):
    x = DeviceArray.from_host(functions, np.arange(18, dtype=np.float32).reshape(3, 6))
    columns = functions.capture("columns", x)
    for _ in range(3):
        assert columns()[0].tolist() == [[2, 4], [14, 16], [26, 28]]
    x.write(np.ones((3, 6), np.float32))
    assert columns()[0].tolist() == [[2, 2]] * 3 and columns.fallback_reason == ""


def test_weights_that_are_bound_anew(tmp_path):
    from safetensors.numpy import save_file

    paths = [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    for path, value in zip(paths, (2, 5)):
        save_file({"w": np.full(4, value, np.float32)}, path)
    executable = Executable(SCALE, target=TARGET, weights=[paths[0]])
    x = np.ones((2, 4), np.float32)
    scale = executable.capture("scale", x)
    assert [scale()[0].max() for _ in range(2)] == [2, 2]
    executable.bind_weights([paths[1]])
    _, asked = changes(executable, scale)
    assert asked["launches"] == 1 and scale()[0].max() == 5


def test_streams_of_others(executable):
    class Stream:
        cuda_stream = 0x70

    cache = CudaArray(executable, np.zeros((3, 8), np.float32))
    x, at = CudaArray(executable, np.ones(8, np.float32)), np.array([0])
    append = executable.capture("append", cache, x, at, stream=Stream())
    for at[0] in (0, 2):
        result, twice = append()
        assert result is cache and np.all(twice == 2)
    assert cache.streams == x.streams == [0x70] and cache.to_host()[:, 0].tolist() == [1, 0, 1]


def test_what_cannot_be_captured(executable, functions):
    cache, x, at = DeviceArray.zeros(executable, (3, 8), np.float32), np.ones(8, np.float32), np.array([0])
    for arrays, error, message in [
        ((cache, x), UsageError, "'append': expected 3 arguments, but got 2"),
        ((cache.to_host(), x, at), UsageError, "argument 0 of 'append': expected an array on the device, because the call is "
                                               "captured and may update it, but got one in memory of the host"),
        ((cache, np.ones(16, np.float32)[::2], at), UsageError, "argument 1 of 'append': expected a dense row-major array, "
                                                                "because the call is captured, but got a strided view"),
        ((cache, x, at.astype(np.int32)), InputError, "argument 2 of 'append': expected tensor<1xi64>"),
    ]:
        with pytest.raises(error, match=message):
            executable.capture("append", *arrays)
    with pytest.raises(UsageError, match="argument 0 of 'number': expected an array, because the call is captured, but got a number"):
        executable.capture("number", 2.0)
    with pytest.raises(UsageError, match="result 0 of 'count': expected an array, because the call is captured, but got a number"):
        functions.capture("count", x)
    with pytest.raises(UsageError, match="argument 0 of 'columns': expected an array on the device"):
        functions.capture("columns", np.zeros((3, 6), np.float32))
    with pytest.raises(UsageError, match="expected a program on a device .* to capture calls of, but got one for the CPU"):
        Executable(MODULE).capture("append", np.zeros((3, 8), np.float32), x, at)
    with pytest.raises(UsageError, match="expected an entry of append, number, but got 'nothing'"):
        executable.capture("nothing", x)


def test_a_program_that_the_host_computes_a_part_of_is_not_captured():
    executable = Executable("""
func.func @double(%x: memref<4xf32>) {
  %c2 = arith.constant 2 : index
  %v = memref.load %x[%c2] : memref<4xf32>
  %s = arith.addf %v, %v : f32
  memref.store %s, %x[%c2] : memref<4xf32>
  return
}""", target=TARGET, from_stage="gpu")
    assert [("HostAccess", True)] == [(d.name, "runs on the host" in d.message) for d in executable.diagnostics]
    x = DeviceArray.from_host(executable, np.arange(4, dtype=np.float32))
    double = executable.capture("double", x)
    for value in (4, 8, 16):
        assert double() == [] and x.to_host()[2] == value
    assert double.fallback_reason == "the host computes a part of this program"


def test_generation_says_that_steps_are_not_captured(monkeypatch):
    model = diffattn.load(ROOT / "examples" / "tiny-lm", target=TARGET)
    monkeypatch.setattr(decoding, "LEAST_BUCKET", 4)
    monkeypatch.setattr(CapturedGraph, "fallback_reason", property(lambda _: "expected a graph, but the driver says no"))
    with pytest.warns(UserWarning) as caught:
        assert len(list(model.generate([1, 2, 3], 4))) == 4
    # Once, though the caches have grown.
    assert [str(warning.message) for warning in caught] == [
        "decode steps are launched kernel by kernel, not as one graph: expected a graph, but the driver says no"]


def test_older_names_stay():
    from diffattn.replay import Replay

    assert Replay is CapturedGraph and Executable.replay is Executable.capture and Replay.refusal is Replay.fallback_reason


PERSISTENT = """
!q = tensor<1x2x?x64xf16>
!v = tensor<1x2x?x128xf16>
func.func @attend(%q1: !q, %k1: !q, %q2: !q, %k2: !q, %v: !v, %l: tensor<f32>, %o: !v) -> !v {
  %r = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !q, !q, !q, !q, !v) lambda(%l : tensor<f32>)
    outs(%o : !v) {scale = 0.125 : f32, is_causal, schedules = [
      #diffattn.when<tensor_maps = true
        : #diffattn.gpu_wgmma<placement = both, kv_block_size = 64, stages = 2, persistent_blocks = 2>>,
      #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 16, stages = 2>]} -> !v
  return %r : !v
}"""


def test_persistent_blocks_count_from_0_in_each_run():
    """The counter of tiles is set by the graph: each run computes all of them, to the bit as a plain call does."""
    executable = Executable(PERSISTENT, target="cuda-sim:sm_90a")
    random = np.random.default_rng(5)
    arrays = [random.standard_normal((1, 2, 140, width)).astype(np.float16) for width in (64, 64, 64, 64, 128)]
    out = np.full((1, 2, 140, 128), np.nan, np.float16)
    arguments = [*arrays, np.float32(0.4), out]
    attend = executable.capture("attend", *arguments)
    assert attend.fallback_reason == ""
    for factor in (1, -1, 2):
        arrays[0][:] = factor * arrays[0]
        (result,), (plain,) = attend(), executable.call("attend", *arguments)
        assert np.isfinite(result.astype(np.float32)).all() and np.array_equal(result, plain)
