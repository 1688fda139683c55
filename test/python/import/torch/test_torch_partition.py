"""Graphs of which parts are compiled: results as PyTorch's, whatever stays there, and one warning that names it."""
import copy
import random
import warnings

import pytest
import torch
from torch import nn

import diffattn
from diffattn import errors
from diffattn.torch import program, refusals, reports
from diffattn.torch.partition import PartitionedProgram

pytestmark = pytest.mark.oracle
#: An op that torch-mlir does not lower.
foreign = torch.lgamma


class Of(nn.Module):
    """A function with buffers: `forward` is `function(self, ...)`."""

    def __init__(self, function, **buffers):
        super().__init__()
        torch.manual_seed(0)
        self.function, self.first, self.second = function, nn.Linear(16, 16), nn.Linear(16, 16)
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, *args):
        return self.function(self, *args)


def same(got, want):
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)


@torch.no_grad()
def check(module, *args, parts, ops=("aten.lgamma.default",), dynamic=None):
    """By both doors, twice, with what the module changes. The number of compiled parts, and what the warning names."""
    made = []
    for door in ("compile", "backend"):
        torch._dynamo.reset()
        ours, like = copy.deepcopy(module), copy.deepcopy(module)
        with pytest.warns(RuntimeWarning, match="run.* in PyTorch") as warned:
            if door == "compile":
                called = made = diffattn.compile(ours, args, dynamic_shapes=dynamic)
            else:
                called = torch.compile(ours, backend="diffattn", dynamic=dynamic is not None)
                called(*copy.deepcopy(args))
                copy.deepcopy(like)(*copy.deepcopy(args))
                like(*copy.deepcopy(args))
                assert reports()[-1].parts == parts and reports()[-1].uncompiled
        text = next(str(one.message) for one in warned if "in PyTorch" in str(one.message))
        assert all(op in text for op in ops) and "test_torch_partition.py:" in text and "whole=True" in text
        for _ in range(2):
            given, wanted = copy.deepcopy(args), copy.deepcopy(args)
            same(called(*given), like(*wanted))
            same(given, wanted)
            same(list(ours.buffers()), list(like.buffers()))
    program = made._program
    assert isinstance(program, PartitionedProgram) and program.num_parts == parts and made.uncompiled
    return made


X = torch.rand(4, 16, generator=torch.Generator().manual_seed(1)) + 1


def test_a_part_before_and_one_behind():
    made = check(Of(lambda m, x: m.second(foreign(m.first(x).relu() + 1))), X, parts=2)
    (line,) = made.uncompiled
    assert line.startswith(f"{__file__}:") and line.endswith(": aten.lgamma.default")
    with pytest.raises(errors.CompileError, match=r"test_torch_partition\.py:\d+: expected ops that torch-mlir lowers .* but got aten\.lgamma\.default"):
        diffattn.compile(Of(lambda m, x: foreign(m.first(x))), (X,), whole=True)


def test_what_the_table_knows_is_not_tried(monkeypatch):
    lowered, lower = [], program.lower
    monkeypatch.setattr(program, "lower", lambda module, *args: lowered.append(module) or lower(module, *args))
    for known, tries in ((True, 2), (False, 3)):  # the two parts; or the whole graph before them
        monkeypatch.setattr(refusals, "is_lowered", lambda node, known=known: not known or node.target is not torch.ops.aten.lgamma.default)
        lowered.clear()
        with torch.no_grad(), pytest.warns(RuntimeWarning, match="aten.lgamma.default"):
            diffattn.compile(Of(lambda m, x: m.second(foreign(m.first(x)))), (X,), cache=False)
        assert len(lowered) == tries


def test_the_table():
    """By names that PyTorch has, and what it says of some that are sure."""
    table = refusals._lowered()
    assert len(table) > 250 and all(len(row) == 3 and set(row[0].split()) <= set(refusals._NAMES.values()) for row in table.values())
    for name, is_there in (("aten.add.Tensor", True), ("aten.lgamma.default", False), ("aten.linalg_qr.default", False), ("aten._softmax.default", True)):
        assert ("f32" in table[name][1].split()) == is_there and "f32" in table[name][0].split()


