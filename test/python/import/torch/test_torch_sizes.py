"""diffattn.compile with sizes that are symbols: views, arithmetic on sizes, what the module decides by them, and sizes that are equal."""
import math

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import diffattn
from diffattn.torch import views
from diffattn.torch.graph import prepare

pytestmark = pytest.mark.oracle


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


def compiled_for_any(function, *shapes):
    """Compiled for tensors of these shapes, of which all axes that are not of 4 elements may differ."""
    dynamic = tuple({axis: Dim.DYNAMIC for axis, size in enumerate(shape) if size != 4} for shape in shapes)
    return diffattn.compile(Function(lambda *tensors: function(*tensors)), tuple(torch.randn(shape) for shape in shapes), dynamic_shapes=(dynamic,))


VIEWS = {
    "merged": lambda x: x.reshape(x.shape[0] * x.shape[1], 4, 4) + 1,
    "merged_and_split": lambda x: (x.view(-1, 16) * 2).view(x.shape),
    "split": lambda x: x.view(x.shape[0], x.shape[1], 2, 8).transpose(1, 2).reshape(x.shape[0] * 2, x.shape[1], 8),
    "units": lambda x: (x[:, None].view(x.shape[0], x.shape[1], 1, 4, 1, 4) * 2).reshape(x.shape[0], -1, 4, 1, 4, 1),
    "all": lambda x: x.flatten() * 2,
    "of_sums": lambda x: torch.cat([x, x[:, :1]], 1).repeat_interleave(2, 2).view(x.shape[0], -1, 2, 16).flatten(0, 1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name):
    compiled = compiled_for_any(VIEWS[name], (2, 3, 4, 4))
    assert "inferred" not in compiled.mlir
    for batch, length in ((2, 3), (3, 5), (5, 7)):
        x = torch.randn(batch, length, 4, 4)
        torch.testing.assert_close(compiled(x), VIEWS[name](x), rtol=0, atol=0)


@pytest.mark.parametrize("function", [
    lambda x: torch.cat(x.chunk(2), 1) if x.shape[0] % 2 == 0 else x,
    lambda x: x.chunk(3, 1)[1] * 2,
    lambda x: x.split(x.shape[1] // 2, 1)[0] - x.split([1, x.shape[1] - 1], 1)[0]])
def test_pieces_of_an_axis(function):
    compiled = torch.compile(function, backend="diffattn", dynamic=True)
    for shape in ((4, 6), (6, 5), (5, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)
    torch._dynamo.reset()


def test_halves_of_a_batch_compiled_ahead():
    compiled = compiled_for_any(lambda x: x.chunk(2)[1] * 2, (6, 4))
    for batch in (4, 5, 8):
        x = torch.randn(batch, 4)
        torch.testing.assert_close(compiled(x), x.chunk(2)[1] * 2, rtol=0, atol=0)


def test_a_number_that_symbols_hide():
    """`8` of the view is a quotient of two batches to PyTorch, which has a symbol for each."""
    def rotated(q, k):
        x = k.view(k.shape[0], q.shape[1] * 8, 8)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((-b, a), -1)

    compiled = torch.compile(rotated, backend="diffattn")
    for batch, length in ((1, 37), (3, 37), (3, 130)):
        q, k = torch.randn(length, batch, 64), torch.randn(length + 4, batch, 64)
        torch.testing.assert_close(compiled(q, k), rotated(q, k), rtol=0, atol=0)
    # Batches of which it would be 16: PyTorch has no such view.
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError):
        compiled(torch.randn(9, 3, 64), torch.randn(9, 6, 64))
    torch._dynamo.reset()


def test_sizes_of_another_tensor():
    """The sizes of a view are another tensor's, of which PyTorch knows no more than that the product is the same."""
    def viewed(x, y):
        return y.view(x.shape[0], x.shape[1], 2, 16) * 2

    compiled = torch.compile(viewed, backend="diffattn", dynamic=True)
    for batch, length in ((1, 40), (3, 130), (5, 7)):
        x, y = torch.randn(batch, length, 64), torch.randn(batch, length, 32)
        torch.testing.assert_close(compiled(x, y), viewed(x, y), rtol=0, atol=0)
    x, y = torch.randn(6, 10, 64), torch.randn(4, 15, 32)
    torch.testing.assert_close(compiled(x, y), viewed(x, y), rtol=0, atol=0)
    torch._dynamo.reset()


def test_groups_of_axes():
    """The smallest ranges of axes that hold the same elements, or none."""
    numbers = views._Numbers()
    for before, after, groups in (([6], [2, 3], [((0, 1), (0, 2))]), ([6, 7], [3, 14], [((0, 2), (0, 2))]), ([6, 1, 1], [6], [((0, 3), (0, 1))]),
                                  ([5, 6], [5, 3, 2], [((0, 1), (0, 1)), ((1, 2), (1, 3))]), ([], [1], None), ([6], [7], None), ([6, 2], [6], None)):
        assert views._groups(before, after, numbers) == groups


@pytest.mark.parametrize("function", [lambda n: n ** 2, lambda n: n ** 3 + n * n, lambda n: n % 3, lambda n: -n % 4, lambda n: (n + 1) // 2])
def test_arithmetic(function):
    compiled = compiled_for_any(lambda x: x * function(x.shape[0]), (5, 4))
    for rows in (2, 5, 7, 12):
        x = torch.ones(rows, 4)
        torch.testing.assert_close(compiled(x), x * function(rows))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", [
    lambda t, s: min(t, s), lambda t, s: max(t, s, 6), lambda t, s: abs(t - s), lambda t, s: torch.sym_sum([t, s, t, 3]), lambda t, s: t >> 1,
    lambda t, s: math.ceil(t / 4) * 4, lambda t, s: math.floor(s / 3), lambda t, s: int(t * 0.75), lambda t, s: int(float(s) / 2),
    lambda t, s: 9 + int((t - s) / 3), lambda t, s: math.ceil(t / s), lambda t, s: int(t ** 0.5), lambda t, s: int(t * 0.1) + s,
    lambda t, s: round(s / 4) + 1, lambda t, s: t & 3, lambda t, s: int(math.log2(t * s))])
def test_functions_of_sizes(function):
    """Results of Python's functions of sizes, as numbers and as sizes of results; Dynamo keeps them in its graph. They stay in Python."""
    torch._dynamo.reset()
    program = lambda x, y: (x * function(x.shape[0], y.shape[0]), x.new_ones(function(x.shape[0], y.shape[0])))  # noqa: E731
    compiled = torch.compile(program, backend="diffattn", dynamic=True, fullgraph=True, options={"whole": True})
    for rows, others in ((5, 3), (3, 8), (12, 7), (7, 12), (8, 4)):
        x, y = torch.ones(rows, 4), torch.ones(others, 4)
        for got, want in zip(compiled(x, y), program(x, y)):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("function", [lambda s, n: s - n, lambda s, n: torch.rsub(n, s), lambda s, n: s - n.float(), lambda s, n: s / n, lambda s, n: s // n,
                                      lambda s, n: torch.sub(s, n, alpha=2), lambda s, n: s - n.int(), lambda s, n: 5 / n])
def test_a_size_and_a_tensor(function):
    module = Function(lambda x, n: (x, function(x.shape[0], n), function(x.shape[0], n[0])))
    compiled = diffattn.compile(module, (torch.ones(5), torch.tensor([3, 4])), dynamic_shapes=({0: Dim.DYNAMIC}, None))
    for size, numbers in ((2, torch.tensor([3, 4])), (9, torch.tensor([1, 7]))):
        for got, wanted in zip(compiled(torch.ones(size), numbers), module(torch.ones(size), numbers), strict=True):
            assert got.dtype == wanted.dtype and torch.allclose(got, wanted)


def test_reciprocals_of_integers():
    numbers = torch.tensor([0, 2, -4])
    assert torch.equal(diffattn.compile(Function(lambda n: 3 / n), (numbers,))(numbers), 3 / numbers)


@pytest.mark.parametrize("shapes", [((2, 3, 5, 4), (4,)), ((4,), (2, 3, 4, 5)), ((3, 5, 4), (4,)), ((4,), (3, 4, 5)), ((5, 4), (4,)), ((4,), (4,))])
def test_products_with_vectors(shapes):
    compiled, arguments = compiled_for_any(torch.matmul, *shapes), [torch.randn([3 * size if size != 4 else 4 for size in shape]) for shape in shapes]
    assert torch.allclose(compiled(*arguments), torch.matmul(*arguments), atol=1e-5)


@pytest.mark.parametrize("shape, function, tolerance", [
    ((3, 4), lambda x: F.group_norm(x, 2, torch.arange(4.0), torch.ones(4), 1e-3), 1e-5),
    ((2, 3, 4), lambda x: F.group_norm(x.reshape(-1, 4), 2, torch.arange(4.0)), 1e-5),
    ((2, 4, 5, 3), lambda x: F.group_norm(x.bfloat16(), 4), 2e-2),
])
def test_group_norm(shape, function, tolerance):
    compiled = compiled_for_any(function, shape)
    for more in (0, 2):
        sizes = [size if size == 4 else size + more for size in shape]
        x = torch.randperm(math.prod(sizes)).float().reshape(sizes)  # no two of a group are so close that their mean cancels them
        torch.testing.assert_close(compiled(x), function(x), rtol=tolerance, atol=tolerance)


def test_expansion_says_what_stays():
    kept = lambda x: x[:, :, None].expand(x.shape[0], x.shape[1], 3, 4) * 2  # noqa: E731
    compiled = compiled_for_any(kept, (2, 3, 4))
    assert "tensor.extract" not in compiled.mlir  # at a place that depends on whether a size is 1
    more = lambda x, y: (x[:, :1].expand(y.shape[0], x.shape[0], -1, 4) * 1, y.expand(x.shape[0], -1, 4))  # noqa: E731
    both = compiled_for_any(more, (2, 3, 4), (6, 4))
    for batch, length, rows in ((2, 3, 6), (4, 5, 2)):
        x, y = torch.randn(batch, length, 4), torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), kept(x))
        torch.testing.assert_close(both(x, y), more(x, y))


def test_decisions_of_the_module_are_checked():
    def function(x, y):
        return x * int(x.shape[0] * 0.5) if x.shape[0] + y.shape[0] > 4 else x

    compiled = compiled_for_any(function, (5, 4), (3, 4))
    for rows, others in ((5, 3), (4, 2), (5, 9)):
        x, y = torch.randn(rows, 4), torch.randn(others, 4)
        torch.testing.assert_close(compiled(x, y), function(x, y))
    with pytest.raises(diffattn.errors.InputError, match=r"expected sizes for which Eq\(TruncToInt\(0.5\*ToFloat\(tensors_0.shape\[0\]\)\), 2\), as "
                                                         r"for those that the module was compiled with, but got tensors_0.shape\[0\] = 7"):
        compiled(torch.randn(7, 4), torch.randn(3, 4))
    with pytest.raises(diffattn.errors.InputError, match=r"shape\[0\] = 2, tensors_1.shape\[0\] = 2"):
        compiled(torch.randn(2, 4), torch.randn(2, 4))


def test_a_named_size_that_export_cannot_prove():
    size = Dim("rows", max=9)
    with pytest.raises(diffattn.errors.CompileError, match=r"torch.export.Dim.DYNAMIC in dynamic_shapes, in place of a named size.*rows"):
        diffattn.compile(Function(lambda x: x * int(x.shape[0] * 0.5)), (torch.ones(5, 4),), dynamic_shapes=({0: size},))


def test_sizes_that_are_multiples():
    """torch.export knows a number of which the size is a multiple, and no size is that number itself."""
    rows = Dim("rows", min=1, max=9)
    compiled = diffattn.compile(Function(lambda x, y: x[1:] + y), (torch.ones(9, 3), torch.ones(8, 3)),
                                dynamic_shapes=({0: 4 * rows + 1}, {0: 4 * rows}))
    for n in (8, 12, 36):
        x, y = torch.randn(n + 1, 3), torch.randn(n, 3)
        torch.testing.assert_close(compiled(x, y), x[1:] + y)
    for x, y, message in ((10, 8, "x, size of axis 0: expected a multiple of 4 plus 1, but got 10"),
                          (9, 10, r"y, size of axis 0: expected 8, which is 4\*\(x.shape\[0\] - 1\) / 4, but got 10"),
                          (41, 40, "x, size of axis 0: expected a size from 9 to 37, but got 41")):
        with pytest.raises(diffattn.errors.InputError, match=message):
            compiled(torch.ones(x, 3), torch.ones(y, 3))


def test_limits_of_sizes():
    compiled = compiled_for_any(lambda x: x * 2, (3, 4))
    for rows in (0, 1):
        with pytest.raises(diffattn.errors.InputError, match=rf"size of axis 0: expected a size of at least 2, but got {rows}; "
                                                             rf"torch.export.Dim\(name, min={rows}\) in dynamic_shapes widens that$"):
            compiled(torch.ones(rows, 4))
        wider = diffattn.compile(Function(lambda x: x * 2), (torch.ones(3, 4),), dynamic_shapes=({0: Dim("rows", min=rows)},))
        assert wider(torch.ones(rows, 4)).shape == (rows, 4)


def test_equal_sizes_are_stated():
    """Sizes that are one symbol in PyTorch are one size in the module too, for raising and for those that run it without PyTorch."""
    compiled = compiled_for_any(lambda x, y: (x + 1, x @ y), (3, 4), (4, 3))
    assert "diffattn.size" not in compiled.mlir
    compiled = compiled_for_any(lambda x, y: (x * 2, x + y), (3, 4), (3, 4))
    run = diffattn.runtime.Executable(compiled.mlir)
    with pytest.raises(diffattn.errors.RunError, match="expected size 3 on axis 0 of input 1 of the graph, as on axis 0 of input 0 of the graph, but got 2"):
        run.call("main", *(torch.ones(rows, 4).numpy() for rows in (3, 2)))


def test_one_tensor_met_in_two_places():
    """A buffer and a parameter that the module also holds in a list are one input, which may change."""
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))
            self.weight = nn.Parameter(torch.ones(3))
            self.held = [self.total, self.weight]

        def forward(self, x):
            self.held[0].add_(x * self.held[1])
            return self.total * self.weight

    ours, theirs = Twice(), Twice()
    compiled = diffattn.compile(ours, (torch.ones(3),))
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(compiled(torch.ones(3)), theirs(torch.ones(3)))
            ours.weight.mul_(2)
            theirs.weight.mul_(2)
    torch.testing.assert_close(ours.total, theirs.total)


