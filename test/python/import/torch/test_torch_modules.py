"""diffattn.compile on small modules: what goes in and out, what a module changes, and weights that change later."""
import math
import re

import pytest
import torch
from torch import nn

import diffattn
from diffattn import runtime

pytestmark = pytest.mark.oracle


def check(module, args=(), kwargs=None, calls=(), tolerance=1e-5, **options):
    """Compiles, and compares calls with the module's own; gives the compiled function."""
    compiled = diffattn.compile(module, args, kwargs, **options)
    for call_args, call_kwargs in [(args, kwargs or {}), *calls]:
        with torch.no_grad():
            want = module(*call_args, **call_kwargs)
            same(compiled(*call_args, **call_kwargs), want, tolerance)
    return compiled


def same(got, want, tolerance=1e-5):
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, check_stride=True)


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


def test_structures_in_and_out():
    class Tree(nn.Module):
        def forward(self, x, pair, *, scale=None, more=None, times=1):
            y = x if scale is None else x * scale
            return {"sum": y + pair[0], "rest": [pair[1]["z"] * times, None, 3], "same": x, "more": more}

    x, a, z = torch.randn(2, 3), torch.randn(2, 3), torch.randn(4, dtype=torch.float64)
    compiled = check(Tree(), (x, (a, {"z": z})), {"scale": torch.tensor(2.0), "times": 3})
    got = compiled(pair=(a, {"z": z}), times=3, scale=torch.tensor(0.5), x=x)  # by name what was given by place
    same(got["sum"], x * 0.5 + a)
    assert got["same"] is x and got["rest"][1:] == [None, 3]
    with pytest.raises(diffattn.errors.InputError, match=r"times: expected 3, the value that the module was compiled for, but got 4"):
        compiled(x, (a, {"z": z}), scale=torch.tensor(2.0), times=4)
    with pytest.raises(diffattn.errors.InputError, match=r"expected arguments of the structure .*\(\*, \(\*, \{'z': \*\}\)"):
        compiled(x, (a, z), scale=torch.tensor(2.0), times=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8,
                                   torch.uint8, torch.bool])
def test_types_of_elements(dtype):
    x = torch.tensor([[0, 1, 0], [1, 1, 0]]).to(dtype)
    check(Function(lambda x: (torch.where(x == 1, x, x), x.reshape(3, 2))), (x,))


def test_strides_of_arguments_and_results():
    x = torch.randn(4, 6, 5)
    compiled = check(Function(lambda x: ((x + 1).transpose(0, 2), (x * 2).permute(1, 2, 0), (x + 3)[:, :1].expand(4, 6, 5) * 1)), (x,))
    for view in (x.transpose(0, 1).contiguous().transpose(0, 1), torch.randn(4, 6, 10)[..., ::2], torch.randn(4, 1, 5).expand(4, 6, 5)):
        got = compiled(view)
        torch.testing.assert_close(got[0], (view + 1).transpose(0, 2))
        assert got[0].stride() == (1, 5, 30)
    with torch.no_grad():
        assert not compiled(x)[0].requires_grad


def test_a_result_is_fresh_each_time():
    compiled = diffattn.compile(Function(lambda x: x + 1), (torch.zeros(3),))
    first, second = compiled(torch.zeros(3)), compiled(torch.ones(3))
    first.fill_(7)
    assert second.tolist() == [2, 2, 2]


@pytest.mark.parametrize("door", ["export", "dynamo"])
@torch.no_grad()
def test_the_order_of_sums_is_a_choice(door):
    """Without it, one row has a kernel whose order is another than that of many."""
    torch._dynamo.reset()
    layer, x = nn.Linear(200, 72), torch.randn(33, 200)
    kept = []
    for choice in (True, False):
        if door == "export":
            one, many = (diffattn.compile(layer, (x[:rows],), batch_invariant=choice) for rows in (1, 33))
        else:
            one = many = torch.compile(layer, backend="diffattn", options={"batch_invariant": choice}, dynamic=False)
        kept.append(torch.equal(one(x[:1]), many(x)[:1]))
        torch.testing.assert_close(many(x), layer(x), rtol=1e-4, atol=1e-5)
        torch._dynamo.reset()
    assert kept == [True, False]


