"""DLPack arrays of a CUDA device: used where they lie, exported for the stream that the call is launched on; and `out=`."""
import ctypes
import sys
import types

import numpy as np
import pytest
from test_device_arrays import MODULE, TARGET, changes

import diffattn
from diffattn import _attention
from diffattn.arrays import _DL_DTYPES, _DLTensor
from diffattn.runtime import DeviceArray, Executable, InputError, UsageError


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class CudaArray:
    """Another library's array, in memory of the simulated device: a view `index` of a `base` that was copied there."""

    def __init__(self, executable, base, index=(), ordinal=0):
        view = base[index]
        self.memory, self.ordinal, self.streams = DeviceArray.from_host(executable, base), ordinal, []
        self.offset = view.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        self.shape, self.dtype, self.strides = view.shape, view.dtype, view.strides
        self.index = index

    def to_host(self):
        return self.memory.to_host()[self.index]

    def __dlpack_device__(self):
        return 2, self.ordinal

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        code, bits = next(key for key, dtype in _DL_DTYPES.items() if np.dtype(dtype) == self.dtype)
        rank = len(self.shape)
        self.kept = sizes, steps = [(ctypes.c_int64 * rank)(*x) for x in (self.shape, [s // self.dtype.itemsize for s in self.strides])]
        self.managed = _Managed(_DLTensor(self.memory.address, 2, self.ordinal, rank, code, bits, 1, sizes, steps, self.offset))
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)


@pytest.fixture(scope="module")
def executable():
    return Executable(MODULE, target=TARGET)


def append(executable, cache, **options):
    x = CudaArray(executable, np.ones(8, np.float32))
    at = CudaArray(executable, np.array([0, 2]), np.s_[1:])
    return executable.call("append", cache, x, at, **options), x.streams, at.streams


@pytest.mark.parametrize("stream, used", [(None, 1), (0, 1), (0x70, 0x70), (types.SimpleNamespace(cuda_stream=0x80), 0x80)])
def test_stream_is_passed_on(executable, stream, used):
    cache = CudaArray(executable, np.zeros((3, 8), np.float32))
    ((result, twice), *streams), asked = changes(executable, lambda: append(executable, cache, stream=stream))
    assert result is cache and np.all(twice == 2)
    assert cache.streams == [used] and streams == [[used], [used]]
    assert cache.to_host().sum(1).tolist() == [0, 0, 8]
    # The arrays were used where they lie: `append` copied x and the position there itself, to make its arrays.
    assert asked["bytes_in"] == 32 + 16 and asked["bytes_within"] == 0 and asked["bytes_out"] == 32


def test_torch_tensors_use_its_current_stream(executable, monkeypatch):
    class Tensor(CudaArray):
        pass

    current = {0: 0x90}
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor, cuda=types.SimpleNamespace(
        current_stream=lambda ordinal: types.SimpleNamespace(cuda_stream=current[ordinal]))))
    for current[0], used in ((0x90, 0x90), (0, 1)):
        cache = Tensor(executable, np.zeros((3, 8), np.float32))
        _, *streams = append(executable, cache)
        assert cache.streams == [used] and streams == [[used], [used]]
    assert append(executable, DeviceArray.zeros(executable, (3, 8), np.float32))[1] == [1]


def test_errors(executable):
    cache = CudaArray(executable, np.zeros((3, 8), np.float32), ordinal=1)
    with pytest.raises(InputError, match="argument 0 of 'append': expected an array on device 0, for which the code was loaded, but got one on device 1"):
        append(executable, cache)
    with pytest.raises(InputError, match="expected a dense row-major array, because it is used in place on the device"):
        append(executable, CudaArray(executable, np.zeros((3, 9), np.float32), np.s_[:, 1:]))
    with pytest.raises(UsageError, match="stream: expected a CUstream as a number"):
        append(executable, CudaArray(executable, np.zeros((3, 8), np.float32)), stream="fast")
    cpu = Executable(MODULE)
    with pytest.raises(UsageError, match="stream: expected none with code for the CPU"):
        cpu.call("number", 1.0, stream=1)
    with pytest.raises(InputError, match="expected an array in host memory, but got one on a device"):
        cpu.call("append", CudaArray(executable, np.zeros((3, 8), np.float32)), np.ones(8, np.float32), np.array([0]))


@pytest.fixture
def tensors():
    rng = np.random.default_rng(4)
    qk, v = rng.normal(size=(2, 3, 20, 4, 32)).astype(np.float16), rng.normal(size=(1, 2, 20, 64)).astype(np.float16)
    # Heads in the third axis, as a projection has them.
    return [qk[0, 0][None, :, :2], qk[0, 1][None, :, :2], qk[0, 2][None, :, :2], qk[1, 0][None, :, :2]], v


