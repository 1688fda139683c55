"""Results of torch.compile(backend="diffattn") that show elements of an argument: where they lie, whatever sizes and strides are known."""
import pytest
import torch

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("programs")]


def assign(cache, new):
    cache[:, 1:1 + new.shape[1]] = new
    return cache[:, :new.shape[1]]


def copy_by_index(cache, new):
    cache.index_copy_(1, torch.arange(1, 1 + new.shape[1]), new)
    return cache[:, :new.shape[1]]


def scatter(cache, new):
    cache.scatter_(1, torch.zeros(new.shape, dtype=torch.long), new)
    return cache[:, :new.shape[1]]


def change_a_view(cache, new):
    shown = cache[:, 1:1 + new.shape[1]]
    shown.add_(new)
    return shown


#: Functions of a cache [4, n, 2] and of new rows [4, m, 2].
FUNCTIONS = {
    "as it is": lambda cache, new: (cache[:, :new.shape[1]], new + 1), "later": lambda cache, new: (cache[:, 2:2 + new.shape[1]], new + 1),
    "added to": lambda cache, new: cache.add_(1)[:, :new.shape[1]], "transposed": lambda cache, new: cache.add_(1).transpose(0, 1)[:new.shape[1]],
    "one key": lambda cache, new: (cache[:, new.shape[1]], new + 1), "repeated": lambda cache, new: cache[:1].expand(new.shape[1], -1, -1),
    "pieces": lambda cache, new: cache.unbind(0)[1:3], "two": lambda cache, new: (cache.add_(1), cache[1:], cache[:, 1:], new[1:]),
    "assigned": assign, "by index": copy_by_index, "scattered": scatter, "a view is changed": change_a_view,
}
CACHES = {
    "whole": lambda n: torch.arange(8.0 * n).view(4, n, 2), "behind others": lambda n: torch.arange(8.0 * n + 2 * n).view(5, n, 2)[1:],
    "room behind": lambda n: torch.arange(16.0 * n).view(4, 2 * n, 2)[:, :n], "every second": lambda n: torch.arange(16.0 * n).view(4, 2 * n, 2)[:, ::2],
    "transposed": lambda n: torch.arange(8.0 * n).view(2, n, 4).permute(2, 1, 0),
}


def same(got, want, cache, kept):
    """Asserts that results have equal elements, and share memory with the same arguments."""
    for one, other in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,)):
        assert torch.equal(one, other)
        if other.untyped_storage().data_ptr() == kept.untyped_storage().data_ptr():
            assert one.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr()
            assert (one.stride(), one.storage_offset()) == (other.stride(), other.storage_offset())
    assert torch.equal(cache, kept)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_views_of_an_argument(name, cache, dynamic):
    compiled = torch.compile(FUNCTIONS[name], backend="diffattn", dynamic=dynamic)
    for n, m in ((20, 3), (31, 5)) if dynamic else ((20, 3),):
        given, kept, new = CACHES[cache](n), CACHES[cache](n), torch.randn(4, m, 2)
        with torch.no_grad():
            got, want = compiled(given, new), FUNCTIONS[name](kept, new)
        same(got, want, given, kept)


@pytest.mark.parametrize("dynamic", [False, True])
def test_axes_that_are_exchanged_in_place(dynamic):
    function = lambda x: x.t_() * 2
    compiled = torch.compile(function, backend="diffattn", dynamic=dynamic)
    given, kept = (torch.arange(60.0).view(6, 10)[:, ::2] for _ in range(2))
    with torch.no_grad():
        assert torch.equal(compiled(given), function(kept))
    assert (given.shape, given.stride()) == (kept.shape, kept.stride()) and torch.equal(given, kept)


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_a_view_whose_place_an_element_says():
    function = lambda x, at: (x[at.item():], x + 1)
    compiled = torch.compile(function, backend="diffattn", dynamic=True, options={"whole": True})
    with torch.no_grad():
        for at in (3, 5):
            given = torch.randn(9, 2)
            same(compiled(given, torch.tensor(at)), function(given, torch.tensor(at)), given, given)
