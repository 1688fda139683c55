"""Weights that change between calls: whatever changes their elements is seen, and nothing else costs anything."""
import ctypes
import gc

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


def resized_and_written(weight):
    """The storage stays: only where it lies is another place."""
    before, address = weight.detach().clone(), weight.data_ptr()
    other = torch.empty(1024)  # where the memory of a larger storage would otherwise lie
    weight.untyped_storage().resize_(1 << 22)
    assert weight.data_ptr() != address and other is not None
    weight.data.copy_(before * 3)


CHANGES = {
    "in place": lambda weight: weight.mul_(2),
    "a part": lambda weight: weight[1:3].zero_(),
    "its own memory, transposed": lambda weight: setattr(weight, "data", weight.data.t()),
    "its own memory, repeated": lambda weight: setattr(weight, "data", weight.data[:1].expand(8, 8)),
    "another's memory": lambda weight: setattr(weight, "data", torch.randn(8, 8)),
    "another's memory, by set_": lambda weight: weight.set_(torch.randn(8, 8)),
    "the same memory of another owner": written_behind_and_assigned,
    "a tensor of inference mode": lambda weight: setattr(weight, "data", inference_tensor()),
    "its storage, resized and written to": resized_and_written,
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
        assert compiled._program.weight_sets.count == 1
        module.weights[7] = nn.Parameter(torch.zeros(5))
        gc.collect()
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
    assert compiled._program.weight_sets.count == 1


IN_PLACE = {
    "in place": lambda bias: bias.mul_(2),
    "behind PyTorch's back, through .data": lambda bias: bias.data.mul_(2),
    "behind PyTorch's back, by NumPy": lambda bias: bias.detach().numpy().__imul__(3),
    "the same memory of another owner": written_behind_and_assigned,
}


@pytest.mark.parametrize("change", IN_PLACE.values(), ids=IN_PLACE)
@torch.no_grad()
def test_vectors_are_read_by_each_call(change, binds):
    layer, x = nn.Linear(8, 8), torch.randn(3, 8)
    compiled = diffattn.compile(layer, (x,))
    for _ in range(2):
        torch.testing.assert_close(compiled(x), layer(x))
        before = layer(x)
        change(layer.bias)
        assert not torch.allclose(layer(x), before)
        torch.testing.assert_close(compiled(x), layer(x))
    assert len(binds) == 1


ELSEWHERE = {
    "another's memory": lambda bias: setattr(bias, "data", torch.randn(8)),
    "every second element": lambda bias: setattr(bias, "data", torch.randn(16)[::2]),
    "a tensor of inference mode": lambda bias: setattr(bias, "data", inference_tensor()[0]),
}


@pytest.mark.parametrize("move", ELSEWHERE.values(), ids=ELSEWHERE)
@torch.no_grad()
def test_a_vector_that_lies_elsewhere_is_bound_anew(move, binds):
    layer, x = nn.Linear(8, 8), torch.randn(3, 8)
    compiled = diffattn.compile(layer, (x,))
    compiled(x)
    move(layer.bias)
    for number in range(2):
        torch.testing.assert_close(compiled(x), layer(x))
        assert len(binds) == 2 + number
        layer.bias.data = layer.bias.data.clone().mul_(2)


def unaligned_vector():
    """Compiled code reads a copy of it."""
    return torch.frombuffer(bytearray(4 * 8 + 1), dtype=torch.float32, offset=1).copy_(torch.randn(8))


@pytest.mark.parametrize("change", ["the copy is dense", "the copy is aligned", "the copy is on a device"])
@torch.no_grad()
def test_of_copies_of_vectors_changes_are_seen(change):
    layer, x = nn.Linear(8, 8), torch.randn(3, 8)
    if change == "the copy is dense":
        layer.bias.data = torch.randn(16)[::2]
    elif change == "the copy is aligned":
        layer.bias.data = unaligned_vector()
        assert layer.bias.data_ptr() % 4
    compiled = diffattn.compile(layer, (x,), target="cuda-sim:sm_80" if "device" in change else "cpu")
    for _ in range(3):
        torch.testing.assert_close(compiled(x), layer(x))
        layer.bias.mul_(2)


@pytest.mark.parametrize("invariant", [False, True])
@torch.no_grad()
def test_a_vector_that_a_product_takes_for_a_matrix(invariant):
    class Outer(nn.Module):
        def __init__(self, size, shape):
            super().__init__()
            self.vector, self.shape = nn.Parameter(torch.randn(size)), shape

        def forward(self, x):
            return x @ self.vector.reshape(self.shape)

    for *shape, x in ((1, 96, torch.randn(40, 1)), (96, 1, torch.randn(40, 96)), (8, 12, torch.randn(40, 8))):
        module = Outer(96, shape)
        compiled = diffattn.compile(module, (x,), batch_invariant=invariant)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), module(x))
            module.vector.add_(1)


