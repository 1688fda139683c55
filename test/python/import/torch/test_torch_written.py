"""Arguments and buffers that a graph of PyTorch changes in parts, as caches: they are written where they lie, and as PyTorch writes them."""
import copy

import pytest
import torch

import diffattn
from diffattn.errors import RunError

pytestmark = pytest.mark.oracle


class Written(torch.nn.Module):
    """A cache [2, 16, 4], of which `write` changes a part; what is read of it then."""

    def __init__(self, write):
        super().__init__()
        self.write = write

    def forward(self, cache, rows, *given):
        total = rows.sum()
        self.write(cache, rows, *given)
        return cache.sum(1) + total


def slice_ahead(cache, rows, *_):
    cache[:, 3:3 + rows.shape[1]] = rows


WRITES = {
    "index_copy": lambda cache, rows, places: cache.index_copy_(1, places, rows),
    "index_put": lambda cache, rows, places: cache.__setitem__((slice(None), places), rows),
    "one_number": lambda cache, rows, places: cache.__setitem__((slice(None), places), 2.0 if cache.is_floating_point() else 2),
    "slice": slice_ahead,
    "twice": lambda cache, rows, places: cache.index_copy_(1, places, rows).index_copy_(1, places + 4, rows),
}


def arguments(places, dtype=torch.float32, capacity=16):
    """Whole numbers, of which sums are exact."""
    torch.manual_seed(0)
    cache, rows = torch.randint(-8, 9, (2, capacity, 4)), torch.randint(-8, 9, (2, len(places), 4))
    return cache.to(dtype), rows.to(dtype), torch.tensor(places)


def compiled_by(door, module, given, shapes=None):
    if door == "export":
        return diffattn.compile(module, tuple(x.clone() for x in given), dynamic_shapes=shapes)
    return torch.compile(module, backend="diffattn", fullgraph=True)


@pytest.fixture
def nothing_copied(monkeypatch):
    """Fails if a result is copied to an argument behind a call."""
    def fail(*_):
        raise AssertionError("expected parts to be written in place, but a whole tensor was copied")

    def stop():
        monkeypatch.setattr(torch.Tensor, "copy_", fail)
        monkeypatch.setattr(torch.Tensor, "clone", fail)

    yield stop


def check(module, compiled, given, stop=lambda: None):
    with torch.no_grad():
        wanted = [x.clone() for x in given]
        want, memory = module(*wanted), given[0].data_ptr()
        stop()
        got = compiled(*given)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert all(torch.equal(one, other) for one, other in zip(given, wanted)) and given[0].data_ptr() == memory


