"""Arrays that stay on a device: calls use them there, and a decode step neither allocates nor copies caches."""
import gc

import numpy as np
import pytest
from paths import ROOT

import diffattn
from diffattn import decoding
from diffattn.runtime import DeviceArray, Executable, InputError, UsageError

TARGET = "cuda-sim:sm_80"
MODULE = """
func.func @append(%cache: tensor<?x8xf32> {bufferization.writable = true}, %x: tensor<8xf32>, %at: tensor<1xi64>)
    -> (tensor<?x8xf32>, tensor<8xf32>) {
  %c0 = arith.constant 0 : index
  %i = tensor.extract %at[%c0] : tensor<1xi64>
  %n = tensor.dim %cache, %c0 : tensor<?x8xf32>
  %new = linalg.generic {indexing_maps = [affine_map<(r, c) -> (c)>, affine_map<(r, c) -> (r, c)>],
      iterator_types = ["parallel", "parallel"]} ins(%x : tensor<8xf32>) outs(%cache : tensor<?x8xf32>) {
    ^bb0(%a: f32, %old: f32):
      %r = linalg.index 0 : index
      %row = arith.index_cast %r : index to i64
      %here = arith.cmpi eq, %row, %i : i64
      %v = arith.select %here, %a, %old : f32
      linalg.yield %v : f32
  } -> tensor<?x8xf32>
  %e = tensor.empty() : tensor<8xf32>
  %twice = linalg.generic {indexing_maps = [affine_map<(c) -> (c)>, affine_map<(c) -> (c)>],
      iterator_types = ["parallel"]} ins(%x : tensor<8xf32>) outs(%e : tensor<8xf32>) {
    ^bb0(%a: f32, %o: f32):
      %s = arith.addf %a, %a : f32
      linalg.yield %s : f32
  } -> tensor<8xf32>
  return %new, %twice : tensor<?x8xf32>, tensor<8xf32>
}
func.func @number(%x: f32) -> f32 {
  %s = arith.addf %x, %x : f32
  return %s : f32
}"""


@pytest.fixture(scope="module")
def executable():
    return Executable(MODULE, target=TARGET)


def changes(executable, call):
    """A call's result, and its requests to the device."""
    before = executable.traffic()
    return call(), since(before, executable)


def since(before, executable):
    after = executable.traffic()
    return {name: getattr(after, name) - getattr(before, name) for name, _ in before._fields_}


def test_arguments_stay_where_they_are(executable):
    host = np.arange(24, dtype=np.float32).reshape(3, 8)
    cache, x = DeviceArray.from_host(executable, host), np.ones(8, np.float32)
    step = lambda at: executable.call("append", cache, x, np.array([at]))  # noqa: E731
    step(0)
    (result, twice), asked = changes(executable, lambda: step(2))
    assert result is cache and np.all(twice == 2)
    assert asked["allocations"] == asked["bytes_within"] == 0 and asked["launches"] > 0
    assert asked["bytes_in"] == 32 + 8 and asked["bytes_out"] == 32
    host[[0, 2]] = 1
    assert np.array_equal(cache.to_host(), host)
    # Given in memory of the host, the array is copied there and back.
    _, asked = changes(executable, lambda: executable.call("append", host, x, np.array([1])))
    assert asked["bytes_in"] == 96 + 40 and asked["bytes_out"] == 96 + 32


def test_arrays_keep_what_is_written(executable):
    cache = DeviceArray.zeros(executable, (2, 3, 4), np.int16)
    assert not cache.to_host().any()
    values = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    cache.write(values[:, ::-1])
    larger = cache.grown(1, 5)
    assert larger.shape == (2, 5, 4) and larger.nbytes == 80 and larger.strides == (40, 8, 2)
    assert np.array_equal(larger.to_host()[:, :3], values[:, ::-1]) and not larger.to_host()[:, 3:].any()
    assert DeviceArray.from_host(executable, np.float32(3)).to_host() == 3
    assert DeviceArray.zeros(executable, (0, 8), np.float32).to_host().shape == (0, 8)


