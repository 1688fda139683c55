"""Complex numbers in graphs of PyTorch, against eager PyTorch."""
import copy
import math

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn
from torch.utils import _pytree as pytree

import diffattn
from diffattn import cli, errors
from diffattn.runtime import Executable
from each import Each

pytestmark = pytest.mark.oracle
F = nn.functional


def close(got, want, rtol=1e-5, atol=1e-5, of=""):
    for one, other in zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True):
        torch.testing.assert_close(one.resolve_conj().resolve_neg(), other.resolve_conj().resolve_neg(), rtol=rtol, atol=atol, equal_nan=True, msg=lambda text: f"{of}: {text}")


#: Functions of complex z and w [3, 4] and of real x [3, 4].
OPS = {
    "product": lambda z, w, x: z * w, "x z": lambda z, w, x: x * z, "z x": lambda z, w, x: z.mul(x), "conjugates": lambda z, w, x: (z.conj() * w, z.conj().imag, z.conj().conj() * 1, z.conj() * x, z.conj_physical()),
    "numbers": lambda z, w, x: (z * 2, z * 1j, x * 1j, z * (2 - 1j), 1j * x), "real": lambda z, w, x: (z.real, z.imag, torch.real(x)),
    "made": lambda z, w, x: (torch.complex(x, x[:, :1]), torch.polar(x.abs(), x), torch.exp(1j * x), torch.exp(z), z * x.double()),
    "axes": lambda z, w, x: (z.T * w.T, z.permute(1, 0).reshape(-1), z.flatten(), z.unsqueeze(-1) * w[0], z.movedim(0, -1), z.T.contiguous()),
    "repeated": lambda z, w, x: (z[:, :1].expand(-1, 4), z.expand(2, 3, 4)), "pieces": lambda z, w, x: (z[1:, ::2], z[0], z[..., -1]),
    "read": lambda z, w, x: (z.index_select(0, torch.tensor([1, 0, 1])), z[torch.tensor([[1, 0], [0, 1]])], z[torch.tensor([1, 0]), torch.tensor([0, 3])]),
    "pairs": lambda z, w, x: (torch.view_as_real(z), torch.view_as_complex(torch.stack([x, x * 2], -1)), torch.view_as_complex(x.reshape(3, 2, 2))),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_ops(dtype):
    torch.manual_seed(0)
    z, w = torch.randn(2, 3, 4, dtype=dtype)
    args = z, w, torch.randn(3, 4, dtype=z.real.dtype)
    got, exact = diffattn.compile(Each(OPS), args, whole=True)(*args), 1e-10 if dtype == torch.complex128 else 1e-5
    for name, function in OPS.items():
        close(got[name], function(*args), exact, exact, name)


def test_sizes_that_are_symbols():
    functions = {name: OPS[name] for name in ("product", "numbers", "conjugates", "axes", "pairs", "read")}
    made = lambda n: (*torch.randn(2, n, 4, dtype=torch.complex64), torch.randn(n, 4))
    functions["pairs"] = lambda z, w, x: torch.view_as_real(z)
    compiled = diffattn.compile(Each(functions), made(3), dynamic_shapes={"args": tuple({0: torch.export.Dim("n")} for _ in range(3))})
    for n in (3, 5):
        args = made(n)
        got = compiled(*args)
        for name, function in functions.items():
            close(got[name], function(*args), of=name)


def test_a_real_factor_scales_both_parts():
    """An infinite factor too, where PyTorch's own kernel gives NaN; an imaginary one is complex."""
    z = torch.tensor([complex(math.inf, 1), 1 + 2j])
    got = diffattn.compile(Each({"x": lambda x, z: x * z, "j": lambda x, z: z * 1j}), (torch.ones(2), z))(torch.tensor([2.0, 2]), z)
    assert got["x"].tolist() == [complex(math.inf, 2), 2 + 4j]
    close(got["j"], z * 1j)


def test_other_ops_stay_in_pytorch():
    others = {"sum": lambda z, w, x: z + w, "quotient": lambda z, w, x: z / w, "powers": lambda z, w, x: (z**2, z**0.5), "abs": lambda z, w, x: (z.abs(), z.angle(), z.sgn()), "equal": lambda z, w, x: (z == w, z.bool(), torch.isclose(z, w)),
              "products": lambda z, w, x: (z @ w.mT, torch.einsum("ij,kj->ik", z, w.conj())), "joined": lambda z, w, x: (torch.cat([z, w], -1), torch.cat([x, z]), z.split(2, -1), z.unbind(0), z.unsqueeze(1).squeeze()), "converted": lambda z, w, x: (z.to(torch.complex128), x.to(z.dtype)), "rows": lambda z, w, x: F.embedding(torch.tensor([1, 0]), z),
              "along": lambda z, w, x: (z.sum(), z.mean(-1), z.cumsum(-1), z.prod(-1), z.var()), "where": lambda z, w, x: torch.where(x > 0, z, w), "turned": lambda z, w, x: z.reciprocal(),
              "written": lambda z, w, x: (z.index_add(0, torch.tensor([0, 0]), w[:2]), z.index_copy(0, torch.tensor([1, 0]), w[:2]), z.clone().mul_(w).add_(1))}
    args = *torch.randn(2, 3, 4, dtype=torch.complex64), torch.randn(3, 4)
    with pytest.warns(RuntimeWarning, match="runs? in PyTorch"):
        compiled = diffattn.compile(Each({**others, **OPS}), args)
    for name, function in {**others, **OPS}.items():
        close(compiled(*args)[name], function(*args), of=name)


def angles(dim, end):
    frequencies = torch.outer(torch.arange(end).float(), 10000.0 ** (-torch.arange(0, dim, 2).float() / dim))
    return torch.polar(torch.ones_like(frequencies), frequencies)


class Rotary(nn.Module):
    """Differential attention with Llama's rotary embedding. `form`: where the angles come from."""

    def __init__(self, form="buffer", heads=2, width=16, end=32):
        super().__init__()
        self.form, self.heads, self.width = form, heads, width
        self.q, self.k, self.v = (nn.Linear(2 * heads * width, 2 * heads * width, bias=False) for _ in range(3))
        self.lam = nn.Parameter(torch.tensor(0.3))
        self.register_buffer("freqs_cis", angles(width, end), persistent=form == "persistent")

    def turned(self, x, cis):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * cis[:, :, None]).flatten(3).type_as(x).transpose(1, 2)

    def forward(self, x, places=None):
        (batch, length, _), width = x.shape, self.width
        if self.form == "places":
            cis = self.freqs_cis[places]
        elif self.form == "computed":
            cis = torch.exp(1j * torch.outer(torch.arange(length), 10000.0 ** (-torch.arange(0, width, 2) / width)))[None]
        else:
            cis = self.freqs_cis[:length].unsqueeze(0)
        q, k = (self.turned(proj(x).view(batch, length, 2 * self.heads, width), cis) for proj in (self.q, self.k))
        v = self.v(x).view(batch, length, self.heads, 2 * width).transpose(1, 2)
        hidden = torch.full((length, length), float("-inf")).triu(1)
        first, second = ((a @ b.mT / width**0.5 + hidden).softmax(-1) for a, b in zip((q[:, ::2], q[:, 1::2]), (k[:, ::2], k[:, 1::2])))
        return ((first - self.lam * second) @ v).transpose(1, 2).flatten(2)


