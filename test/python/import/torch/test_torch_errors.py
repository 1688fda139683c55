"""Refusals of diffattn.compile, each by one error of the package; and what is read of texts of torch-mlir."""
import copy
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import diffattn
from diffattn import errors
from diffattn.runtime import Executable
from diffattn.torch import options, refusals

pytestmark = pytest.mark.oracle


class Gammas(nn.Module):
    def forward(self, x):
        y = x * 2
        return y.lgamma()


class Tripled(nn.Module):
    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, x):
        return self.op(x) * 3


@pytest.mark.parametrize("op, name", [(torch.lgamma, "aten.lgamma"), (torch.linalg.svdvals, "aten._linalg_svd"),
                                      (lambda x: x.scatter_reduce(0, x.long(), x, "amax"), "aten.scatter_reduce")])
def test_an_op_that_is_not_lowered(op, name):
    module = Tripled(op)
    with pytest.raises(errors.CompileError, match=rf"^\S+\.py:\d+: expected ops that torch-mlir lowers to upstream dialects, but got "
                                                  rf"{name}\.\w+; fallback='eager'"):
        diffattn.compile(module, (torch.rand(3, 3),), whole=True)


def test_an_op_with_effects():
    with pytest.raises(errors.CompileError, match=r"\.py:\d+: expected ops without effects, but got aten._linalg_check_errors.default"):
        diffattn.compile(Tripled(torch.linalg.inv), (torch.rand(3, 3),))


def test_the_line_of_an_op():
    line = Gammas.forward.__code__.co_firstlineno + 2
    with pytest.raises(errors.CompileError, match=rf"test_torch_errors\.py:{line}: "):
        diffattn.compile(Gammas(), (torch.rand(3, 3),), whole=True)


def test_a_view_without_elements():
    """torch-mlir would divide by its sizes. A graph that is to give it by itself, as a saved program's, has it."""
    program = torch.export.export(Tripled(lambda x: x.view(0, 5, 2, 4)), (torch.rand(0, 5, 8),)).run_decompositions({})
    with pytest.raises(errors.CompileError, match=r"test_torch_errors\.py:\d+: expected a view of elements, but got aten\.view\.default of \[0, 5, 8\] as "
                                                  r"\[0, 5, 2, 4\], without any; a size that may be 0 \(torch\.export\.Dim\(name, min=0\)"):
        refusals.refuse(program.graph)


def test_fallback():
    module = Gammas()
    with pytest.warns(RuntimeWarning, match="aten.lgamma"):
        assert diffattn.compile(module, (torch.rand(3),), fallback="eager", whole=True) is module


def test_dropout():
    with pytest.raises(errors.CompileError, match=r"expected a graph without random numbers, but got .*eval\(\)"):
        diffattn.compile(nn.Dropout(0.5), (torch.rand(3),), whole=True)
    diffattn.compile(nn.Dropout(0.5).eval(), (torch.rand(3),))


def nested(tensors):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning of a prototype
        return torch.nested.nested_tensor(tensors)


def quantized(tensor):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # will be removed
        return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