def test_dynamic_sizes():
    size = torch.export.Dim("n", min=2, max=9)
    module = nn.Linear(4, 3)
    compiled = check(module, (torch.randn(3, 4),), dynamic_shapes=({0: size},), calls=[((torch.randn(n, 4),), {}) for n in (2, 9)])
    with pytest.raises(diffattn.errors.InputError, match=r"input, size of axis 0: expected a size from 2 to 9, but got 10"):
        compiled(torch.randn(10, 4))
    two = diffattn.compile(Function(lambda x, y: x + y), (torch.randn(3), torch.randn(3)), dynamic_shapes=({0: size}, {0: size}))
    with pytest.raises(diffattn.errors.InputError, match=r"y, size of axis 0: expected 4, as for x, size of axis 0, but got 5"):
        two(torch.randn(4), torch.randn(5))


def test_sizes_as_results():
    size = torch.export.Dim("n", min=2, max=9)
    module = Function(lambda x: (x * 2, x.shape[0] * 3, x.shape[0] * 3, x.shape[0], {"last": x.shape[0] * 3}))
    check(module, (torch.randn(3, 4),), dynamic_shapes=({0: size},), calls=[((torch.randn(n, 4),), {}) for n in (2, 9)])
    check(Function(lambda x: (x.shape[0] + 1, None)), (torch.randn(3, 4),), dynamic_shapes=({0: size},), calls=[((torch.randn(5, 4),), {})])


def test_what_a_module_changes():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.register_buffer("kept", torch.zeros(4, 2), persistent=False)

        def forward(self, x, into):
            self.count += 1
            self.kept[1] = x
            into.mul_(2)
            return self.kept.sum() + into.sum()

    ours, theirs = Cache(), Cache()
    compiled = diffattn.compile(ours, (torch.ones(2), torch.ones(3)))
    assert ours.count == 0
    for k in range(3):
        into = [torch.arange(3.0) + k for _ in range(2)]
        with torch.no_grad():
            want = theirs(torch.full((2,), float(k)), into[1])
        same(compiled(torch.full((2,), float(k)), into[0]), want)
        same(into[0], into[1])
    same(ours.count, theirs.count)
    same(ours.kept, theirs.kept)


def test_batch_norm_in_both_modes():
    x = torch.randn(5, 3, 4)
    ours, theirs = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    compiled = diffattn.compile(ours, (x,))
    with torch.no_grad():
        same(compiled(x), theirs(x))
    same(ours.running_var, theirs.running_var)
    check(theirs.eval(), (x,))


def test_a_weight_changes():
    module = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64))
    x = torch.randn(7, 64)
    compiled = check(module, (x,))

    def is_right():
        with torch.no_grad():
            same(compiled(x), module(x), 1e-4)

    runtime.reset_counters()
    is_right()
    is_right()
    packs = runtime.counters().packs
    assert packs <= 2  # not more than once for each weight
    with torch.no_grad():
        module[0].weight.mul_(2)
    is_right()
    module[2].weight = nn.Parameter(torch.randn(64, 96))
    is_right()
    module[2].weight = nn.Parameter(torch.randn(96, 64).t())  # not dense
    is_right()
    with torch.no_grad():
        module[2].weight.add_(1)
    is_right()
    module.load_state_dict({name: value + 1 for name, value in module.state_dict().items()})
    is_right()
    module[0].weight.data = torch.randn(96, 64)
    is_right()
    module[0].weight.detach().numpy()[:] = 0.5  # nothing tells of it
    compiled.refresh()
    is_right()
    runtime.reset_counters()
    is_right()
    assert runtime.counters().packs == 0


def test_ops_of_masks_and_caches():
    """Ops that torch-mlir lowers to ops that MLIR 22 does not parse."""
    x, index = torch.randn(2, 5, 3), torch.tensor([3, 0])
    part = torch.randn(2, 2, 3)
    places = torch.tensor([[1, 4, 0], [2, 2, 2]])

    def ops(x, index, part, places):
        put = x.clone()
        put[:, index] = part
        masked = x.clone()
        masked[x > 0] = 2.5
        masked[:, x[0, :, 0] > 0] = 1.5
        masked[..., x[0, 0] > 0] = 0.5
        masked[:, x[1] > 1] = -0.5
        return (x.cumsum(1), (x > 0).cumsum(-1), x.index_copy(1, index % 5, part), put, masked,
                x[:, :3, 0].scatter(1, places % 3, part[:, 0]), x[:, 0].scatter(1, places[:, :1].expand(2, 3) % 3, 4.0))

    compiled = check(Function(ops), (x, index, part, places))
    same(compiled(x, index - 5, part, places)[3], compiled(x, index, part, places)[3])
    for wrong in (5, -6):
        with pytest.raises(diffattn.errors.RunError):
            compiled(x, torch.tensor([0, wrong]), part, places)