def places_of(b, t):
    return (torch.arange(t).expand(b, t) + 3,)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form, more", [("buffer", lambda b, t: ()), ("places", places_of)], ids=["buffer", "places"])
@torch.no_grad()
def test_rotary_embeddings(form, more):
    torch.manual_seed(0)
    module, sizes = Rotary(form).eval(), {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=29)}
    compiled = diffattn.compile(module, (torch.randn(2, 9, 64), *more(2, 9)), dynamic_shapes=(sizes,) * (1 + len(more(2, 9))))
    assert "two maps became one" in str(compiled.applied[0]) and not compiled.diagnostics
    for b, t in ((2, 9), (3, 17)):
        args = torch.randn(b, t, 64), *more(b, t)
        close(compiled(*args), module(*args), 1e-4)


def test_rotary_embeddings_that_are_computed(programs):
    module = Rotary("computed").eval()
    with torch.no_grad():
        called = torch.compile(module, backend="diffattn")
        for length in (9, 17):
            x = torch.randn(2, length, 64)
            close(called(x), module(x), 1e-4)
    assert all("two maps became one" in str(one.applied[0]) for one in programs)


class Held(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64)), torch.tensor(2j)
        self.register_buffer("bias", torch.randn(4, dtype=torch.complex64))
        self.register_buffer("wide", torch.randn(8, dtype=torch.complex128)[::2], persistent=False)
        self.row = torch.randn(4, dtype=torch.complex64)

    def forward(self, x):
        return (x * self.weight[:, :2].T * self.bias * self.row * torch.tensor([1j, 2, 3, 4]) * self.scale, self.wide * 1j)