def test_attention_on_device_arrays(tensors):
    views, v = tensors
    heads = lambda x: x.transpose(0, 2, 1, 3)  # noqa: E731
    host = [heads(x) for x in views]
    lam = np.array([0.2, 0.4], np.float32)
    mask = np.tril(np.ones((20, 20), bool))
    expected = diffattn.attention(*host, v, lam, attn_mask=mask, target=TARGET)
    executable = list(_attention._compiled.values())[-1]  # the arrays must lie on its device
    there = [CudaArray(executable, np.ascontiguousarray(x), ()) for x in views]
    for array in there:  # the view with the heads first
        array.shape, array.strides = (tuple(x[i] for i in (0, 2, 1, 3)) for x in (array.shape, array.strides))
    there += [CudaArray(executable, v), CudaArray(executable, lam)]
    where, out = CudaArray(executable, mask), CudaArray(executable, np.zeros((1, 2, 21, 64), np.float16), np.s_[:, :, 1:])
    before = executable.traffic()
    result = diffattn.attention(*there, attn_mask=where, target=TARGET, out=out, stream=0x70)
    after = executable.traffic()
    assert result is out and all(x.streams == [0x70] for x in (*there, where, out))
    assert (before.bytes_in, before.bytes_out, before.bytes_within) == (after.bytes_in, after.bytes_out, after.bytes_within)
    assert np.array_equal(out.to_host(), expected) and not out.memory.to_host()[:, :, 0].any()
    with pytest.raises(UsageError, match="out: expected an array on the device for the result"):
        diffattn.attention(*there, attn_mask=where, target=TARGET)
    # As PyTorch's tensors have it.
    there[0].new_empty = lambda shape: CudaArray(executable, np.zeros(shape, np.float16))
    made = diffattn.attention(*there, attn_mask=where, target=TARGET)
    assert np.array_equal(made.to_host(), expected) and made.streams == [1]


MASKS = {
    "lengths": ({"kv_len": np.array([13, 5])}, 2, None),
    "offsets": ({"kv_len": np.array([13, 20]), "q_offset": np.array([9, 16])}, 2, None),
    "sequences": ({"cu_seqlens_q": np.array([0, 3, 4], np.int32), "cu_seqlens_k": np.array([0, 13, 20])}, 1, None),
    "pages": ({"cu_seqlens_q": np.array([0, 3, 4], np.int32), "block_table": np.array([[3, 0], [4, 99]], np.int32), "kv_len": np.array([13, 2])}, 1, 8),
}


@pytest.mark.parametrize("name", MASKS)
def test_positions_and_tables_on_the_device(name):
    """They give what they give from memory of the host; what they hold is not looked at, and nothing is copied."""
    masks, batch, rows = MASKS[name]
    rng = np.random.default_rng(3)
    keys = (5, 2, rows) if rows else (batch, 2, 20)
    q1, q2 = rng.normal(size=(2, batch, 2, 4, 32)).astype(np.float16)
    k1, k2 = rng.normal(size=(2, *keys, 32)).astype(np.float16)
    arrays = [q1, k1, q2, k2, rng.normal(size=(*keys, 64)).astype(np.float16), np.array([0.2, 0.4], np.float32)]
    expected = diffattn.attention(*arrays, is_causal=True, **masks, target=TARGET)
    executable = list(_attention._compiled.values())[-1]
    there, out = [CudaArray(executable, array) for array in arrays], CudaArray(executable, np.zeros_like(expected))
    moved = {argument: CudaArray(executable, array) for argument, array in masks.items()}
    before = executable.traffic()
    assert diffattn.attention(*there, is_causal=True, **moved, target=TARGET, out=out, stream=0x70) is out
    after = executable.traffic()
    assert (before.bytes_in, before.bytes_out, before.bytes_within) == (after.bytes_in, after.bytes_out, after.bytes_within)
    assert np.array_equal(out.to_host(), expected) and all(array.streams == [0x70] for array in moved.values())
    # One of them alone, the others where the host checks them.
    for argument in masks:
        diffattn.attention(*there, is_causal=True, **{**masks, argument: moved[argument]}, target=TARGET, out=out)
        assert np.array_equal(out.to_host(), expected)
    with pytest.raises(InputError, match=f"{next(iter(masks))}: expected .* in memory of the host, as q1, but got an array on a device"):
        diffattn.attention(*arrays, is_causal=True, **{**masks, next(iter(masks)): moved[next(iter(masks))]}, target=TARGET)
    for argument in set(masks) & {"kv_len", "q_offset"}:
        for wrong in (masks[argument].astype(np.int32), masks[argument][:1]):
            with pytest.raises(InputError, match=rf"{argument}: expected int64 of shape \[2\] on a device, but got int"):
                diffattn.attention(*there, is_causal=True, **{**moved, argument: CudaArray(executable, wrong)}, target=TARGET, out=out)