def test_parts_that_do_not_wait_for_one_another_are_one():
    check(Of(lambda m, x: (m.first(x) + foreign(x), m.second(x))), X, parts=1)


def test_a_part_without_a_product_stays():
    check(Of(lambda m, x: foreign(x.relu() + 1).exp()), X, parts=0)


def test_ops_of_ours_that_stay():
    """Nodes that only compiled code and PyTorch's own ops compute."""
    def mixed(m, x, at):
        y = foreign(x)
        return torch.topk(y, 5), y.sort(descending=True), y.index_copy(1, at, x[:, :2]), y.index_add(1, at, x[:, :2])

    check(Of(mixed), torch.rand(4, 128) + 2, torch.tensor([3, 90]), parts=0)


def test_a_cache_is_written_in_place():
    def step(m, x, at):
        m.cache.index_copy_(0, at, m.first(x))
        return foreign((x @ m.cache.T).abs() + 1)

    module = Of(step, cache=torch.zeros(64, 16))
    made = check(module, X[:2], torch.tensor([3, 60]), parts=1)
    (program,) = made._program._programs
    assert program._written, "the rows go to the cache's own memory"


def test_what_is_read_before_it_changes():
    """An op that stays reads what a part would change: it is copied last."""
    def late(m, x):
        old = foreign(m.state + 1)
        m.state.copy_(m.first(x))
        return old + m.state

    made = check(Of(late, state=torch.ones(4, 16)), X, parts=1)
    assert made._program._changed


def test_inputs_that_change_places():
    def swap(m, x, y):
        z = x.clone()
        x.copy_(y)
        y.copy_(z)
        return m.first(x) + foreign(y)

    check(Of(swap), X, X * 2, parts=1)


def test_an_input_that_becomes_what_another_was():
    def shift(m, x, y):
        y.copy_(x)
        x.copy_(m.first(x))
        return foreign(y)

    check(Of(shift), X, X * 2, parts=1)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float8_e4m3fn])
@torch.no_grad()
def test_elements_that_compiled_code_lacks(dtype):
    module = Of(lambda m, x, y: (m.first(x) + y.float(), y))
    y = torch.ones(4, 16).to(dtype)
    with pytest.warns(RuntimeWarning, match=r"these ops of a graph run in PyTorch: .*test_torch_partition\.py:\d+: "):
        made = diffattn.compile(module, (X, y))
    assert made._program.num_parts == 1
    got, given = made(X, y)
    same(got, module(X, y)[0])
    assert given is y


@pytest.mark.parametrize("source, strides, offset", [
    (lambda y: y, (16, 0), 0), (lambda y: y[:, ::2], (16, 1), 0), (lambda y: y[:, :1].expand(-1, 16), (16, 1), None),
    (lambda y: y[:-1], (16, 1), 32), (lambda y: y[1:].relu()[:, ::4], (4, 0), None)])
def test_an_op_that_an_error_names_without_its_place(source, strides, offset):
    """torch-mlir's importer says which op has arguments that it cannot take, and not where: that one stays, and not the whole graph. What
    it reads lies where it does in PyTorch, with the holes between."""
    rows = torch.export.Dim("rows", min=4, max=64)
    module = Of(lambda m, x: m.second(source(m.first(x)).as_strided((x.shape[0] - 2, 16), strides, offset)))
    made = check(module, X, parts=2, ops=("aten.as_strided.default",), dynamic=(({0: rows},),))
    with torch.no_grad():
        same(made(X.repeat(5, 1)), module(X.repeat(5, 1)))


def test_sizes_that_calls_decide():
    rows = torch.export.Dim("rows", min=2, max=64)
    module = Of(lambda m, x: m.second(foreign(m.first(x).abs() + x.shape[0])).reshape(x.shape[0] * 2, -1))
    made = check(module, X, parts=2, dynamic=(({0: rows},),))
    with torch.no_grad():
        for count in (2, 9):
            x = torch.rand(count, 16)
            same(made(x), module(x))