@pytest.mark.parametrize("compiled", [lambda module, *args: diffattn.compile(module, args), lambda module, *args: torch.compile(module, backend="diffattn")], ids=["ahead", "called"])
def test_weights(compiled, programs):
    module, x = Held(), torch.randn(2, 4, dtype=torch.complex64)
    call = compiled(module, x)

    def set_bias(value):
        module.bias = value

    with torch.no_grad():
        for change in (lambda: None, lambda: module.bias.mul_(2j), lambda: torch.view_as_real(module.weight).zero_(), lambda: setattr(module.weight, "data", torch.randn(3, 4, dtype=torch.complex64).mT),
                       lambda: set_bias(torch.randn(4, 5, dtype=torch.complex64)[:, 2])):
            change()
            close(call(x), module(x))
        if isinstance(call, diffattn.torch.export.CompiledModule):
            set_bias(torch.randn(4, dtype=torch.complex64).conj())
            close(call(x), module(x))
            module.bias.add_(1)
            close(call(x), module(x))


def test_arguments_and_results():
    function = lambda z: (z * 2, z, z.real, torch.view_as_real(z.resolve_conj()), z.conj(), z.T * 1j)
    z = torch.randn(4, 4, dtype=torch.complex64)
    compiled = diffattn.compile(Each({"all": function}), (z.conj(),))
    for one in (z, z.conj(), z.mT, z.mH, z[:1].expand(4, 4), torch.randn(8, 9, dtype=torch.complex64)[::2, 1::2], torch._neg_view(z), torch._neg_view(z.conj())):
        close(compiled(one)["all"], function(one.resolve_neg()))
    assert compiled(z)["all"][-1].stride() == (1, 4) and compiled(z)["all"][1] is z
    for wrong, message in ((z.real, "expected elements of torch.complex64, but got torch.float32"), (z[:3], r"expected shape \[4, 4\], but got \[3, 4\]"), (z.to(torch.complex128), "but got torch.complex128")):
        with pytest.raises(errors.InputError, match=message):
            compiled(wrong)
    pairs = diffattn.compile(Each({"half": lambda x: torch.view_as_complex(x) * 2}), (torch.ones(3, 2).half(),))(torch.ones(3, 2).half())["half"]
    assert pairs.dtype == torch.complex32 and torch.view_as_real(pairs).tolist() == [[2, 2]] * 3


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_an_argument(dynamic, programs):
    function = lambda z: (z * 2, z.real, z.imag[1:], torch.view_as_real(z), z.mT, z[1:, ::2], *(() if dynamic else (z.conj(), z.mH)))
    called = torch.compile(function, backend="diffattn", dynamic=dynamic)
    with torch.no_grad():
        for z in (torch.randn(4, 6, dtype=torch.complex64), torch.randn(9, 12, dtype=torch.complex64)[1::2, ::2]):
            got, want = called(z), function(z)
            close(got, want)
            z.mul_(1 + 2j)
            close(got[1:], want[1:])
        with pytest.raises(errors.CompileError, match="expected a tensor whose memory holds its values, but got a lazy view"):
            torch.compile(lambda z: z * 2, backend="diffattn")(z.conj())