@torch.no_grad()
def test_a_mode_that_sees_every_function(binds):
    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    layer, x = nn.Linear(8, 8), torch.randn(3, 8)
    compiled = diffattn.compile(layer, (x,))
    with Seen():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), layer(x))
    torch.testing.assert_close(compiled(x), layer(x))
    assert len(binds) == 1


def test_layers_in_turn_with_a_weight_that_they_share(binds):
    """Whose first weight is the same: what differs is another."""
    first, layers = nn.Parameter(torch.randn(8, 8)), [nn.Linear(8, 8) for _ in range(3)]

    @torch.compile(backend="diffattn")
    def call(first, layer, x):
        return layer(x @ first)

    with torch.no_grad():
        x = torch.randn(3, 8)
        for _ in range(3):
            for layer in layers:
                torch.testing.assert_close(call(first, layer, x), layer(x @ first))
            layers[1].weight.mul_(2)
    assert len(binds) <= 3 + 2


def test_facts():
    """Views of one storage differ where their elements do."""
    storage = torch.arange(12.0)
    views = [storage, storage[1:], storage[:6].reshape(2, 3), storage[:6].reshape(3, 2).t(), storage[:6].view(torch.int32).reshape(2, 3),
             storage[:0], storage[0]]
    known = [facts.Facts([view]) for view in views]
    assert len({bytes(one.numbers) for one in known}) == len(views)
    assert all(one.still_hold((view,)) for one, view in zip(known, views))
    of_places = facts.Facts(views, range(len(views)))
    storage[3] = 0
    assert not any(one.still_hold((view,)) for one, view in zip(known, views)) and of_places.still_hold(tuple(views))
    assert facts.Facts([]).still_hold(())
    without_version = inference_tensor()
    known = facts.Facts([without_version])
    with torch.inference_mode():
        without_version.add_(1)
    assert known.still_hold((without_version,))


def test_facts_are_of_objects():
    one, other = torch.ones(()), torch.ones(())
    known = facts.Facts([one, other])
    assert known.still_hold((one, other))
    assert not any(known.still_hold(others) for others in [(other, one), (one, one), (one,), (one, other, one), (one.detach(), other)])
    same = facts.Facts([one], in_place=[0])
    assert same.still_hold((one,)) and not same.still_hold((one.detach(),))


def test_what_is_no_tensor():
    known, codes = facts.Facts([torch.ones(2)]), (ctypes.c_int32 * 2)(0, -1)
    for value in (3, torch.eye(2).to_sparse(), torch.ones(2, device="meta")):
        with pytest.raises((RuntimeError, BufferError)):
            facts.as_arguments((value, 4), codes)
        assert not known.still_hold((value,))
    with pytest.raises(IndexError):
        facts.as_arguments((), codes)


def test_a_torch_that_is_not_known(monkeypatch):
    exchange = facts._Exchange(2, 0)
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))
    monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", new(ctypes.addressof(exchange), b"dlpack_exchange_api", None))
    with pytest.raises(errors.LibraryError, match="torch.Tensor.__dlpack_c_exchange_api__: expected that of PyTorch 2.10 or later, but"):
        facts._Readers()
    older = facts._Exchange.from_buffer_copy(exchange)
    older.major, older.view = 1, 4711
    exchange.older = ctypes.addressof(older)
    assert facts._view() == 4711
    monkeypatch.delattr(torch.Tensor, "__dlpack_c_exchange_api__")
    with pytest.raises(errors.LibraryError, match="torch.Tensor.__dlpack_c_exchange_api__: expected"):
        facts._view()
    monkeypatch.setattr(torch.Tensor, "_version", 7, raising=False)
    with pytest.raises(errors.LibraryError, match="torch.Tensor._version: expected that of PyTorch 2.10 or later, but got another"):
        facts._getter("_version")