def test_views_of_an_input():
    def views(m, x):
        return x.view(2, 32)[1], foreign(m.first(x)), x

    check(Of(views), X, parts=1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._dynamo.reset()
        x = X.clone()
        shown, _, given = torch.compile(Of(views), backend="diffattn")(x)
        assert given is x and shown.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_constants_of_several_parts():
    mask = torch.tril(torch.ones(4, 4)).log()
    check(Of(lambda m, x: foreign((m.first(x) @ x.T + mask).softmax(-1) + 1) @ x @ x.T + mask), X, parts=2)


def test_transforms_between_products():
    def filtered(m, x):
        return m.second(torch.fft.irfft(torch.fft.rfft(m.first(x)) * torch.fft.rfft(x), n=16)) + torch.fft.fft(x).abs()

    check(Of(filtered), X, parts=2, ops=["fft"])


def test_what_torch_mlir_orders_otherwise():
    """Ops of which compiled code has no form: running extremes, medians, distances, systems of equations."""
    def several(m, x):
        y = m.first(x)
        matrix = y @ y.T / 16 + 4 * torch.eye(4)
        return y.cummax(1), y.logcumsumexp(0), y.kthvalue(3), y.median(), y.nanmedian(1), torch.cdist(y, x), torch.linalg.solve_triangular(matrix, y, upper=True)

    check(Of(several), X, parts=1, ops=["cummax", "logcumsumexp", "kthvalue", "median", "cdist", "solve_triangular"])


OTHERWISE = {
    "signbit": lambda x, n: torch.signbit(-x * 0), "copysign": lambda x, n: torch.copysign(x, -x * 0), "hypot": lambda x, n: torch.hypot(x, x),
    "cumprod": lambda x, n: x.cumprod(0), "searchsorted": lambda x, n: torch.searchsorted(x[0].sort().values, x), "bucketize": lambda x, n: torch.bucketize(x, torch.tensor([0.0, 1, 2])),
    "embedding_bag": lambda x, n: nn.functional.embedding_bag(n % 4, x, mode="mean"), "adaptive_max_pool2d": lambda x, n: nn.functional.adaptive_max_pool2d(x[None], (3, 5)), "masked_scatter": lambda x, n: x.masked_scatter(x > 0, -x),
    "max_pool2d_with_indices": lambda x, n: nn.functional.max_pool2d(x[None], 2, return_indices=True), "pow": lambda x, n: (n**3, (-1) ** n, n**0.5, n**n.abs(), (n > 3) ** 2, n.to(torch.int8) ** 0.5, n.to(torch.uint8) ** 0.5, n.int() ** 2.5), "softmax": lambda x, n: x[0, 0].softmax(0), "var": lambda x, n: x[0, 0].var(0, correction=0),
    "add": lambda x, n: n.to(torch.int8) + 300, "mul": lambda x, n: n.to(torch.int16) * n[0, 0], "__lshift__": lambda x, n: n.to(torch.int8) << 2, "matmul": lambda x, n: n.to(torch.uint8) @ n.to(torch.uint8).T, "repeat_interleave": lambda x, n: x.repeat_interleave(n[:, 0], 0, output_size=18),
    "lt": lambda x, n: n.int() < n[0, 0] + 2**32,"eq": lambda x, n: n.int() == 2**32 + 5,
    "ldexp": lambda x, n: torch.ldexp((n + 190).to(torch.uint8), n), "sin": lambda x, n: (n + 190).to(torch.uint8).sin(),
    "max_pool2d": lambda x, n: nn.functional.max_pool2d((n * 20).to(torch.uint8)[None], 2), "max_pool3d": lambda x, n: [nn.functional.max_pool3d(n.reshape(1, 3, 2, 2).to(dtype), 2) for dtype in (torch.int32, torch.int64)],
    "roll": lambda x, n: (x.roll(19, 1), x.roll(-5, 0), x.roll(3), n.roll(2, (0,))), "all": lambda x, n: torch.all(x > 0, dim=(0, 1)), "diagonal_scatter": lambda x, n: (x.diagonal_scatter(x[0, :4] * 2), x.clone().fill_diagonal_(3.5)),
    "arange": lambda x, n: torch.arange(0, 250, 50, dtype=torch.uint8)}


@pytest.mark.parametrize("name", OTHERWISE)
@torch.no_grad()
def test_what_torch_mlir_computes_otherwise(name):
    """Or ends the process at, or does not come back of."""
    module, n = Of(lambda m, x, n: (m.first(x), OTHERWISE[name](x, n))), torch.arange(12).reshape(4, 3)
    with pytest.warns(RuntimeWarning, match="run in PyTorch"):
        made = diffattn.compile(module, (X, n))
    assert made._program.num_parts == 1 and any(name in one for one in made.uncompiled), made.uncompiled
    same(made(X, n), module(X, n))
    with pytest.raises(errors.CompileError, match=rf"expected (ops that torch-mlir lowers|results whose sizes|elements of) .*{name}"):
        diffattn.compile(module, (X, n), whole=True)


def test_weights_are_read_anew():
    module = Of(lambda m, x: m.second(foreign(m.first(x).abs() + 1)))
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="in PyTorch"):
        made = diffattn.compile(module, (X,))
    with torch.no_grad():
        module.first.weight.mul_(2)
        same(made(X), module(X))
        module.second.weight.data.mul_(2)
        made.refresh()
        same(made(X), module(X))


