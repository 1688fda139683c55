"""Tensors of PyTorch that have no elements, as of an empty batch: by diffattn.compile and by torch.compile."""
import pytest
import torch
from torch import nn

import diffattn

pytestmark = pytest.mark.oracle


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


def check(door, function, *given):
    """Results, and what is written to the arguments, as PyTorch's own."""
    torch._dynamo.reset()
    module, wanted = Function(lambda *tensors: function(*tensors)), [x.clone() for x in given]
    with torch.no_grad():
        want = function(*wanted)
        compiled = diffattn.compile(module, tuple(x.clone() for x in given)) if door == "export" else torch.compile(module, backend="diffattn")
        for _ in range(2):
            got = compiled(*given)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert all(torch.equal(one, other) for one, other in zip(given, wanted))


def attention(x):
    batch, length, _ = x.shape
    x = x.view(batch, length, 2, 8).transpose(1, 2)
    a1, a2 = (one @ one.mT for one in x.chunk(2, -1))
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    return (a1.masked_fill(hidden, float("-inf")).softmax(-1) - 0.3 * a2.softmax(-1)) @ x


@pytest.mark.parametrize("door", ["export", "dynamo"])
@pytest.mark.parametrize("shape", [(0, 5, 16), (2, 0, 16)], ids=["batch", "length"])
@pytest.mark.parametrize("function", [attention, lambda x: x * 2, lambda x: (x.view(*x.shape[:2], 4, 4).transpose(1, 2) + 1, x, x.sort().values),
                                      lambda x: x.flatten(0, 1).sum(0), lambda x: (x.mean((0, 1)), x.var((0, 1)), x.mT @ x, x.amax(-1))],
                         ids=["attention", "pointwise", "views", "sum", "reductions"])
def test_arguments_without_elements(function, shape, door):
    check(door, function, torch.randn(shape))


CONSTANTS = {
    "hstack": lambda x: x + torch.hstack([torch.zeros(5, 0), torch.full((5, 5), 3.0).triu(1)]).type_as(x),
    "cat": lambda x: torch.cat([x, torch.ones(0, 5), x]),
    "one": lambda x: torch.cat([torch.zeros(5, 0), x], 1),
    "promoted": lambda x: torch.cat([torch.zeros(5, 0, dtype=torch.float64), x], 1) * 1e20 * 1e20,
    "promoted alone": lambda x: torch.cat([torch.zeros(5, 0, dtype=torch.float64), x], 1),
    "alone": lambda x: (torch.zeros(5, 0), torch.full((0, 2), 1, dtype=torch.int64), x + 1),
    "linear": lambda x: nn.functional.linear(torch.zeros(5, 0), torch.ones(3, 0), x[0, :3]),
    "slice": lambda x: torch.cat([x[:, :0], x], 1).slice_scatter(x[:0], 0, 2, 2),
}


@pytest.mark.parametrize("door", ["export", "dynamo"])
@pytest.mark.parametrize("name", CONSTANTS)
def test_operands_without_elements(name, door):
    check(door, CONSTANTS[name], torch.randn(5, 5))


@pytest.mark.parametrize("door", ["export", "dynamo"])
def test_no_rows_are_written(door):
    def write(cache, rows, places):
        cache[:, 3:3 + rows.shape[1]] = rows
        cache.index_copy_(1, places, rows)
        return cache.sum(1)

    check(door, write, torch.randn(2, 9, 4), torch.randn(2, 0, 4), torch.zeros(0, dtype=torch.int64))


def test_a_result_is_no_argument():
    x = torch.ones(5, 5)
    result = diffattn.compile(Function(lambda x: torch.cat([x, torch.zeros(5, 0)], 1)), (x,))(x)
    result.zero_()
    assert x.all()


def test_sizes_that_are_symbols():
    """Dynamo takes a size of 0 as known, beside others that are not."""
    torch._dynamo.reset()
    view = lambda x: x.view(x.shape[1], x.shape[0], 2, -1 if len(x) else x.shape[2] // 2) * 2  # noqa: E731
    compiled = torch.compile(view, backend="diffattn")
    for batch, length in ((2, 3), (4, 5), (0, 7), (0, 6), (3, 6)):
        x = torch.randn(batch, length, 8)
        torch.testing.assert_close(compiled(x), view(x))


@pytest.mark.parametrize("door", ["export", "dynamo"])
def test_variances_beside_means(door):
    check(door, lambda x: (*torch.var_mean(x), *torch.std_mean(x, 1, keepdim=True), x.var(), x.std(1)), torch.empty(3, 0, 4))


def test_one_number_along_an_axis():
    """That it does not have: of variances torch-mlir ends the process, of a softmax it does not come back."""
    check("export", lambda x: (x.softmax(0), x.log_softmax(-1), x.logsumexp(0), x.var(0), x.std(-1, keepdim=True), *torch.var_mean(x, 0, correction=0)), torch.tensor(1.5))


@pytest.mark.parametrize("door", ["export", "dynamo"])
def test_one_number_that_is_padded_for_nothing(door):
    """torch-mlir ends the process where it compares such a number while it lowers, and takes its angle for NaN."""
    pad = lambda x: torch.nn.functional.pad(x, (1, 0))  # noqa: E731
    check(door, lambda x: (pad(x) < 0, pad(x) == 0, torch.atan2(pad(x), pad(x)), torch.signbit(pad(x)), pad(x) * 2), torch.empty(4, 4, 0))