def test_functions_of_functions_are_refused():
    with pytest.raises(diffattn.errors.CompileError, match="expected ATen ops alone, but got cond, which calls a function of the module"):
        diffattn.compile(Function(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))), (torch.ones(3),), whole=True)


def test_prepared_graphs_have_no_views_of_symbols():
    program = torch.export.export(Function(lambda x: x.view(-1, 4) * 2), (torch.ones(2, 3, 4),), dynamic_shapes=({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},))
    module = prepare(program.run_decompositions({}).graph_module).module
    assert [node.target for node in module.graph.nodes if node.target is torch.ops.aten.view.default] == []


@pytest.mark.parametrize("mode", ["trunc", "floor"])
def test_a_size_divided_by_a_number_as_tensors(mode):
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(lambda x: x * torch.div(x.shape[0], 2, rounding_mode=mode), backend="diffattn", dynamic=True)
        assert [compiled(torch.ones(n, 3)).sum().item() for n in (5, 8)] == [30, 96]


@pytest.mark.parametrize("function", [
    lambda x: x // x.shape[1], lambda x: (x * 9).long() // x.shape[0], lambda x: torch.div((x * 9).int(), x.shape[1], rounding_mode="trunc"),
    lambda x: x.roll(x.shape[1] // 2, 1) + x.roll(-1, 0), lambda x: x * (1 / math.sqrt(x.shape[2])), lambda x: x[:, :int(x.shape[1] * 0.5)],
    lambda x: (x[torch.arange(x.shape[0]), x.argmax(1)[:, 0]], x[:, torch.arange(x.shape[1]), -1], x[torch.arange(x.shape[0]), :, torch.arange(x.shape[0])])],
    ids=["floor", "of integers", "towards zero", "roll", "root", "view", "places along two axes"])
def test_sizes_beside_tensors(function):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="diffattn", dynamic=True)
    with torch.no_grad():
        for shape in ((3, 5, 8), (4, 6, 7)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), function(x))