def test_random_numbers_stay():
    torch._dynamo.reset()
    compiled = torch.compile(Of(lambda m, x: nn.functional.dropout(m.first(x), 0.5, True)), backend="diffattn")
    with torch.no_grad(), pytest.warns(RuntimeWarning, match=r"run in PyTorch: .*test_torch_partition\.py:\d+: aten\.\w+"):
        got = compiled(X)
    with torch.no_grad():
        share = (got == 0).float().mean()
        assert 0.2 < share < 0.8 and not torch.equal(compiled(X), got)


class Attention(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, q1, k1, q2, k2, v, lam):
        maps = [torch.softmax(q @ k.mT * 0.25, -1) for q, k in ((q1, k1), (q2, k2))]
        if self.inside:
            maps[0] = foreign(maps[0] + 1)
        return foreign((maps[0] - lam * maps[1]) @ v + 5)


def test_attention_is_in_one_part_or_named():
    q1, k1, q2, k2 = torch.randn(4, 2, 4, 8, 16, generator=torch.Generator().manual_seed(2))
    given = q1, k1, q2, k2, torch.randn(2, 4, 8, 32), torch.tensor(0.3)
    made = check(Attention(False), *given, parts=1)
    assert [one.name for one in made.applied] == ["Raised", "SelectSchedule"]
    with torch.no_grad(), pytest.warns(RuntimeWarning, match=r"this cuts the attention at .*test_torch_partition\.py:\d+, which is not fused"):
        made = diffattn.compile(Attention(True), given)
        same(made(*given), Attention(True)(*given))
    assert "Raised" not in [one.name for one in made.applied]


def random_module(seed):
    """Up to 12 steps on what was made before, of ops that are compiled and ones that are not, and changes of buffers."""
    choose = random.Random(seed)
    steps = [choose.choice(["linear", "foreign", "relu", "add", "product", "state", "row", "softmax", "erfinv"]) for _ in range(choose.randint(4, 12))]
    picks = [(choose.random(), choose.random()) for _ in steps]

    def run(m, x):
        values = [x]
        for step, (a, b) in zip(steps, picks):
            one, other = values[int(a * len(values))], values[int(b * len(values))]
            if step == "linear":
                values.append(m.first(one) + m.second(other))
            elif step == "foreign":
                values.append(foreign(one.abs() + 0.5).clamp(-5, 5))
            elif step == "erfinv":
                values.append(torch.erfinv(torch.tanh(one) * 0.9))
            elif step == "relu":
                values.append(one.relu() * 0.5)
            elif step == "add":
                values.append(one - other)
            elif step == "product":
                values.append(torch.tanh(one @ other.T) @ other)
            elif step == "softmax":
                values.append(one.softmax(-1) * 4)
            elif step == "state":
                m.state.add_(one * 0.1)
                values.append(m.state * 1.0)
            else:
                m.state[1:3] = other[:2]
                values.append(m.state + one)
        return tuple(values[-3:])

    return Of(run, state=torch.ones(4, 16))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(24))
@torch.no_grad()
def test_random_graphs(seed):
    module = random_module(seed)
    ours, like = copy.deepcopy(module), copy.deepcopy(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = diffattn.compile(ours, (X,))
    for number in range(3):
        x = X * (number + 1) / 2
        same(made(x), like(x))
        same(ours.state, like.state)
