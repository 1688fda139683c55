"""Weights that change between calls: whatever changes their elements is seen, and nothing else costs anything."""
import ctypes
import gc

import numpy as np
import pytest
import torch
from torch import nn

import diffattn
from diffattn import errors, runtime
from diffattn.torch import facts

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("programs")]


def written_behind_and_assigned(weight):
    """The memory, the address and the version stay: only the storage is another."""
    array = weight.detach().numpy()
    array *= 3
    weight.data = torch.from_numpy(array)


CHANGES = {
    "in place": lambda weight: weight.mul_(2),
    "a part": lambda weight: weight[1:3].zero_(),
    "its own memory, transposed": lambda weight: setattr(weight, "data", weight.data.t()),
    "its own memory, repeated": lambda weight: setattr(weight, "data", weight.data[:1].expand(8, 8)),
    "another's memory": lambda weight: setattr(weight, "data", torch.randn(8, 8)),
    "another's memory, by set_": lambda weight: weight.set_(torch.randn(8, 8)),
    "the same memory of another owner": written_behind_and_assigned,
    "a tensor of inference mode": lambda weight: setattr(weight, "data", inference_tensor()),
}


def inference_tensor():
    with torch.inference_mode():
        return torch.randn(8, 8)


@pytest.fixture
def binds(monkeypatch):
    """How often weights were bound."""
    times, bind = [], runtime.Executable.bind_arrays
    monkeypatch.setattr(runtime.Executable, "bind_arrays", lambda *args: (times.append(1), bind(*args)))
    return times


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("door", ["export", "dynamo"])
@torch.no_grad()
def test_a_change_is_seen_by_the_next_call(change, door, binds):
    layer, x = nn.Linear(8, 8), torch.randn(3, 8)
    compiled = diffattn.compile(layer, (x,)) if door == "export" else torch.compile(layer, backend="diffattn")
    for _ in range(2):
        torch.testing.assert_close(compiled(x), layer(x))
    assert len(binds) == 1
    before = layer(x)
    change(layer.weight)
    assert not torch.allclose(layer(x), before)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), layer(x))
    assert len(binds) == 2


@torch.no_grad()
def test_memory_that_a_weight_had_is_not_anothers():
    """A weight that is replaced frees its memory, where the next but one would come to lie, with the same version."""
    layer, x = nn.Linear(64, 64), torch.randn(3, 64)
    compiled = diffattn.compile(layer, (x,))
    for _ in range(20):
        layer.weight.data = torch.randn(64, 64)
        layer.weight.data = torch.randn(64, 64)
        torch.testing.assert_close(compiled(x), layer(x))


def test_what_changes_no_element_binds_nothing(binds):
    layer, x = nn.Linear(8, 8), torch.randn(3, 8)
    compiled = diffattn.compile(layer, (x,))
    with torch.no_grad():
        compiled(x)
        layer.weight.requires_grad_(False)
        layer.bias.grad = torch.ones(8)
        layer.weight.detach().clone().mul_(2)
        layer.weight.my_own = 1
        compiled(x)
    assert len(binds) == 1


def test_two_hundred_weights():
    """Each of them is looked at, and all go with the module."""
    class Summed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList(torch.randn(5) for _ in range(200))

        def forward(self, x):
            return sum(self.weights, x)

    module, x = Summed(), torch.randn(5)
    compiled = diffattn.compile(module, (x,))
    with torch.no_grad():
        for number in (0, 1, 99, 198, 199):
            module.weights[number].add_(1)
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
        assert compiled._program.num_weight_sets == 1
        module.weights[7] = nn.Parameter(torch.zeros(5))
        gc.collect()
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
    assert compiled._program.num_weight_sets == 1


def test_facts():
    """Views of one storage differ where their elements do."""
    storage = torch.arange(12.0)
    views = [storage, storage[1:], storage[:6].reshape(2, 3), storage[:6].reshape(3, 2).t(), storage[:6].view(torch.int32).reshape(2, 3),
             storage[:0], storage[0]]
    known = [facts.Facts([view]) for view in views]
    assert len({one._known for one in known}) == len(views)
    assert all(one.still_hold() for one in known)
    storage[3] = 0
    assert not any(one.still_hold() for one in known)
    assert facts.Facts([]).still_hold()


def test_identity_is_of_objects():
    one, other = torch.ones(()), torch.ones(())
    assert facts.identity((one, other)) != facts.identity((other, one))
    assert facts.identity((one, other)) == np.array([id(one), id(other)], np.uint64).tobytes() and facts.identity(()) == b""


def test_a_python_or_a_torch_that_is_not_known(monkeypatch):
    exchange = facts._Exchange(2, 0)
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))
    monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", new(ctypes.addressof(exchange), b"dlpack_exchange_api", None))
    with pytest.raises(errors.LibraryError, match="torch.Tensor.__dlpack_c_exchange_api__: expected CPython with a lock and PyTorch 2.10 or later"):
        facts._Readers()
    older = facts._Exchange.from_buffer_copy(exchange)
    older.major, older.view = 1, 4711
    exchange.older = ctypes.addressof(older)
    assert facts._view() == 4711
    with pytest.raises(errors.LibraryError, match="torch.Tensor._version: "):
        monkeypatch.setattr(facts, "_Descriptor", type("Other", (facts._Descriptor,), {"type": 0}))
        facts._definition("_version")
    monkeypatch.setattr(facts, "_word", lambda address: 0)
    with pytest.raises(errors.LibraryError, match="torch.Tensor.untyped_storage: expected CPython with a lock"):
        facts._storage_place()