def test_one_tensor_in_two_places_of_the_example():
    """Calls may give two."""
    class Difference(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x, y, z):
            return x - 2 * y["y"] + 3 * z - 4 * self.weight

    module, x = Difference(), torch.randn(3)
    others = (torch.randn(3), {"y": torch.randn(3)}, torch.randn(3))
    check(module, (x, {"y": x}, module.weight), calls=[(others, {})])
    check(module, (x, {"y": x}), {"z": x}, calls=[(others[:2], {"z": others[2]})])


def test_integers_are_exact():
    x = torch.tensor([2**40 + 1, -(2**62) - 3, 0])
    compiled = check(Function(lambda x: (-x, x.neg() - 1, x * -3, x // 7)), (x,))
    assert compiled(x)[0].tolist() == [-(2**40) - 1, 2**62 + 3, 0]


def test_constants_of_truth_values_and_bf16():
    mask = torch.tensor([[(i * j) % 3 == 0 for j in range(13)] for i in range(11)])

    class Masked(nn.Module):
        def forward(self, x):
            return torch.where(torch.tensor([[True, False], [False, False]]), x, torch.tensor(-1.5, dtype=torch.bfloat16)), mask & True

    check(Masked(), (torch.randn(2, 2).bfloat16(),))


def test_one_text_for_one_module():
    module, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()), torch.randn(2, 4)
    compiled, again = check(module, (x,)), check(module, (x,))
    assert compiled.mlir == again.mlir and "diffattn.weight" in compiled.mlir and "dense_resource" not in compiled.mlir
    assert compiled.diagnostics == []


def test_nothing_to_compute():
    check(Function(lambda x: (x, 2)), (torch.ones(2),))


@pytest.mark.parametrize("target", ["cpu:generic", "cuda-sim:sm_80"])
def test_targets(target):
    check(nn.Linear(8, 8), (torch.randn(3, 8),), target=target)


GUARDS = {  # of rows without keys by the mask `m`, and whether they are zero in the op, too
    "any": (lambda a, m, n: a.masked_fill(~m.any(-1, True), 0), True),
    "all": (lambda a, m, n: a.masked_fill((~m).all(-1, keepdim=True), 0), True),
    "where": (lambda a, m, n: torch.where(m.any(-1, True), a, 0.0), True),
    "count": (lambda a, m, n: torch.where(m.sum(-1, keepdim=True) > 0, a, 0.0), True),
    "count_is_0": (lambda a, m, n: a.masked_fill(m.sum(-1, keepdim=True) == 0, 0), True),
    "count_in_floats": (lambda a, m, n: a.masked_fill(m.float().sum(-1, keepdim=True) < 1, 0), True),
    "more_than_one": (lambda a, m, n: torch.where(m.sum(-1, keepdim=True) > 1, a, 0.0), False),
    "count_is_1": (lambda a, m, n: a.masked_fill(m.sum(-1, keepdim=True) == 1, 0), False),
    "count_of_hidden": (lambda a, m, n: a.masked_fill((~m).sum(-1, keepdim=True) == 0, 0), False),
    "any_of_another_mask": (lambda a, m, n: a.masked_fill(~n.any(-1, True), 0), False),
    "all_of_what_is_seen": (lambda a, m, n: a.masked_fill(m.all(-1, keepdim=True), 0), False),
    "of_part_of_the_keys": (lambda a, m, n: a.masked_fill(~m[..., :5].any(-1, True), 0), False),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", GUARDS)
@pytest.mark.parametrize("causal", [False, True])
def test_guards_of_rows_without_keys(name, causal):
    guard, fused = GUARDS[name]

    def attention(q1, k1, q2, k2, v, m, n):
        def weights(q, k):
            scores = (q @ k.mT * 0.25).masked_fill(~m, float("-inf"))
            scores = scores.masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), float("-inf")) if causal else scores
            return guard(scores.softmax(-1), m, n)
        return (weights(q1, k1) - 0.3 * weights(q2, k2)) @ v

    seen, other = torch.rand(2, 1, 9, 9) < 0.4, torch.rand(2, 1, 9, 9) < 0.2
    seen[0, 0, 3], seen[:, :, :, 0] = False, torch.arange(9) != 3  # a row without keys, and others with the first one
    arguments = (*(torch.randn(2, 3, 9, 16) for _ in range(4)), torch.randn(2, 3, 9, 32), seen, other)
    compiled, want = diffattn.compile(Function(attention), arguments), attention(*arguments)
    got = compiled(*arguments)
    empty = want.isnan()
    assert torch.allclose(got[~empty], want[~empty], atol=1e-5) and bool(compiled.applied) == fused


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_key_head_with_a_bias_of_each_head(dynamic):
    """Heads and queries look alike to the products; the mask of positions says which are queries."""
    def attention(q1, k1, q2, k2, v):
        at = torch.arange(q1.shape[2])
        slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None]
        bias, hidden = slopes * (at[None] - at[:, None]), at[None] > at[:, None]
        a1, a2 = ((q @ k.mT * 0.25 + bias).masked_fill(hidden, float("-inf")).softmax(-1) for q, k in ((q1, k1), (q2, k2)))
        return (a1 - 0.3 * a2) @ v

    def arguments(batch, length):
        return tuple(torch.randn(batch, heads, length, 16) for heads in (4, 1, 4, 1, 1))

    sizes = {0: torch.export.Dim("batch", max=64), 2: torch.export.Dim("length", min=2, max=4096)}
    first, other = arguments(2, 12), arguments(3, 40) if dynamic else arguments(2, 12)
    compiled = check(Function(attention), first, calls=[(other, {})], dynamic_shapes=(sizes,) * 5 if dynamic else None)
    assert compiled.applied and not compiled.diagnostics
    raised, = [line for line in runtime.emit(compiled.mlir, "raised").decode().splitlines() if " diffattn.attention " in line]
    assert re.search(r"tensor<\S+x4x\S+x16xf32>", raised) and "causal" in raised, raised


