"""Texts of graphs in the cache: found before torch-mlir is loaded, never one of another graph, and never in the way."""
import importlib.metadata
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import diffattn
from diffattn import runtime, text_cache
from diffattn.torch import graph_key as keys, program
from paths import MODULES

pytestmark = pytest.mark.oracle
X = torch.ones(3, 4)


class Scaled(nn.Module):
    """A weight, a constant that is a tensor, one that is a number, and a number of Python."""

    def __init__(self, table=(1.0, 2.0), number=3.0, factor=0.5):
        super().__init__()
        self.linear, self.factor = nn.Linear(4, 2), factor
        self.table, self.number = torch.tensor(table), torch.tensor(number)

    def forward(self, x):
        return (self.linear(x) + self.table) * self.number + self.factor


class Found(BaseException):
    """Ends a compilation where its key is known."""


@pytest.fixture
def key_of(monkeypatch):
    def record_key(module, weights, written):
        raise Found(keys.graph_key(module, weights, written))

    monkeypatch.setattr(program, "graph_key", record_key)

    def key(module, args=(X,), dynamic_shapes=None):
        with pytest.raises(Found) as raised:
            diffattn.compile(module, args, dynamic_shapes=dynamic_shapes and (dynamic_shapes,))
        return raised.value.args[0]

    return key


@pytest.fixture
def lowered(monkeypatch):
    """The texts that torch-mlir made."""
    texts, lower = [], program.lower
    monkeypatch.setattr(program, "lower", lambda *given: (texts.append(lower(*given)), texts[-1])[1])
    return texts


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


def compile_and_check(folder, module=None, x=None):
    module, x = module or Scaled(), torch.randn(3, 4) if x is None else x
    compiled = diffattn.compile(module, (x,), cache=folder)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
    return compiled


def test_a_second_process_does_not_load_torch_mlir(folder):
    """By both doors, with sizes that are symbols; the answers are the same, and so are texts, and what was said of attention."""
    code = f"""
import sys, torch, diffattn
sys.path[:0] = {[str(folder) for folder in MODULES]!r}
from test_torch_attention import Attention, operands
from diffattn.torch import program
made, init = [], program.GraphProgram.__init__
program.GraphProgram.__init__ = lambda self, *args, **kwargs: (init(self, *args, **kwargs), made.append(self))[0]
tensors = operands(batch=3)
f = diffattn.compile(Attention(is_causal=True), tuple(tensors), cache={str(folder)!r})
g = torch.compile(Attention(norm="rms"), backend="diffattn", dynamic=True, options={{"cache": {str(folder)!r}}})
with torch.no_grad():
    print([f(*tensors).sum().item(), g(*tensors).sum().item(), *[(one.mlir, one.diagnostics, one.applied) for one in made]])
print(any(name.startswith("torch_mlir._mlir_libs") for name in sys.modules))
"""
    outputs = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.splitlines())
    (first, loaded), (second, loaded_again) = outputs
    assert first == second and "diffattn_attention_0" in first and (loaded, loaded_again) == ("True", "False")


def test_values_of_weights_and_constants_come_with_the_call(folder, lowered):
    torch.manual_seed(0)
    first = compile_and_check(folder)
    torch.manual_seed(1)
    second = compile_and_check(folder, Scaled(table=(5.0, 6.0)))
    assert len(lowered) == 1 and first.mlir == second.mlir
    third = compile_and_check(folder, Scaled(number=4.0))
    assert len(lowered) == 2 and third.mlir != second.mlir


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