@pytest.mark.parametrize("dynamic", [False, True])
def test_complex_views_of_a_real_argument(dynamic, programs):
    function = lambda x: (torch.view_as_complex(x)[1:], torch.view_as_complex(x).mT, torch.view_as_real(torch.view_as_complex(x)), x * 2)
    called = torch.compile(function, backend="diffattn", dynamic=dynamic)
    with torch.no_grad():
        for x in (torch.randn(4, 3, 2), torch.randn(7, 8, 2)[1::2, 2:]):
            got, want = called(x), function(x)
            x.mul_(3)
            close(got, want)


def test_parts_are_tensors_of_their_own():
    function = lambda x, y: (torch.complex(y, x[:, 0]).real, torch.cat([y[..., None], y.double()[..., None]], -1)[..., 0], torch.view_as_real(torch.view_as_complex(x)))
    args = torch.randn(3, 2), torch.randn(3)
    compiled = diffattn.compile(Each({"": function}), args)(*args)[""]
    close(compiled, function(*args))
    assert all(made.data_ptr() != given.data_ptr() for made in compiled for given in args) and compiled[1].dtype == torch.float64


def place(cache, key, at):
    cache.index_copy_(1, at, key * 1j)
    return cache.sum(1)


def turn(cache, key, at):
    return cache.mul_(torch.exp(1j * key.real)).real


class Changes(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.register_buffer("cache", torch.ones(2, 8, 3, dtype=torch.complex64))

    def forward(self, key, at):
        return self.function(self.cache, key, at)


@pytest.mark.parametrize("function", [place, turn])
def test_caches(function):
    """Written by PyTorch, in their own memory."""
    module, key = Changes(function), lambda: torch.randn(2, 1, 3, dtype=torch.complex64)
    kept, memory = copy.deepcopy(module), module.cache.data_ptr()
    compiled, called = diffattn.compile(module, (key(), torch.tensor([3]))), torch.compile(kept, backend="diffattn")
    for at in (3, 5, 3):
        args, like = (key(), torch.tensor([at])), copy.deepcopy(module)
        with torch.no_grad():
            want = like(*args)
            close(compiled(*args), want)
            close(called(*args), want)
        close([module.cache, kept.cache], [like.cache, like.cache])
    assert module.cache.data_ptr() == memory
    module.cache = module.cache.conj()
    like = copy.deepcopy(module)
    close(compiled(*args), like(*args))
    close(module.cache, like.cache)


def test_without_elements():
    function = lambda z: (z * 1j, torch.cat([z, torch.ones(2, 3, dtype=z.dtype)]), torch.view_as_real(z))
    compiled = diffattn.compile(Each({"all": function}), (torch.randn(2, 3, dtype=torch.complex64),), dynamic_shapes={"args": ({0: torch.export.Dim("n", min=0)},)})
    for n in (0, 1, 5):
        z = torch.randn(n, 3, dtype=torch.complex64)
        close(compiled(z)["all"], function(z))
    close(diffattn.compile(Each({"all": function}), (z[:0],))(z[:0])["all"], function(z[:0]))


def test_a_saved_program(tmp_path):
    torch.manual_seed(0)
    module, x = Held(), torch.randn(2, 4, dtype=torch.complex64)
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "m.pt2")
    assert cli.main(["import", str(tmp_path / "m.pt2"), "-o", str(tmp_path / "m.mlir"), f"--weights={tmp_path / 'm.safetensors'}"]) == 0
    weights = load_file(tmp_path / "m.safetensors")
    assert weights["weight"].shape == (4, 3, 2) and weights["wide"].dtype == np.float64
    program = Executable((tmp_path / "m.mlir").read_text(), weights=[tmp_path / "m.safetensors"])
    got = program.call("main", torch.view_as_real(x).numpy())
    close([torch.from_numpy(one) for one in got], [torch.view_as_real(one.detach()) for one in module(x)])


def test_what_is_refused():
    with pytest.raises(errors.CompileError, match=r"\.py:\d+: expected an op that is compiled for complex numbers, but got aten.asinh.default; write it with real ones, or fallback='eager'"):
        diffattn.compile(Each({"": lambda z: z.asinh()}), (torch.randn(3, 3, dtype=torch.complex64),), whole=True)