@pytest.mark.parametrize("base", [math.e, 2.0])
def test_softmax_by_powers(base):
    def attention(q1, k1, q2, k2, v):
        def weights(q, k):
            scores = q @ k.mT * 0.25
            powers = torch.pow(base, scores - scores.amax(-1, keepdim=True))
            return powers / powers.sum(-1, keepdim=True)
        return (weights(q1, k1) - 0.3 * weights(q2, k2)) @ v

    assert check(Function(attention), tuple(torch.randn(2, 3, 9, 16) for _ in range(5))).applied


@pytest.mark.parametrize("shifted", [False, True])
def test_a_guard_of_rows_of_large_numbers(shifted):
    """Without its maximum a softmax of them is 0 / 0, which the guard makes zero; with it, it is the mean."""
    def attention(q1, k1, q2, k2, v, seen):
        def weights(q, k):
            scores = q @ k.mT * 0.25 + (1 - seen.float()) * -1e5
            powers = (scores - scores.amax(-1, keepdim=True) if shifted else scores).exp()
            return torch.nan_to_num(powers / powers.sum(-1, keepdim=True))
        return (weights(q1, k1) - 0.3 * weights(q2, k2)) @ v

    seen = torch.rand(2, 1, 9, 9) < 0.5
    seen[0, 0, 3], seen[:, :, :, 0] = False, torch.arange(9) != 3
    compiled = check(Function(attention), (*(torch.randn(2, 3, 9, 16) for _ in range(5)), seen))
    assert bool(compiled.applied) == shifted


def test_a_cache_that_is_cut_at_a_number(programs):
    """The number of keys is what is cut off, a number of the graph; what lies behind it may be anything."""
    def attention(q1, q2, k1, k2, v, length):
        k1, k2, v = (cache[:, :, :length + 1] for cache in (k1, k2, v))
        a1, a2 = ((q @ k.mT * 0.25).softmax(-1) for q, k in ((q1, k1), (q2, k2)))
        return (a1 - 0.3 * a2) @ v

    compiled = torch.compile(attention, backend="diffattn")
    operands = [torch.randn(2, 3, length, 16) for length in (1, 1, 20, 20, 20)]
    for cache in operands[2:]:
        cache[:, :, 12:] = torch.nan
    with torch.no_grad():
        for length in (3, 5, 11):
            same(compiled(*operands, length), attention(*operands, length))
    assert len(programs) == 2 and all(one.applied and not one.diagnostics for one in programs)