def test_memory_goes_with_the_last_array():
    executable = Executable(MODULE, target=TARGET)
    cache = DeviceArray.zeros(executable, (1, 8), np.float32)
    del executable
    gc.collect()
    assert not cache.to_host().any()  # it holds its executable
    finalizer = cache._finalizer
    del cache
    gc.collect()
    assert not finalizer.alive


def test_errors(executable):
    cache, x, at = DeviceArray.zeros(executable, (3, 8), np.float32), np.ones(8, np.float32), np.array([0])
    cpu = Executable(MODULE)
    other = Executable(MODULE, target=TARGET)
    for wrong in (cpu, other):
        with pytest.raises(InputError, match="argument 0 of 'append': expected an array on the device of this executable"):
            wrong.call("append", cache, x, at)
    with pytest.raises(UsageError, match="expected a program on a device"):
        DeviceArray.zeros(cpu, (3, 8), np.float32)
    with pytest.raises(InputError, match="expected .*x8xf32.*, but got 3x4xf32"):
        executable.call("append", DeviceArray.zeros(executable, (3, 4), np.float32), x, at)
    with pytest.raises(InputError, match="expected a number in memory of the host, but got one on a device"):
        executable.call("number", DeviceArray.from_host(executable, np.float32(1)))
    with pytest.raises(InputError, match="copy it to the host first"):
        np.asarray(cache)
    with pytest.raises(InputError, match=r"expected \[3, 8\] of float32, but got \[3, 8\] of float64"):
        cache.write(np.zeros((3, 8)))
    with pytest.raises(InputError, match="expected axis 0 to grow from 3, but got 2"):
        cache.grown(0, 2)
    with pytest.raises(InputError, match="expected elements of .*, but got complex64"):
        DeviceArray(executable, (1,), np.complex64)


def test_a_step_is_one_launch_and_neither_allocates_nor_copies_caches(monkeypatch):
    monkeypatch.setattr(decoding, "LEAST_BUCKET", 8)
    cpu, sim = (diffattn.load(ROOT / "examples" / "tiny-lm", target=target) for target in ("cpu", TARGET))
    prompts = [cpu.tokenizer.encode(text)[:5] for text in ("In the beginning", "And the king said")]
    longest, tokens = max(map(len, prompts)), 9
    steps, capture, last = [], sim.executable.capture, sim.executable.traffic()

    def counted(entry, *arrays):
        nonlocal last
        assert entry == "decode" and all(isinstance(cache, DeviceArray) for cache in arrays[2:])
        call, capacity, last = capture(entry, *arrays), arrays[2].shape[2], sim.executable.traffic()

        class Counted:
            fallback_reason = call.fallback_reason

            def __call__(self):
                nonlocal last
                result = call()
                assert call.fallback_reason == ""
                steps.append((capacity, since(last, sim.executable), result[0].nbytes))
                last = sim.executable.traffic()  # what is between two calls counts too
                return result

        return Counted()

    monkeypatch.setattr(sim.executable, "capture", counted)
    assert list(sim.generate(prompts, tokens)) == list(cpu.generate(prompts, tokens))
    # The capacity doubles when it is full, and not before.
    capacities = [capacity for capacity, _, _ in steps]
    assert capacities == [8] * (8 - longest) + [16] * (tokens - 1 - (8 - longest))
    for before, (capacity, asked, logits) in zip([0, *capacities], steps):
        assert asked["bytes_in"] == 2 * 16 and asked["bytes_out"] == logits  # tokens and positions; logits
        assert asked["bytes_within"] == 0
        if before == capacity:
            assert asked["allocations"] == 0 and asked["launches"] == 1
        else:
            assert asked["launches"] > 40  # kernel by kernel, and captured then