ANY = torch.export.Dim("n", min=2, max=9)
#: Pairs of graphs with different texts or meanings, as module, arguments and dynamic sizes.
PAIRS = {
    "op": ((Function(lambda x: x + x),), (Function(lambda x: x * x),)),
    "number": ((Function(lambda x: x + 1.0),), (Function(lambda x: x + 1.0000000000000002),)),
    "zero": ((Function(lambda x: x + 0.0),), (Function(lambda x: x + -0.0),)),
    "kind of number": ((Function(lambda x: x + 1),), (Function(lambda x: x + 1.0),)),
    "truth value": ((Function(lambda x: x.sum(1, keepdim=True).squeeze(1)),), (Function(lambda x: x.sum(1, keepdim=False)),)),
    "infinite number": ((Function(lambda x: x.clamp(max=float("inf"))),), (Function(lambda x: x.clamp(max=float("-inf"))),)),
    "constant": ((Function(lambda x: x * torch.tensor(2.0)),), (Function(lambda x: x * torch.tensor(3.0)),)),
    "type of a constant": ((Function(lambda x: x * torch.tensor(2.0)),), (Function(lambda x: x * torch.tensor(2.0, dtype=torch.float64)),)),
    "operands": ((Function(lambda x, y: x - y), (X, X)), (Function(lambda x, y: y - x), (X, X))),
    "results": ((Function(lambda x: (x + 1, x * 2)),), (Function(lambda x: (x * 2, x + 1)),)),
    "axis": ((Function(lambda x: x.sum(0)), (torch.ones(4, 4),)), (Function(lambda x: x.sum(1)), (torch.ones(4, 4),))),
    "type": ((Function(lambda x: x + 1), (X,)), (Function(lambda x: x + 1), (X.double(),))),
    "size": ((Function(lambda x: x + 1), (X,)), (Function(lambda x: x + 1), (torch.ones(3, 5),))),
    "strides": ((Function(lambda x: x + 1), (torch.ones(4, 4),)), (Function(lambda x: x + 1), (torch.ones(4, 4).t(),))),
    "any size": ((Function(lambda x: x + 1), (X,)), (Function(lambda x: x + 1), (X,), ({0: ANY},))),
    "which size": ((Function(lambda x: x + 1), (X,), ({0: ANY},)), (Function(lambda x: x + 1), (X,), ({1: ANY},))),
    "range": ((Function(lambda x: x + 1), (X,), ({0: ANY},)), (Function(lambda x: x + 1), (X,), ({0: torch.export.Dim("n", min=2, max=8)},))),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_other_graphs_have_other_keys(pair, key_of):
    one, other = (key_of(*graph) for graph in pair)
    assert one and other and one != other


def test_weights_are_of_the_key(monkeypatch):
    """Which inputs become globals, and their order."""
    module = torch.fx.symbolic_trace(lambda x, y: x + y)
    assert len({keys.graph_key(module, weights, set()) for weights in ({}, {0: "w0"}, {1: "w0"}, {0: "w0", 1: "w1"}, {0: "w1", 1: "w0"})}) == 5


def test_what_is_written_is_of_the_key():
    """Which inputs compiled code may write to."""
    module = torch.fx.symbolic_trace(lambda x, y: x + y)
    assert len({keys.graph_key(module, {}, written) for written in (set(), {0}, {1}, {0, 1})}) == 4


def test_what_nodes_give_is_of_the_key():
    """Types of elements, sizes, strides, and how many values, of any node."""
    values = [torch.empty(4, 4), torch.empty(4, 4).t(), torch.empty(4, 4, dtype=torch.float64), torch.empty(4, 5), torch.empty(4, 4, 1), 4, True,
              4.0, None, (torch.empty(4, 4),), [torch.empty(4, 4), None], "4", torch.float32, torch.empty(4, 4, device="meta")]
    for op in ("placeholder", "call_function", "output"):
        module, seen = torch.fx.symbolic_trace(lambda x: x + 1), set()
        node = next(node for node in module.graph.nodes if node.op == op)
        for name in ("val", "tensor_meta"):
            for value in values:
                node.meta = {name: value}
                seen.add(keys.graph_key(module, {}, set()))
        assert len(seen) == 2 * len(values) - 1 and None not in seen  # None is as no entry


def test_versions_are_of_the_key(monkeypatch):
    module = torch.fx.symbolic_trace(lambda x: x)
    seen = {keys.graph_key(module, {}, set())}

    def change(owner, name, value):
        with monkeypatch.context() as context:
            context.setattr(owner, name, value)
            keys._lowered_by.cache_clear()
            seen.add(keys.graph_key(module, {}, set()))
        keys._lowered_by.cache_clear()

    change(torch, "__version__", "2.99")
    change(torch.version, "git_version", "0")
    change(importlib.metadata.PathDistribution, "read_text", lambda *_: "torch_mlir/ir.py,sha256=0,0")
    change(keys.lowering, "__file__", __file__)  # what writes the texts
    assert len(seen) == 5 and None not in seen
    change(importlib.metadata.PathDistribution, "read_text", lambda *_: None)
    assert None in seen, "a build without a list of files may change"


def test_what_is_not_known_is_not_kept():
    module = torch.fx.symbolic_trace(lambda x: x + 1)
    node = next(node for node in module.graph.nodes if node.op == "call_function")
    assert keys.graph_key(module, {}, set())
    for meaning in (object(), {1: 2}, 1j):
        node.meta["val"] = meaning
        assert keys.graph_key(module, {}, set()) is None
    node.meta["val"], node.target = None, print
    assert keys.graph_key(module, {}, set())
    node.target = torch.nn.ReLU()
    assert keys.graph_key(module, {}, set()) is None


def damage(path, how, others):
    data = path.read_bytes()
    if how == "cut":
        path.write_bytes(data[:-1])
    elif how == "a letter":
        path.write_bytes(data.replace(b"func.func", b"func.Func"))
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "writable by others":
        path.chmod(0o666)
    elif how == "of another graph":
        path.write_bytes(others.read_bytes())


def texts_in(folder):
    return {path for path in folder.glob("*.diffattn") if path.read_bytes().startswith(b"diffattn text")}


@pytest.mark.parametrize("how", ["cut", "a letter", "empty", "writable by others", "of another graph", "removed"])
def test_records_that_are_damaged_are_written_anew(how, folder, lowered):
    compile_and_check(folder)
    (record,) = texts_in(folder)
    whole = record.read_bytes()
    compile_and_check(folder, nn.Linear(4, 4))
    (other,) = texts_in(folder) - {record}
    assert len(lowered) == 2
    if how == "removed":
        record.unlink()
    else:
        damage(record, how, other)
    compile_and_check(folder)
    assert len(lowered) == 3 and record.read_bytes() == whole and record.stat().st_mode & 0o777 == 0o600
    compile_and_check(folder)
    assert len(lowered) == 3


def test_without_a_cache(folder, lowered, monkeypatch):
    module = Scaled()
    for _ in range(2):
        diffattn.compile(module, (X,), cache=False)
    monkeypatch.setenv("DIFFATTN_CACHE_LIMIT", "0")
    for _ in range(2):
        compile_and_check(folder)
    assert len(lowered) == 4 and not list(folder.glob("*.diffattn"))
    with pytest.raises(diffattn.errors.UsageError, match="cache: expected True, False or a folder"):
        diffattn.compile(module, (X,), cache=3)


def test_a_folder_that_cannot_be_used_is_one_warning(folder):
    folder.write_text("")
    runtime._reported.clear()
    with pytest.warns(UserWarning, match="compiled code is not kept in .*: expected a folder, but got") as caught:
        compile_and_check(folder)
        compile_and_check(folder)
    assert len([one for one in caught if "not kept" in str(one.message)]) == 1


def test_texts_are_listed(folder, build_dir):
    compile_and_check(folder)
    done = subprocess.run([build_dir / "bin" / "diffattn-run", "cache", "ls", f"--cache-dir={folder}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "text of Scaled, a graph of PyTorch" in done.stdout and "damaged" not in done.stdout, done.stdout


def test_any_text_is_given_back(folder):
    for key, text in (("", "a"), ("k", ""), ("key\n", "ä\0\n" * 1000), ("k" * 5000, "x")):
        assert text_cache.read(key, folder) is None
        text_cache.keep(key, "a text\n", text, folder)
        assert text_cache.read(key, folder) == text
        text_cache.keep(key, "a text", text + "!", folder)
        assert text_cache.read(key, folder) == text + "!"
    assert text_cache.read("k", False) is None
    assert all(os.stat(path).st_mode & 0o777 == 0o600 for path in folder.glob("*.diffattn"))
