"""diffattn.attention on tensors of PyTorch, and the plans that calls of one kind share."""
import pathlib
import subprocess
import sys
import types

import ml_dtypes
import numpy as np
import pytest
import torch

import diffattn
from diffattn import _attention
from diffattn.errors import InputError, UsageError

pytestmark = pytest.mark.oracle


def operands(dtype=torch.float32, keys=7, seed=0):
    """q1, k1, q2, k2, v of two sequences, four signal heads and two of keys."""
    make = torch.Generator().manual_seed(seed)
    shapes = (2, 4, 5, 16), (2, 2, keys, 16), (2, 4, 5, 16), (2, 2, keys, 16), (2, 2, keys, 32)
    return [torch.randn(shape, generator=make).to(dtype) for shape in shapes]


def as_numpy(tensor):
    return tensor.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16) if tensor.dtype == torch.bfloat16 else tensor.detach().numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_give_a_tensor(dtype):
    tensors = operands(dtype)
    arrays = [as_numpy(t) for t in tensors]
    more = dict(attn_mask=torch.rand(5, 7) > 0.2, norm="rms", norm_weight=torch.rand(32), gate=torch.randn(2, 4, 5, 32).to(dtype),
                kv_len=torch.tensor([4, 7]), q_offset=torch.tensor(1), segment_ids=(torch.zeros(2, 5, dtype=torch.int32),) +
                (torch.randint(0, 2, (2, 7), dtype=torch.int32),))
    same = {name: tuple(map(as_numpy, x)) if isinstance(x, tuple) else as_numpy(x) if isinstance(x, torch.Tensor) else x
            for name, x in more.items()}
    for lam in (0.4, torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.rand(2, 5, 4).to(dtype), torch.tensor(0.3, dtype=torch.float64)):
        got = diffattn.attention(*tensors, lam, **more)
        assert type(got) is torch.Tensor and got.dtype == dtype and got.is_contiguous()
        want = diffattn.attention(*arrays, as_numpy(lam) if isinstance(lam, torch.Tensor) else lam, **same)
        assert type(want) is np.ndarray and np.array_equal(as_numpy(got).view(np.uint8), want.view(np.uint8))


