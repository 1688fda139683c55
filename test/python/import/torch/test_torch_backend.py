"""torch.compile(backend="diffattn"): one graph for several weights, weights that change, sizes, changes in place, and its errors."""
import contextlib
import gc
import os
import pathlib
import subprocess
import sys
import types
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import diffattn
from diffattn import runtime
from diffattn.torch import graph_reports

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("programs")]


def same(got, want, tolerance=1e-4):
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def run_layer(layer, x):
    return layer(x) * 2


def test_it_is_listed():
    assert "diffattn" in torch.compiler.list_backends()


ON_PYTHONPATH = """
import importlib.metadata, sys
import torch, diffattn.torch
try:
    importlib.metadata.version("diffattn")
    sys.exit("metadata was found")
except importlib.metadata.PackageNotFoundError:
    pass
assert "torch._dynamo" not in sys.modules
from diffattn.torch.backend import backend
with torch.no_grad():
    assert torch.compile(lambda x: x + 1, backend=backend, options={"threads": 1})(torch.ones(2)).tolist() == [2, 2]
"""


def test_as_a_function(root, build_dir, tmp_path):
    """As where the package is on PYTHONPATH alone, so that PyTorch does not know its name."""
    for entry in pathlib.Path(torch.__file__).parents[1].iterdir():
        if "diffattn" not in entry.name and entry.suffix != ".pth":
            (tmp_path / entry.name).symlink_to(entry)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "python"), str(tmp_path)]), "DIFFATTN_BUILD_DIR": str(build_dir)}
    done = subprocess.run([sys.executable, "-S", "-c", ON_PYTHONPATH], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_one_graph_with_other_weights(programs, mode):
    compiled, x = torch.compile(run_layer, backend="diffattn"), torch.randn(5, 64)
    layers = [nn.Linear(64, 96) for _ in range(3)]
    with mode():
        for layer in [*layers, *layers]:
            same(compiled(layer, x), run_layer(layer, x))
        assert len(programs) == 1
        runtime.reset_counters()
        for layer in layers:
            compiled(layer, x)
        assert runtime.counters().packs == 0
        layers[1].weight.mul_(3)
        layers[2].bias.add_(1)
        for layer in layers:
            same(compiled(layer, x), run_layer(layer, x))
        assert len(programs) == 1


def test_a_freed_weight_whose_address_is_used_again(programs):
    compiled, x = torch.compile(run_layer, backend="diffattn"), torch.randn(5, 64)
    addresses = set()
    with torch.no_grad():
        for _ in range(8):
            layer = nn.Linear(64, 96)
            addresses.add(layer.weight.data_ptr())
            same(compiled(layer, x), run_layer(layer, x))
            del layer
            gc.collect()
            assert programs[0].weight_sets.count == 0
    assert len(programs) == 1 and len(addresses) < 8


def test_storage_that_is_exchanged(programs):
    """The address, the version and the shape are the same; only the storage tells."""
    compiled, x, layer = torch.compile(run_layer, backend="diffattn"), torch.randn(5, 64), nn.Linear(64, 96)
    with torch.no_grad():
        same(compiled(layer, x), run_layer(layer, x))
        memory = np.ones((96, 64), np.float32)
        for number in (1, 2):
            memory[:] = number
            version = layer.weight._version
            layer.weight.data = torch.from_numpy(memory)
            assert layer.weight.data_ptr() == memory.ctypes.data and layer.weight._version == version
            same(compiled(layer, x), run_layer(layer, x))
    assert len(programs) == 1


def test_weights_that_change_without_a_version(programs):
    compiled, x, layer = torch.compile(run_layer, backend="diffattn"), torch.randn(5, 64), nn.Linear(64, 96)
    with torch.no_grad():
        same(compiled(layer, x), run_layer(layer, x))
        layer.weight.data.mul_(3)
        diffattn.torch.refresh()
        same(compiled(layer, x), run_layer(layer, x))


def test_inference_tensors_have_no_version(programs):
    with torch.inference_mode():
        layer, x = nn.Linear(64, 96), torch.randn(5, 64)
        compiled = torch.compile(run_layer, backend="diffattn")
        same(compiled(layer, x), run_layer(layer, x))
        layer.weight.mul_(2)
        diffattn.torch.refresh()
        same(compiled(layer, x), run_layer(layer, x))


def test_sizes_that_change(programs):
    module = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    compiled = torch.compile(module, backend="diffattn", dynamic=True)
    with torch.no_grad():
        for shape in ((2, 3, 8), (4, 7, 8), (3, 2, 8)):
            x = torch.randn(shape)
            same(compiled(x), module(x))
    assert len(programs) == 1


def test_numbers_views_and_changes_in_place(programs):
    def f(x, n, cache, flag=None):
        cache[:, n:] += x.sum()
        y = x.t()
        return y, y[1:] * n, cache[0], None, n + 1

    compiled = torch.compile(f, backend="diffattn", dynamic=True)
    with torch.no_grad():
        for n in (2, 3, 5):
            x, caches = torch.randn(3, 4), [torch.ones(2, 9) for _ in range(2)]
            got, want = compiled(x, n, caches[0]), f(x, n, caches[1])
            same(got, want)
            same(caches[0], caches[1])
            assert got[0].data_ptr() == x.data_ptr() and got[2].data_ptr() == caches[0].data_ptr()


def test_a_buffer_that_changes_is_no_weight(monkeypatch):
    """It would be bound anew in every call."""
    binds, bind = [], runtime.Executable.bind_arrays
    monkeypatch.setattr(runtime.Executable, "bind_arrays", lambda *args: (binds.append(1), bind(*args)))
    ours, theirs = (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    compiled = torch.compile(ours, backend="diffattn")
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(5, 4)
            same(compiled(x), theirs(x))
    same(ours[1].running_var, theirs[1].running_var)
    assert len(binds) == 1


class Attention(nn.Module):
    """The fill of its mask is a tensor, as `torch.finfo` makes some."""

    def forward(self, q, k, v):
        scores = [a @ b.mT / 4 for a, b in zip(q.chunk(2, -1), k.chunk(2, -1))]
        hidden = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
        a1, a2 = (torch.where(hidden, torch.tensor(float("-inf")), one).softmax(-1) for one in scores)
        return (a1 - 0.3 * a2) @ v


def test_numbers_that_are_tensors_are_read(programs):
    module, args = Attention(), [torch.randn(2, 4, 20, 32) for _ in range(3)]
    exported, compiled = diffattn.compile(module, args), torch.compile(module, backend="diffattn")
    same(exported(*args), module(*args))
    same(compiled(*args), module(*args))
    for one in programs:
        (raised,) = [line for line in runtime.emit(one.mlir, "raised").decode().splitlines() if " diffattn.attention " in line]
        assert "is_causal" in raised
    assert len(programs) == 2


def test_a_backward_is_refused():
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    compiled = torch.compile(layer, backend="diffattn")
    with pytest.raises(diffattn.errors.CompileError, match=r"expected a graph without gradients.*to train, use torch\.compile\(model\), by which "
                                                             r"torch\.ops\.diffattn\.attention stays one node.*torch\.no_grad\(\)"):
        compiled(x)
    with torch.no_grad():
        same(compiled(x), layer(x))


def test_dropout_is_refused():
    class Dropped(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x, 0.5, self.training)

    compiled = torch.compile(Dropped(), backend="diffattn", options={"whole": True})
    with torch.no_grad(), pytest.raises(diffattn.errors.CompileError, match=r"test_torch_backend\.py:\d+: expected a graph without random "
                                                                            r"numbers, but got aten\.\w+.*; call eval\(\)"):
        compiled(torch.ones(3))


def gammas(x):
    return x.lgamma() + 1


def test_what_cannot_be_lowered():
    x = torch.randn(5)
    line = gammas.__code__.co_firstlineno + 1
    compiled = torch.compile(gammas, backend="diffattn", options={"whole": True})
    for _ in range(2):
        with pytest.raises(diffattn.errors.CompileError, match=rf"test_torch_backend\.py:{line}: expected ops that torch-mlir lowers .*, but got "
                                                               r"aten\.lgamma.*; fallback='eager'"):
            compiled(x)
    torch._dynamo.reset()
    compiled = torch.compile(gammas, backend="diffattn", options={"fallback": "eager", "whole": True})
    with pytest.warns(RuntimeWarning, match="a graph runs in PyTorch, because .*aten.lgamma"):
        same(compiled(x), gammas(x))


@pytest.mark.parametrize("options, message", [
    ({"targt": "cpu"}, r"options: expected names among target, .*, but got targt"),
    ({"target": "cuda"}, r"target: expected one that reads memory of the host"),
    ({"fallback": "yes"}, r"fallback: expected None or 'eager', but got 'yes'"),
    ({"threads": -1}, r"threads: expected an integer from 0 to 4096, but got -1"),
])
def test_options_that_are_wrong(options, message):
    compiled = torch.compile(lambda x: x + 1, backend="diffattn", options=options)
    with pytest.raises(diffattn.errors.UsageError, match=message):
        compiled(torch.ones(2))


def test_options():
    compiled = torch.compile(lambda x: x + 1, backend="diffattn", options={"target": "cpu:generic", "threads": 1, "cache": False})
    assert compiled(torch.ones(2)).tolist() == [2, 2]


def test_tensors_that_are_elsewhere():
    compiled = torch.compile(lambda x: x * 2, backend="diffattn")
    with pytest.raises(diffattn.errors.CompileError, match="input 0 of the graph: expected a tensor in memory of the host, but got one on meta"):
        compiled(torch.empty(3, device="meta"))
    with pytest.raises(diffattn.errors.CompileError, match=r"input 0 of the graph: expected a tensor whose memory holds its values, but got a lazy view"):
        compiled(torch._neg_view(torch.ones(3)))


def test_graph_breaks():
    def f(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + np.pi

    counters.clear()
    x = torch.randn(3)
    same(torch.compile(f, backend="diffattn")(x), f(x))


class Inference(nn.Module):
    """Like Llama's own code: what is decorated reads parts of buffers that were made outside of it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(8, 3))
        self.weight = nn.Parameter(torch.randn(3))

    @torch.inference_mode()
    def forward(self, x, at):
        return x * self.table[at:at + 2] * self.weight, self.table[at:at + 2]


@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
def test_a_function_in_inference_mode(mode):
    torch._dynamo.reset()
    module, x = Inference(), torch.randn(2, 3)
    compiled = torch.compile(module, backend="diffattn")
    with mode():
        enabled = torch.is_grad_enabled()
        for at in (0, 1, 2):
            for got, want in zip(compiled(x, at), module(x, at), strict=True):
                torch.testing.assert_close(got, want)
        assert torch.is_grad_enabled() == enabled


def test_a_gradient_behind_inference_mode():
    compiled = torch.compile(lambda x: torch.inference_mode()(lambda y: y * 2)(x) * x, backend="diffattn")
    with pytest.raises(diffattn.errors.CompileError, match="expected a graph without gradients"):
        compiled(torch.ones(3, requires_grad=True))


class Broken(nn.Module):
    """Attention in the second of two graphs."""

    def forward(self, q, k, v):
        v = v * 2
        torch._dynamo.graph_break()
        a1, a2 = ((a @ b.mT / 4).softmax(-1) for a, b in zip(q.chunk(2, -1), k.chunk(2, -1)))
        return (a1 - 0.3 * a2) @ v


@pytest.fixture
def no_reports():
    graph_reports._records.clear()


@pytest.mark.usefixtures("no_reports")
def test_reports_of_each_graph(programs):
    compiled = torch.compile(Broken(), backend="diffattn")
    for length in (6, 7, 8):  # the second makes the length a symbol
        compiled(*(torch.randn(1, 2, length, 32) for _ in range(3)))
    reports = diffattn.torch.reports()
    assert [one.compile_id for one in reports] == ["0/0", "1/0", "0/1", "1/1"]
    first = Broken.forward.__code__.co_firstlineno + 1
    places = [f"{__file__}:{first}", f"{__file__}:{first + 2}-{first + 3}"]
    assert [(one.name, one.place) for one in reports] == [("Broken.forward", place) for place in 2 * places]
    for one, program in zip(reports, programs, strict=True):
        assert one.applied == program.applied and one.diagnostics == program.diagnostics
    assert "two maps became one" in str(reports[1]) and not reports[1].diagnostics
    assert not reports[0].applied and "no attention was found" in str(reports[0])
    assert all(earlier.time <= later.time for earlier, later in zip(reports, reports[1:]))
    torch._dynamo.reset()
    assert diffattn.torch.reports() == reports


@pytest.mark.usefixtures("no_reports")
def test_a_report_says_why_attention_was_not_fused():
    def f(q, k, v):
        a1, a2 = ((a @ b.mT / 4).softmax(-1) for a, b in zip(q.chunk(2, -1), k.chunk(2, -1)))
        return a1 @ v - 0.3 * (a2 @ (v + 1))

    torch.compile(f, backend="diffattn")(*(torch.randn(1, 2, 6, 32) for _ in range(3)))
    (report,) = diffattn.torch.reports()
    assert [one.name for one in report.diagnostics] == ["NotRaised"] and not report.applied
    assert report.name.endswith("<locals>.f") and "attention is not fused" in str(report)


def through_a_wrapper(function):
    def wrapper(self, *args):
        return function(self, *args)

    wrapper.__wrapped__ = function
    return wrapper


class Wrapped(nn.Module):
    @through_a_wrapper
    def forward(self, x):
        return x * 2


@pytest.mark.usefixtures("no_reports")
@pytest.mark.parametrize("module, name, in_place", [(nn.Linear(3, 3), "Linear.forward", False), (Wrapped(), "Wrapped.forward", False),
                                                    (Wrapped(), "Wrapped.forward", True)])
def test_a_report_names_the_module(module, name, in_place):
    with torch.no_grad():
        if in_place:
            module.compile(backend="diffattn")
        (module if in_place else torch.compile(module, backend="diffattn"))(torch.ones(3))
    (report,) = diffattn.torch.reports()
    code = getattr(type(module).forward, "__wrapped__", type(module).forward).__code__
    line = code.co_firstlineno + (2 if isinstance(module, Wrapped) else 0)  # PyTorch leaves its own code out of tracebacks
    assert (report.name, report.place) == (name, f"{code.co_filename}:{line}")


@pytest.mark.usefixtures("no_reports")
def test_reports_keep_nothing_alive(programs, monkeypatch):
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        torch.compile(layer, backend="diffattn")(torch.ones(3))
    alive = weakref.ref(programs.pop()), weakref.ref(layer.weight)
    del layer
    torch._dynamo.reset()
    gc.collect()
    assert [one() for one in alive] == [None, None] and len(diffattn.torch.reports()) == 1
    for _ in range(graph_reports.LIMIT + 1):
        graph_reports.record(torch.fx.Graph(), types.SimpleNamespace(applied=[], diagnostics=[], uncompiled=[]))
    assert len(diffattn.torch.reports()) == graph_reports.LIMIT


@pytest.mark.usefixtures("no_reports")
def test_what_is_not_compiled_has_no_report():
    compiled = torch.compile(gammas, backend="diffattn", options={"fallback": "eager", "whole": True})
    with pytest.warns(RuntimeWarning, match="a graph runs in PyTorch"):
        compiled(torch.ones(3))
    assert diffattn.torch.reports() == []
