"""Arguments that share memory: refused where one is updated in place, taken where both are only read."""
import numpy as np
import pytest

from diffattn import bundle, runtime
from diffattn.runtime import Executable, InputError

MODULE = """
#back = affine_map<(i) -> (63 - i)>
#id = affine_map<(i) -> (i)>
func.func @reverse(%a: tensor<64xf32> {bufferization.writable = true}, %b: tensor<64xf32>) -> tensor<64xf32> {
  %r = linalg.generic {indexing_maps = [#back, #id], iterator_types = ["parallel"]} ins(%b : tensor<64xf32>) outs(%a : tensor<64xf32>) {
    ^bb0(%p: f32, %q: f32):
      %s = arith.addf %p, %q : f32
      linalg.yield %s : f32
  } -> tensor<64xf32>
  return %r : tensor<64xf32>
}
func.func @sum(%a: tensor<64xf32>, %b: tensor<64xf32>) -> tensor<64xf32> {
  %r = arith.addf %a, %b : tensor<64xf32>
  return %r : tensor<64xf32>
}
func.func @copy(%a: memref<8xf32, strided<[?]>>, %b: memref<8xf32, strided<[?]>>) {
  linalg.copy ins(%a : memref<8xf32, strided<[?]>>) outs(%b : memref<8xf32, strided<[?]>>)
  return
}"""
READ = """
func.func @first(%a: memref<8xf32, strided<[?]>>, %b: memref<8xf32, strided<[?]>>) -> f32 {
  %c0 = arith.constant 0 : index
  %x = memref.load %a[%c0] : memref<8xf32, strided<[?]>>
  %y = memref.load %b[%c0] : memref<8xf32, strided<[?]>>
  %z = arith.addf %x, %y : f32
  return %z : f32
}"""
SHARES = r"argument {} of '{}': expected an array that shares no memory with argument {}, which is updated in place, but got one that"


@pytest.fixture(scope="module")
def executable():
    return Executable(MODULE + READ, cache=False)


def test_an_array_that_is_updated(executable):
    z = np.arange(64, dtype=np.float32)
    for a, b in ((z, z), (z, z[::-1]), (np.arange(100, dtype=np.float32)[:64], None)):
        b = a.base[36:] if b is None else b
        before = a.copy()
        with pytest.raises(InputError, match=SHARES.format(1, "reverse", 0)):
            executable.call("reverse", a, b)
        np.testing.assert_array_equal(a, before)
    both = np.arange(128, dtype=np.float32)
    executable.call("reverse", both[:64], both[64:])
    np.testing.assert_array_equal(both[:64], np.full(64, 127))


def test_arrays_that_are_read(executable):
    z = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(executable.call("sum", z, z)[0], 2 * z)
    np.testing.assert_array_equal(executable.call("sum", z, z[::-1])[0], np.full(64, 63, np.float32))


def test_memrefs(executable):
    z = np.arange(17, dtype=np.float32)
    # Elements of one that lie between those of the other are not shared.
    executable.call("copy", z[0:16:2], z[1:16:2])
    np.testing.assert_array_equal(z[:16], np.repeat(np.arange(0, 16, 2), 2))
    for source in (z[1:9], z[2:17:2], z[9:1:-1]):
        with pytest.raises(InputError, match=r"argument 0 of 'copy': expected an array that shares no memory with argument 1"):
            executable.call("copy", source, z[8:16])
    with pytest.raises(InputError, match="argument 1 of 'copy': expected elements that share no memory"):
        executable.call("copy", np.ones(8, np.float32), np.broadcast_to(z[:1], (8,)))
    # Both are only read.
    assert executable.call("first", z[3:11], z[3:11])[0] == 2 * z[3]
    assert executable.call("first", np.broadcast_to(z[2:3], (8,)), z[3:11])[0] == z[2] + z[3]


def test_on_a_device():
    executable = Executable(MODULE, cache=False, target="cuda-sim:sm_80")
    z = np.arange(64, dtype=np.float32)
    with pytest.raises(InputError, match=SHARES.format(1, "reverse", 0)):
        executable.call("reverse", z, z)
    there = runtime.DeviceArray.from_host(executable, z)
    with pytest.raises(InputError, match=SHARES.format(1, "reverse", 0)):
        executable.call("reverse", there, there)
    with pytest.raises(InputError, match=SHARES.format(1, "reverse", 0)):
        executable.capture("reverse", there, there)
    executable.call("reverse", there, z)


def test_in_a_bundle(tmp_path):
    runtime.write_bundle(MODULE, tmp_path / "b", cache=False)
    opened = bundle.load(tmp_path / "b")
    z = np.arange(64, dtype=np.float32)
    with pytest.raises(InputError, match=SHARES.format(1, "reverse", 0)):
        opened.call("reverse", z, z)
    np.testing.assert_array_equal(opened.call("sum", z, z)[0], 2 * z)