def test_what_decides_is_q1():
    tensors = operands()
    arrays = [t.numpy() for t in tensors]
    expected = diffattn.attention(*arrays, 0.4)
    assert np.array_equal(diffattn.attention(arrays[0], *tensors[1:], 0.4), expected)
    mixed = diffattn.attention(tensors[0], *arrays[1:], 0.4)
    assert type(mixed) is torch.Tensor and np.array_equal(mixed.numpy(), expected)

    class Other:
        """Another library's array."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    foreign = diffattn.attention(*map(Other, arrays), 0.4)
    assert type(foreign) is np.ndarray and np.array_equal(foreign, expected)
    out = torch.full((2, 5, 4, 32), 7.0).transpose(1, 2)
    assert diffattn.attention(*map(Other, arrays), 0.4, out=out) is out and np.array_equal(out.numpy(), expected)


def test_kinds_of_tensors():
    tensors = operands()
    expected = diffattn.attention(*tensors, 0.4)
    parameters = [torch.nn.Parameter(t) for t in tensors]
    assert diffattn.attention(*parameters, 0.4).requires_grad
    with pytest.raises(InputError, match=r"k1: expected a tensor without gradient.*torch.no_grad\(\)"):
        diffattn.attention(tensors[0].numpy(), *parameters[1:], 0.4)
    with torch.no_grad():
        got = diffattn.attention(*parameters, 0.4, norm_weight=torch.nn.Parameter(torch.ones(32)), norm="rms")
        assert not got.requires_grad and type(got) is torch.Tensor
        assert torch.equal(diffattn.attention(*parameters, 0.4), expected)
    with torch.inference_mode():
        got = diffattn.attention(*[t + 0 for t in parameters], torch.nn.Parameter(torch.tensor(0.4)))
        assert got.is_inference() and torch.equal(got, expected)

    class Subclass(torch.Tensor):
        pass

    assert torch.equal(diffattn.attention(*[t.as_subclass(Subclass) for t in tensors], 0.4), expected)
    # Heads beside each other, as a projection has them, and a last axis that is not dense.
    strided = [torch.stack([t, t], -1).transpose(1, 2).contiguous().transpose(1, 2)[..., 0] for t in tensors]
    assert strided[0].stride()[-1] == 2 and torch.equal(diffattn.attention(*strided, 0.4), expected)
    empty = diffattn.attention(*[t[:0] for t in tensors], 0.4)
    assert type(empty) is torch.Tensor and empty.shape == (0, 4, 5, 32)


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch warns of its own functions
@pytest.mark.parametrize("name, bad, message", [
    ("q1", lambda t: t.to_sparse(), "q1: expected an array that can be exported by DLPack"),
    ("k1", lambda t: t.to("meta"), "k1: expected an array that can be exported by DLPack"),
    ("v", lambda t: t.to(torch.complex64), "v: expected elements of"),
    ("v", lambda t: t.to(torch.float8_e4m3fn), "v: expected "),
    ("k2", lambda t: t.double(), "k2: expected float32, float16 or bfloat16, but got float64"),
    ("k1", lambda t: t.to_mkldnn(), "k1: expected "),
    ("v", lambda t: t[0, 0].to_sparse_csr(), "v: expected "),
    ("q2", lambda t: torch.nested.nested_tensor([t[0], t[1]]), "q2: expected "),
    ("k2", lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), "k2: expected "),
])
def test_tensors_that_are_refused(name, bad, message):
    names = ("q1", "k1", "q2", "k2", "v")
    tensors = dict(zip(names, operands()))
    tensors[name] = bad(tensors[name])
    with pytest.raises(InputError, match=message):
        diffattn.attention(*tensors.values(), 0.4)


def test_tensors_of_transforms_are_refused():
    """vmap's tensors are of the class torch.Tensor, and have no memory."""
    tensors = operands()
    with pytest.raises(UsageError, match="q1: expected a tensor outside of torch.func's transforms"):
        torch.vmap(lambda q1: diffattn.attention(q1, *tensors[1:], 0.4))(torch.stack([tensors[0]] * 2))


def test_out_is_a_tensor():
    tensors = operands(torch.bfloat16)
    expected = diffattn.attention(*tensors, 0.4)
    out = torch.empty(2, 5, 4, 32, dtype=torch.bfloat16).transpose(1, 2)
    assert diffattn.attention(*tensors, 0.4, out=out) is out and torch.equal(out, expected)
    wide = torch.empty(2, 4, 5, 32)
    assert diffattn.attention(*tensors, 0.4, out=wide) is wide and torch.equal(wide.bfloat16(), expected)
    memory = torch.empty(2 * 4 * 5 * 16 + 2 * 4 * 5 * 32 - 1, dtype=torch.bfloat16)
    tensors[2], out = memory[: 2 * 4 * 5 * 16].view(2, 4, 5, 16), memory[2 * 4 * 5 * 16 - 1:].view(2, 4, 5, 32)
    with pytest.raises(InputError, match="out: expected an array that shares no element with q2"):
        diffattn.attention(*tensors, 0.4, out=out)
    with pytest.raises(InputError, match="out: expected elements that share no memory"):
        diffattn.attention(*tensors, 0.4, out=torch.empty(1, dtype=torch.bfloat16).expand(2, 4, 5, 32))