@pytest.mark.sampled(3)
@pytest.mark.parametrize("door", ["export", "dynamo"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("places, dtype", [([5], torch.float32), ([9, 2, 3], torch.bfloat16), ([0, 11], torch.int64)],
                         ids=["one", "several", "integers"])
def test_rows_are_written_in_place(write, places, dtype, door, nothing_copied):
    torch._dynamo.reset()
    module, given = Written(WRITES[write]), arguments(places, dtype)
    compiled = compiled_by(door, module, given)
    check(module, compiled, [x.clone() for x in given])
    check(module, compiled, given, nothing_copied)


def test_sizes_of_any_kind(nothing_copied):
    module, given = Written(WRITES["index_copy"]), arguments([3, 1])
    capacity, count = torch.export.Dim("capacity", min=2, max=64), torch.export.Dim("count", min=2, max=8)
    compiled = compiled_by("export", module, given, {"cache": {1: capacity}, "rows": {1: count}, "given": ({0: count},)})
    for places, room in (([3, 1], 16), ([0, 7, 5], 9), ([40, 2], 41)):
        check(module, compiled, arguments(places, capacity=room))
    check(module, compiled, arguments([6, 4, 2, 0], capacity=7), nothing_copied)


@pytest.mark.parametrize("door", ["export", "dynamo"])
@pytest.mark.parametrize("places", [[16], [-1], [2, 16], [2, -1]])
def test_a_place_that_is_not_there_changes_nothing(places, door):
    torch._dynamo.reset()
    module, given = Written(WRITES["index_copy"]), arguments([4] * len(places))
    compiled = compiled_by(door, module, given)
    check(module, compiled, [x.clone() for x in given])
    before = given[0].clone()
    with torch.no_grad(), pytest.raises(RunError, match="expected an index from 0 and below 16 on axis 0, but got"):
        compiled(*given[:2], torch.tensor(places))
    assert torch.equal(given[0], before)
    with pytest.raises(IndexError):
        module(*given[:2], torch.tensor(places))


def test_places_from_the_end():
    module, given = Written(WRITES["index_put"]), arguments([-1, 2, -16])
    check(module, compiled_by("export", module, given), given)


class Old(torch.nn.Module):
    """Reads the cache before and after it is written, and gives it back too."""

    def forward(self, cache, rows, places):
        old = cache.clone()
        cache.index_copy_(1, places, rows)
        return old, cache, cache * 2, old[:, 1]


@pytest.mark.parametrize("door", ["export", "dynamo"])
def test_what_was_there_can_be_read_too(door):
    torch._dynamo.reset()
    given = arguments([5, 0])
    check(Old(), compiled_by(door, Old(), given), given)


@pytest.mark.parametrize("door", ["export", "dynamo"])
@pytest.mark.parametrize("views", [lambda whole: (whole[:, :16], whole[:, 8:10]), lambda whole: (whole[:, ::2], whole[:, 1:4:2]),
                                   lambda whole: (whole[:, :16], whole[:, 16:18])], ids=["overlap", "interleaved", "beside"])
def test_views_of_one_tensor(views, door):
    """The cache has holes, and the rows lie in them or are a part of it. AOTAutograd gives its graph the whole tensor."""
    torch._dynamo.reset()
    module, given = Written(WRITES["index_copy"]), arguments([9, 1])
    compiled = compiled_by(door, module, given)
    whole, other = (torch.arange(256.0).reshape(2, 32, 4) for _ in range(2))
    cache, rows = views(other)
    with torch.no_grad():
        want = module(cache, rows.clone(), given[2])
        torch.testing.assert_close(compiled(*views(whole), given[2]), want, rtol=0, atol=0)
    assert torch.equal(whole, other)


@pytest.mark.parametrize("strides", [(4, 8, 1), (1, 8, 2)], ids=["two", "all"])
def test_views_of_a_tensor_whose_axes_lie_in_another_order(strides):
    torch._dynamo.reset()
    module, given = Written(WRITES["index_copy"]), arguments([9, 1])
    whole, other = (torch.empty_strided((2, 32, 4), strides).copy_(torch.arange(256.0).reshape(2, 32, 4)) for _ in range(2))
    compiled = compiled_by("dynamo", module, given)
    with torch.no_grad():
        want = module(other[:, :16], other[:, 8:10].clone(), given[2])
        torch.testing.assert_close(compiled(whole[:, :16], whole[:, 8:10], given[2]), want, rtol=0, atol=0)
    assert torch.equal(whole, other)


def test_a_cache_with_holes():
    torch._dynamo.reset()
    module, given = Written(WRITES["index_copy"]), arguments([9, 1])
    compiled, whole = compiled_by("dynamo", module, given), torch.zeros(2, 16, 6)
    check(module, compiled, [whole[..., 1:5], *given[1:]])
    assert not whole[..., [0, 5]].any()


class WithWeight(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 4))

    def forward(self, cache, rows, places):
        cache.index_copy_(0, places, rows)
        return cache @ self.weight


def test_a_weight_as_the_cache():
    """Reads of the weight come before its change."""
    module = WithWeight().eval()
    rows, places = torch.full((1, 4), 3.0), torch.tensor([2])
    compiled = diffattn.compile(module, (torch.zeros(4, 4), rows, places))
    with torch.no_grad():
        changed = torch.ones(4, 4)
        changed[2] = 3
        torch.testing.assert_close(compiled(module.weight, rows, places), changed @ torch.ones(4, 4))
        assert torch.equal(module.weight, changed)
        torch.testing.assert_close(compiled(torch.zeros(4, 4), rows, places)[2], (rows @ changed)[0])


class Buffered(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(8, 4))

    def forward(self, rows, places):
        self.keys[places] = rows
        return self.keys.sum(0)


def test_a_buffer_that_another_graph_has_packed():
    """Its version tells that it was written."""
    module = Buffered()
    written = diffattn.compile(module, (torch.ones(2, 4), torch.tensor([1, 2])))
    product = torch.nn.Linear(4, 8, bias=False)
    product.weight = torch.nn.Parameter(module.keys, requires_grad=False)
    read = diffattn.compile(product, (torch.ones(3, 4),))
    assert not read(torch.ones(3, 4)).any()
    version = module.keys._version
    written(torch.ones(2, 4), torch.tensor([1, 2]))
    assert module.keys._version > version
    assert read(torch.ones(3, 4))[0].tolist() == [0, 4, 4, 0, 0, 0, 0, 0]
    with torch.inference_mode():
        inferred = copy.deepcopy(module)
        assert diffattn.compile(inferred, (torch.ones(2, 4), torch.tensor([1, 2])))(torch.ones(2, 4), torch.tensor([4, 5])).tolist() == [4.0] * 4


class Kept(torch.nn.Module):
    """Old values are written to other arguments: those of the cache, and those of a tensor that is computed anew."""

    def forward(self, cache, rows, places, total, before, last):
        before.copy_(cache)
        last.copy_(total)
        cache.index_copy_(1, places, rows)
        total.add_(cache.sum())
        return cache.sum(1)


@pytest.mark.parametrize("door", ["export", "dynamo"])
def test_what_was_there_is_kept_elsewhere(door):
    torch._dynamo.reset()
    given = [*arguments([5, 0]), torch.ones(3), torch.zeros(2, 16, 4), torch.zeros(3)]
    check(Kept(), compiled_by(door, Kept(), given), given)


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("read", [lambda c: c.transpose(1, 2).clone(), lambda c: (c.mT * 1, c * 1), lambda c: (c.permute(2, 1, 0), c.sum(1)),
                                  lambda c: (c.transpose(0, 1), c.mT)], ids=["clone", "both", "permuted", "two orders"])
def test_a_written_cache_in_another_order(read, dynamo):
    """Its rows are written where they lie, and a result of other axes is of that memory."""
    def function(cache, rows, places):
        cache.index_copy_(1, places, rows)
        return read(cache)

    class Module(torch.nn.Module):
        forward = staticmethod(function)

    cache, rows, places = torch.randn(2, 16, 2), torch.randn(2, 3, 2), torch.tensor([3, 4, 9])
    given, kept = cache.clone(), cache.clone()
    with torch.no_grad():
        compiled = torch.compile(function, backend="diffattn") if dynamo else diffattn.compile(Module(), (cache, rows, places))
        got, want = compiled(given, rows, places), function(kept, rows, places)
    for one, other in zip(*(x if isinstance(x, tuple) else (x,) for x in (got, want))):
        torch.testing.assert_close(one, other)
    assert torch.equal(given, kept)