def test_sinks_and_logarithms_on_device_arrays(tensors, monkeypatch):
    """Sinks are read where they lie, and new arrays of logarithms lie there too, as PyTorch's tensors have it."""
    views, v = tensors
    host = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in views]
    lam, sink, sink2 = (np.array(numbers, np.float32) for numbers in ([0.2, 0.4], [1.0, -2.0], [0.5, 3.0]))
    expected = diffattn.attention(*host, v, lam, sink=sink, sink2=sink2, return_lse=True, target=TARGET)
    executable = list(_attention._compiled.values())[-1]
    there, where = [CudaArray(executable, x) for x in (*host, v, lam)], dict(sink=CudaArray(executable, sink), sink2=CudaArray(executable, sink2))
    with pytest.raises(UsageError, match="return_lse: expected False, because q1 lies on a device and is not PyTorch's, but got True"):
        diffattn.attention(*there, **where, return_lse=True, out=CudaArray(executable, np.zeros_like(expected[0])), target=TARGET)
    torch = pytest.importorskip("torch")
    there[0].new_empty = lambda shape, dtype=None: CudaArray(executable, np.zeros(shape, np.float32 if dtype is torch.float32 else np.float16))
    monkeypatch.setattr(_attention, "is_tensor", lambda array: isinstance(array, CudaArray))
    monkeypatch.setattr(_attention, "_needs_gradient", lambda **_: False)
    got = diffattn.attention(*there, **where, return_lse=True, target=TARGET, stream=0x70)
    assert all(x.streams[-1] == 0x70 for x in (*there, *where.values(), *got))
    for one, other in zip(got, expected, strict=True):
        assert isinstance(one, CudaArray) and np.array_equal(one.to_host(), other)


@pytest.mark.parametrize("target", ["cpu", TARGET])
def test_out(tensors, target):
    views, v = tensors
    host = [x.transpose(0, 2, 1, 3) for x in views]
    expected = diffattn.attention(*host, v, 0.3, target=target)
    for out in (np.empty((1, 2, 20, 64), np.float16), np.full((1, 20, 3, 66), 7, np.float16)[:, :, 1:, 2:].transpose(0, 2, 1, 3)):
        assert diffattn.attention(*host, v, 0.3, target=target, out=out) is out
        assert np.array_equal(out, expected)
    assert np.all(out.base[:, :, 0] == 7) and np.all(out.base[:, :, :, :2] == 7)


def test_out_of_torch(tensors):
    import torch
    views, v = tensors
    host = [torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16).transpose(1, 2) for x in views]
    value = torch.from_numpy(v.astype(np.float32)).to(torch.bfloat16)
    out = torch.empty(1, 20, 2, 64, dtype=torch.bfloat16).transpose(1, 2)
    assert diffattn.attention(*host, value, 0.3, out=out) is out
    expected = diffattn.attention(*host, value, 0.3)
    assert expected.dtype == torch.bfloat16 and torch.equal(out, expected)


def test_out_is_checked(tensors):
    views, v = tensors
    host = [x.transpose(0, 2, 1, 3) for x in views]
    call = lambda out: diffattn.attention(*host, v, 0.3, out=out)  # noqa: E731
    with pytest.raises(InputError, match=r"out: expected shape \[1, 2, 20, 64\], but got \[1, 2, 20, 32\]"):
        call(np.empty((1, 2, 20, 32), np.float16))
    with pytest.raises(InputError, match="out: expected float16 or float32, but got float64"):
        call(np.empty((1, 2, 20, 64), np.float64))
    with pytest.raises(InputError, match="out: expected elements that share no memory"):
        call(np.lib.stride_tricks.as_strided(np.empty(64, np.float16), (1, 2, 20, 64), (0, 0, 0, 2)))
    with pytest.raises(InputError, match="out: expected an array that shares no element with v"):
        call(v)
    frozen = np.empty((1, 2, 20, 64), np.float16)
    frozen.flags.writeable = False
    with pytest.raises(InputError, match="out: expected a writable array"):
        call(frozen)