class Branches(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize("module, args, error, message", [
    (Branches(), (torch.rand(3),), errors.CompileError, "expected a module that torch.export exports, but it gave "),
    (nn.Linear(3, 3), (torch.rand(4),), errors.CompileError, "expected a module that torch.export exports, but it gave "),
    (nn.Linear(3, 3, device="meta"), (torch.rand(3),), errors.InputError, "weight: expected a tensor in memory of the host, but got one on meta"),
    (nn.ReLU(), (torch.eye(3).to_sparse(),), errors.InputError, r"args\[0\]: expected a dense tensor, but got one with layout torch.sparse_coo"),
    (nn.ReLU(), (nested([torch.rand(3)]),), errors.InputError, r"args\[0\]: expected a dense tensor, but got a nested one"),
    (nn.ReLU(), (torch.rand(3, device="meta"),), errors.InputError, r"args\[0\]: expected a tensor in memory of the host, but got one on meta"),
    (nn.Identity(), "x", errors.UsageError, "args: expected a tuple of example arguments, but got 'x'"),
    (len, (torch.rand(3),), errors.UsageError, "module: expected a torch.nn.Module, but got"),
])
def test_modules_and_examples(module, args, error, message):
    with pytest.raises(error, match=message):
        diffattn.compile(module, args)


def test_a_tensor_of_another_device():
    """As the checks see a GPU's: no such tensor can be made where PyTorch has no GPU."""
    with torch._subclasses.FakeTensorMode():
        there = torch.empty(3, device="cuda")
    with pytest.raises(errors.InputError, match=r"expected a tensor in memory of the host, but got one on cuda:0; copy it there, with cpu\(\)"):
        diffattn.compile(nn.ReLU(), (there,))


@pytest.mark.parametrize("call, message", [
    (lambda f: f(torch.rand(2, 3, dtype=torch.float64)), "input: expected elements of torch.float32, but got torch.float64"),
    (lambda f: f(torch.rand(3, 3)), r"input: expected shape \[2, 3\], but got \[3, 3\]"),
    (lambda f: f(torch.rand(2)), r"input: expected shape \[2, 3\], but got \[2\]"),
    (lambda f: f(np.ones((2, 3), np.float32)), "input: expected a tensor, but got a ndarray"),
    (lambda f: f(torch.rand(2, 3, device="meta")), "input: expected a tensor in memory of the host, but got one on meta"),
    (lambda f: f(torch.rand(2, 3).to_sparse()), "input: expected a dense tensor"),
    (lambda f: f(quantized(torch.rand(2, 3))), r"input: expected a dense tensor, but got a quantized one; dequantize\(\) makes one"),
    (lambda f: f(nested([torch.rand(3), torch.rand(2)])), r"input: expected a dense tensor, but got a nested one; to_padded_tensor\(\) makes one"),
    (lambda f: f(torch._subclasses.FakeTensorMode().from_tensor(torch.rand(2, 3))), "input: expected a tensor in memory of the host, but got a FakeTensor"),
    (lambda f: torch.vmap(f)(torch.rand(4, 2, 3)), "input: expected a tensor, but got one inside of torch.vmap"),
    (lambda f: f(torch.imag(torch.rand(2, 3, dtype=torch.complex64).conj())), "input: expected a tensor whose memory holds its values"),
    (lambda f: f(), r"expected arguments of the structure that the module was compiled for, \(\*\), but got \(\)"),
    (lambda f: f(torch.rand(2, 3), 1), r"but got \(\*, \*\)"),
    (lambda f: f(torch.rand(2, 3), more=1), r"but got \(\*, more=\*\)"),
])
def test_calls(call, message):
    compiled = diffattn.compile(nn.Linear(3, 4), (torch.rand(2, 3),))
    with pytest.raises(errors.InputError, match=message):
        call(compiled)
    with torch.no_grad():
        compiled(torch.rand(2, 3))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies(copied):
    with pytest.raises(TypeError, match="expected what can be copied, but got a compiled module; copy the module, and compile the copy"):
        copied(diffattn.compile(nn.ReLU(), (torch.rand(3),)))


def test_a_weight_of_another_shape():
    module = nn.Linear(3, 4)
    compiled = diffattn.compile(module, (torch.rand(2, 3),))
    for weight in (torch.rand(5, 3), torch.rand(4, 3, dtype=torch.float64), torch.rand(4, 3, device="meta")):
        module.weight = nn.Parameter(weight)
        with pytest.raises(errors.InputError, match="weight: expected "):
            compiled(torch.rand(2, 3))


def test_a_weight_that_is_gone():
    module = nn.Sequential(nn.Linear(3, 4))
    compiled = diffattn.compile(module, (torch.rand(2, 3),))
    for gone in ("0.bias", "0"):
        owner, _, name = gone.rpartition(".")
        delattr(module.get_submodule(owner), name)
        with pytest.raises(errors.InputError, match=r"^0\.(bias|weight): expected the tensor that the module had when it was compiled, but it has none"):
            compiled(torch.rand(2, 3))


def test_an_index_that_is_outside():
    compiled = diffattn.compile(nn.Embedding(5, 2), (torch.tensor([1, 2]),))
    with torch.no_grad(), pytest.raises(errors.RunError):
        compiled(torch.tensor([1, 5]))


def in_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)


def test_diffattn_does_not_import_torch():
    done = in_python("import diffattn, sys; dir(diffattn); diffattn.compile; assert not {'torch', 'torch_mlir'} & set(sys.modules), 'imported'")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("missing, version, message", [
    ("torch_mlir", (3, 11), "LibraryError: expected the package torch-mlir, .*; pip install 'diffattn\\[torch\\]'"),
    ("torch_mlir", (3, 9), "LibraryError: expected the package torch-mlir, .* torch-mlir is made for Python 3.10 and later, and this is 3.9"),
])
def test_packages_that_are_missing(missing, version, message, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(sys, "version_info", version)
    options.require.cache_clear()
    with pytest.raises(errors.LibraryError, match=message.removeprefix("LibraryError: ")):
        diffattn.compile(nn.ReLU(), (torch.rand(3),))
    options.require.cache_clear()


def test_torch_that_is_missing():
    done = in_python("import sys; sys.modules['torch'] = None\nimport diffattn\ndiffattn.compile(None, ())")
    assert "LibraryError: expected the package torch, " in done.stderr and "pip install 'diffattn[torch]'" in done.stderr


def test_versions_that_were_not_tried(monkeypatch):
    monkeypatch.setitem(options.TRIED, "torch-mlir", ("20990101",))
    options.require.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"diffattn was tried with torch 2\.13 or 2\.15, torch-mlir 20990101, but this is torch-mlir \d+"):
        options.require()
    options.require()  # said once
    monkeypatch.undo()
    options.require.cache_clear()
    options.require()


@pytest.mark.parametrize("sizes", [(7,), (3, 5), (2, 3, 11)])
@pytest.mark.parametrize("packed", [False, True])
def test_truth_values_as_hex(sizes, packed):
    values = np.random.default_rng(0).integers(0, 2, sizes).astype(bool)
    data = np.packbits(values.ravel(), bitorder="little") if packed else values.astype(np.uint8)
    kind = "x".join(map(str, sizes)) + "xi1"
    text = (f'func.func @main() -> tensor<{kind}> {{\n  %0 = arith.constant dense<"0x{data.tobytes().hex().upper()}"> : tensor<{kind}>\n'
            f'  return %0 : tensor<{kind}>\n}}')
    np.testing.assert_array_equal(Executable(text, cache=False).call("main")[0], values)