def test_a_plan_that_was_used_keeps_no_check():
    """Options that are equal but not the same, and what was given at another address."""
    q1, k1, q2, k2, v = operands()
    call = lambda **options: diffattn.attention(q1, k1, q2, k2, v, 0.4, **options)
    for good, bad in ((dict(scale=1.0), dict(scale=True)), (dict(is_causal=True), dict(is_causal=1)),
                      (dict(window=(1, 1)), dict(window=(1, True))), (dict(window=(1, 1)), dict(window=(1.0, 1))),
                      (dict(out_scale=1), dict(out_scale=True)), (dict(softcap=1.0), dict(softcap=True))):
        for _ in range(2):
            call(**good)
        with pytest.raises(UsageError):
            call(**bad)
    # Zero has a sign, and an array that counts as a number may change.
    assert torch.equal(torch.signbit(call(out_scale=0.0)), ~torch.signbit(call(out_scale=-0.0)))
    scale = np.array(0.5)
    first = call(scale=scale)
    scale[...] = 2.0
    assert torch.equal(call(scale=scale), call(scale=2.0)) and not torch.equal(call(scale=scale), first)
    # Calls that differ only in addresses, or in which options they give.
    shared = diffattn.attention(q1, k1, q2, k1, v, 0.4, scale=0.9)
    assert (call(scale=0.9) - shared).abs().max() > 1e-2
    torch.testing.assert_close(diffattn.attention(q1, k1, q2, k1.clone(), v, 0.4, scale=0.9), shared)
    torch.testing.assert_close(call(kv_len=2), diffattn.attention(q1, k1[:, :, :2], q2, k2[:, :, :2], v[:, :, :2], 0.4))
    visible = torch.arange(7)[None] <= torch.arange(5)[:, None] - 2
    torch.testing.assert_close(call(is_causal=True), call(attn_mask=torch.ones(5, 7, dtype=torch.bool).tril(2)))
    torch.testing.assert_close(call(is_causal=True, q_offset=-2), call(attn_mask=visible))
    with pytest.raises(InputError, match="kv_len: expected 0 to"):
        call(kv_len=torch.tensor([-1, 3]))
    with pytest.raises(UsageError, match="lam: expected a number that float32 holds"):
        diffattn.attention(q1, k1, q2, k2, v, 1e300)


def test_a_growing_cache_compiles_twice_and_keeps_few_plans(monkeypatch):
    monkeypatch.setattr(_attention, "_plans", {})
    monkeypatch.setattr(_attention, "_compiled", {})
    monkeypatch.setattr(_attention, "MOST_PLANS", 5)
    q1, k1, q2, k2, v = operands(keys=40)
    for keys in (*range(3, 40), *range(3, 40)):
        got = diffattn.attention(q1, k1[:, :, :keys], q2, k2[:, :, :keys], v[:, :, :keys], 0.4)
        expected = diffattn.attention(q1.numpy(), *[x[:, :, :keys].numpy() for x in (k1,)], q2.numpy(), k2[:, :, :keys].numpy(),
                                      v[:, :, :keys].numpy(), 0.4)
        assert np.array_equal(got.numpy(), expected) and len(_attention._plans) <= 5
    assert len(_attention._compiled) == 2  # for up to eight keys, and for more


def test_one_pool_of_threads():
    """PyTorch's OpenMP and ours, whichever came first: two would spin against each other."""
    code = """
import sys
for name in sys.argv[1:]: __import__(name)
import numpy as np, torch, diffattn
x = np.ones((1, 8, 64, 64), np.float32)
diffattn.attention(x, x, x, x, x, 0.3)
torch.ones(512, 512) @ torch.ones(512, 512)
loaded = {line.split()[-1] for line in open("/proc/self/maps") if "omp" in line.split()[-1].rsplit("/", 1)[-1]}
assert len(loaded) == 1, loaded
"""
    path = str(pathlib.Path(diffattn.__file__).parents[1])
    for order in (["torch", "diffattn.runtime"], ["diffattn.runtime", "torch"]):
        done = subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r})\n" + code, *order],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_stand_in_for_torch_is_no_torch(monkeypatch):
    """A module that calls itself torch, but has no tensors, changes nothing."""
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace())
    arrays = [t.numpy() for t in operands()]
    assert type(diffattn.attention(*arrays, 0.4)) is np.ndarray
