"""Element-wise ops on NaN, infinities and zeros of both signs, and sorting, against PyTorch."""
import itertools

import pytest
import torch
from torch import nn

import diffattn
from each import Each

pytestmark = pytest.mark.oracle

ODD = torch.tensor([1.0, float("nan"), 2, float("inf"), -float("inf"), 0.0, -0.0, -1.5, 3e38, -3e38, 0.5, 2.5, -2.5, 7])
PAIRS = [part.reshape(14, 14) for part in torch.meshgrid(ODD, ODD, indexing="ij")]
F = nn.functional


def check(functions, *args, rtol=1e-5, atol=0):
    compiled = diffattn.compile(Each(functions), args, whole=True)(*args)
    for name, function in functions.items():
        want = function(*args)
        for got, expected in zip(*((compiled[name], want) if isinstance(want, (tuple, list)) else ([compiled[name]], [want])), strict=True):
            torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, equal_nan=True, check_stride=True, msg=lambda text, name=name: f"{name}: {text}")


UNARY = {
    **{name: getattr(torch, name) for name in ("abs", "neg", "sign", "floor", "ceil", "round", "trunc", "sqrt", "rsqrt", "exp", "expm1", "log", "log1p", "sin", "tanh", "erf", "sigmoid",
                                               "reciprocal", "square", "relu", "isnan", "isinf", "isposinf", "logical_not", "nan_to_num")},
    **{name: getattr(F, name) for name in ("silu", "elu", "leaky_relu", "hardtanh", "relu6", "hardswish", "hardsigmoid", "softsign", "softplus")},
    "clamp": lambda x: x.clamp(-1, 1), "clamp_min": lambda x: x.clamp(min=0.0), "clamp_max": lambda x: x.clamp_max(1), "zero": lambda x: x * 0, "difference": lambda x: x - x, "quotient": lambda x: x / x,
    "itself": lambda x: x == x, "less than itself": lambda x: x < x, "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"), "where": lambda x: torch.where(x == x, x, 0.0),
    "finite": torch.isfinite, "greatest": lambda x: x.amax(1), "place of the greatest": lambda x: (x.argmax(0), x.argmax(1, keepdim=True), x.argmax(), x.mT.argmin(-1), *x.max(0), *x.mT.min(-1, keepdim=True)), "softmax": lambda x: x.softmax(0),
}
BINARY = {
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "maximum", "minimum", "pow", "atan2", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_xor")},
    "limits": lambda a, b: a.clamp(min=b), "both limits": lambda a, b: a.clamp(b, b + 1), "upper limit": lambda a, b: a.clamp_max(b), "larger than a number": lambda a, b: torch.maximum(a, b[0, 0]),
    "fmod": lambda a, b: torch.where(a.abs() < 1e9, torch.fmod(a, b), 0.0), "close": lambda a, b: (torch.isclose(a, b), torch.isclose(a, b, equal_nan=True)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("functions, count", [(UNARY, 1), (BINARY, 2)], ids=["unary", "binary"])
def test_odd_numbers(functions, count, dtype):
    args = [part.to(dtype) for part in PAIRS[:count]]
    check({name: function for name, function in functions.items() if dtype == torch.float32 or name != "pow"}, *args, rtol={torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype],
          atol=1e-37 * (dtype == torch.bfloat16))  # an instruction that rounds to bfloat16 makes subnormal numbers 0


def test_integers_keep_their_own_lowerings():
    x = torch.arange(-4, 5)
    check({"clamp": lambda x: x.clamp(-1, 2), "maximum": lambda x: torch.maximum(x, -x), "fmod": lambda x: torch.fmod(x, torch.full_like(x, 3)), "eq": lambda x: x == -x, "limits": lambda x: x.clamp(min=-x), "hardtanh": F.hardtanh}, x)


def test_gelu_is_exact_to_its_own_type():
    x = torch.linspace(-6, 6, 1001)
    check({"tanh": lambda x: F.gelu(x, approximate="tanh"), "erf": F.gelu}, x, atol=1e-6)
    wide = x.double()
    got = diffattn.compile(Each({"tanh": lambda x: F.gelu(x, approximate="tanh")}), (x,))(x)["tanh"]
    assert (got.double() - F.gelu(wide, approximate="tanh")).abs().max() < 1e-6


BYTES = torch.tensor([0, 1, 127, 128, 200, 255], dtype=torch.uint8)
LONGS = torch.tensor([0, 1, 2, 3, 4, 5])
OF_BYTES = {
    "image": lambda u, n: u / 255, "half": lambda u, n: u * 0.5, "less": lambda u, n: u - 0.5, "float": lambda u, n: u * n.float(), "sum": lambda u, n: u + n, "product": lambda u, n: u * n, "compared": lambda u, n: u < n * 50,
    "number": lambda u, n: u > 150, "where": lambda u, n: torch.where(n > 2, u, n), "joined": lambda u, n: torch.cat([u, n]), "magnitude": lambda u, n: u.abs(), "rest": lambda u, n: u % 7, "whole": lambda u, n: u // 7,
    "bits": lambda u, n: (~u, u << n, u ^ 200, u.logical_not(), u.any(), u.bool() & (u > n)), "truncated": lambda u, n: torch.div(u, 7, rounding_mode="trunc"), "itself": lambda u, n: u < u.flip(0), "largest": lambda u, n: torch.maximum(u, n.to(torch.uint8)), "limits": lambda u, n: u.clamp(10, 220), "wraps": lambda u, n: u + u, "long number": lambda u, n: u * n[3], "byte number": lambda u, n: n * u[4], "float number": lambda u, n: u * n[3].float(),
}


def test_bytes_have_no_sign():
    check(OF_BYTES, BYTES, LONGS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_numbers_that_a_type_does_not_hold(dtype):
    """As in PyTorch it is the nearest that the type does hold that a tensor is compared with."""
    check({"eq": lambda x: x == 0.1, "ne": lambda x: x != 0.1, "gt": lambda x: x > 0.1, "le": lambda x: x <= 0.1, "ge": lambda x: x >= 0.7, "lt": lambda x: x < 0.7, "masked_fill": lambda x: x.masked_fill(x == 0.1, 0), "clamp": lambda x: x.clamp(0.1, 0.7),
           "threshold": lambda x: F.threshold(x, 0.1, 20), "hardshrink": lambda x: F.hardshrink(x, 0.1), "held": lambda x: x > 0.5, "beyond": lambda x: x < 1e300}, torch.tensor([0.1, 0.3, 0.7, 5, 0.5], dtype=dtype), rtol=1e-2)


def test_division_to_whole_numbers():
    x = torch.tensor([0.5, 1, 7, -7, float("inf"), 0, 1e30])
    check({"fmod": lambda x, y: torch.fmod(x, y), "remainder": lambda x, y: x % y}, x, torch.full_like(x, 0.1))
    n = torch.tensor([2**53 + 1, 2**63 - 1, 2**60 + 1, -7, 7])
    check({"one": lambda n: n // 1, "three": lambda n: n // 3, "negative": lambda n: n // -2, "mode": lambda n: torch.div(n, 5, rounding_mode="floor"), "small": lambda n: n.to(torch.int32) // 2}, n)


TENTHS = torch.tensor([0.5, 1, 7, -7, -0.5, 3.25, 0, -0.0, float("inf"), float("nan")])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_whole_quotients_of_floats(dtype):
    """0.5 holds 0.1 four times, since 0.1 is a little more than that in each of the types, though their quotient rounds to 5."""
    x = TENTHS.to(dtype)
    check({"tensor": lambda x, y: x // y, "number": lambda x, y: x // 0.1, "of number": lambda x, y: 7 // y, "negative": lambda x, y: x // -y, "mode": lambda x, y: torch.div(x, 0.1, rounding_mode="floor"), "zero": lambda x, y: x // torch.zeros_like(y),
           "infinite": lambda x, y: x // (y / 0), "truncated": lambda x, y: torch.div(x, y, rounding_mode="trunc"), "rest": lambda x, y: torch.fmod(x, 0.1), "of constant": lambda x, y: torch.fmod(x, torch.full((), 0.1, dtype=x.dtype)),
           "modulo": lambda x, y: 7 % y, "whole": lambda x, y: torch.fmod(x.nan_to_num(1, 1).long(), 3)}, x, torch.full_like(x, 0.1), rtol=0)


def test_truth_values_beside_numbers():
    check({name: lambda m, op=getattr(torch, name): tuple(op(m, number) for number in (-1, 0, 1, 2, 0.5, True)) for name in ("lt", "le", "gt", "ge", "eq", "ne")}, torch.tensor([True, False]))
    check({"xor": lambda m: m ^ True}, torch.tensor([True, False]))


def test_numbers_alone():
    """Results agree with PyTorch's for numbers alone, which torch-mlir's own folding takes for unsigned, or compares the wrong way."""
    numbers = (300, -1, 0.5)
    check({f"{op}, {kind}": lambda x, op=op, make=make: [getattr(torch, op)(make(a), b) for a, b in itertools.product(numbers, numbers)] for op in ("lt", "add", "remainder")
           for kind, make in {"none": lambda n: torch.full((), n, dtype=torch.float32), "one": lambda n: torch.full((2,), n, dtype=torch.float32), "integer": lambda n: torch.tensor(int(n)), "view": lambda n: torch.full((2, 1), n, dtype=torch.float32).mT[0]}.items()}, torch.ones(1))
    check({"of zeros": lambda x: (torch.zeros(()) - 3) * x, "where": lambda x: torch.where(torch.tensor(7.0) < 0, x, -x), "rest": lambda x: torch.fmod(torch.tensor(float("inf")), torch.tensor(float("nan"))), "bytes": lambda x: (torch.full((2,), 200, dtype=torch.uint8), torch.tensor(200, dtype=torch.uint8) + 100)}, torch.ones(1))


OF_ROWS = {
    "sum": lambda u: (u.sum(), u.sum(1), u.sum(1, dtype=torch.uint8), u.sum(dtype=torch.float32)), "product": lambda u: u.prod(1), "extremes": lambda u: (u.amax(1), u.amin(), *u.max(1), *u.min(0)), "places": lambda u: (u.argmax(1), u.argmin()),
    "sorted": lambda u: (*u.sort(1), *u.topk(2, 1)), "shifted": lambda u: u >> 1, "margin": lambda u: F.pad(u, (1, 1), value=200), "running": lambda u: u.cumsum(1),
    "numbers": lambda u: (u & 200, torch.fmod(u, 7), torch.rsub(u, u.flip(0)), torch.where(u > 100, u, 7), torch.where(u > 100, 200, 3)), "limits": lambda u: u.clamp(u.flip(0), u.flip(0) | 128),
}


def test_rows_of_bytes_have_no_sign():
    check(OF_ROWS, torch.tensor([[1, 2, 250, 200], [3, 255, 0, 128]], dtype=torch.uint8))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_numbers_beyond_an_integer_type_wrap_around(dtype):
    """A number beside integers is of their type, also a tensor of one number that has more bits; int32 is compared with these in PyTorch."""
    limits = torch.iinfo(dtype)
    x, numbers = torch.tensor([1, 5, limits.max, limits.min + 1, 100], dtype=dtype), [-1, -limits.max - 7, limits.max + 40, 2**40 + 7]
    compared = ("lt", "ge", "eq") if dtype == torch.uint8 else ()
    ops = {**{name: getattr(torch, name) for name in (*compared, "add", "mul", "maximum", "remainder", "floor_divide")}, "where": lambda x, n: torch.where(x > 3, x, n),
           "truncated": lambda x, n: torch.div(x, n, rounding_mode="trunc"), "limit": lambda x, n: x.clamp(min=n)}
    check({name: lambda x, *n, op=op: [op(x, one) for one in n] for name, op in ops.items() if dtype == torch.int32 or name != "limit"}, x, *map(torch.tensor, numbers))
    check({name: lambda x, op=ops[name]: [op(x, n) for n in numbers[:3]] for name in (*compared, "mul", "truncated")}, x)
    check({"bits": lambda x: (x | 2**40 + 7, x ^ -limits.max - 7)}, x)


def test_rolls():
    x = torch.arange(15.0).reshape(3, 5)
    check({**{f"by {shift}": lambda x, shift=shift: x.roll(shift, 1) for shift in (-5, -4, 0, 3, 5)}, "two": lambda x: x.roll((3, -2), (0, 1))}, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_16_bits_do_not_stall(dtype):
    """They are f32 and rounded once: a sum of ones in bfloat16 would stay at 256."""
    ones, x = torch.ones(4096, 8, dtype=dtype), torch.randn(1024, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    check({"rows": lambda a, x: a.mean(0), "all": lambda a, x: a.mean(), "sum": lambda a, x: a.sum(0), "places": lambda a, x: a.reshape(64, 64, 8).sum((0, 1)), "running": lambda a, x: a[:, 0].cumsum(0)[-1], "pool": lambda a, x: F.adaptive_avg_pool2d(a.reshape(1, 8, 64, 64), 1),
           "root": lambda a, x: x * torch.rsqrt((x * x).mean(0)), "norm": lambda a, x: x.norm(dim=0)}, ones, x, rtol=1e-2 if dtype == torch.bfloat16 else 2e-3)


def test_angles_of_any_size():
    """Beside f64, within two units in the last place; numbers of every exponent, and halves, quarters and multiples of a turn as near as f32 has them."""
    bits = torch.randint(-2**31, 2**31, (40000,), generator=torch.Generator().manual_seed(0), dtype=torch.int64).to(torch.int32).view(torch.float32)
    x = torch.cat([bits, torch.linspace(-20, 20, 8001), torch.arange(-400, 400) * (torch.pi / 4), torch.tensor([0.0, -0.0, 1e-45, 89.0, -89.0])])
    names = ("sin", "cos", "tan", "sinh", "cosh", "asinh", "acosh", "atanh", "atan")
    functions = {name: lambda x, y, function=getattr(torch, name): function(x) for name in names} | {"atan2": torch.atan2}
    got = diffattn.compile(Each(functions), (x, x.flip(0)))(x, x.flip(0))
    for name, value in got.items():
        exact = torch.atan2(x.double(), x.flip(0).double()) if name == "atan2" else getattr(torch, name)(x.double())
        want = exact.float()
        assert torch.equal(value.isnan(), want.isnan()) and torch.equal(value.isinf(), want.isinf()), name
        assert torch.equal(value.signbit()[want == 0], want.signbit()[want == 0]), name
        is_plain = want.isfinite() & (want.abs() >= 2.0**-126)
        assert ((value.double() - exact).abs() <= 2 * 2.0**-23 * exact.abs())[is_plain].all(), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_extremes_are_elements_also_where_these_are_subnormal(dtype):
    least = torch.finfo(dtype).smallest_normal / 64
    x = torch.randint(1, 32, (3, 40), generator=torch.Generator().manual_seed(2)).mul(least).to(dtype)
    x[1] = -x[1]
    check({"rows": lambda x: (x.amax(1), x.amin(1), x.argmax(1), *x.max(1)), "columns": lambda x: (x.amax(0), *x.min(0)), "pool": lambda x: F.max_pool1d(x.reshape(1, 3, 40), 3)}, x, rtol=0)


@pytest.mark.parametrize("length", [32, 33, 100])
def test_sums_up_to_each_element(length):
    x = torch.randn(2, length, 3, generator=torch.Generator().manual_seed(length))
    x[1, length // 2, 0], x[1, length // 2 + 3, 0], x[0, 20, 1] = float("inf"), -float("inf"), float("nan")
    check({"rows": lambda x: x.cumsum(1), "from the end": lambda x: x.flip(1).cumsum(-2), "of one": lambda x: x[:, :, :1].mT.cumsum(1),
           "counts": lambda x: (x > 0).cumsum(1), "bytes": lambda x: (x > 0).to(torch.uint8).mul(9).cumsum(1, dtype=torch.uint8), "wide": lambda x: x.cumsum(1, dtype=torch.float64)}, x, atol=1e-5)


def test_scatter_along_long_axes():
    x, source = (torch.randn(3, size, generator=torch.Generator().manual_seed(size)) for size in (40, 30))
    places = torch.stack([torch.randperm(40, generator=torch.Generator().manual_seed(row))[:30] for row in range(3)])
    check({"rows": lambda x, at, s: x.scatter(1, at, s), "columns": lambda x, at, s: x.mT.scatter(0, at.mT, s.mT), "number": lambda x, at, s: x.scatter(1, at, 7.0)}, x, places, source)


def sorts(**options):
    return lambda x: tuple(torch.sort(x, stable=True, **options))


SORTS = {"rows": sorts(), "columns": sorts(dim=0), "falling": sorts(descending=True), "places": lambda x: torch.argsort(x, dim=0, stable=True), "greatest": lambda x: x.topk(3, 0).values,
         "least": lambda x: x.topk(3, largest=False).values, "all": lambda x: x.topk(14).values}


@pytest.mark.parametrize("x", [PAIRS[1] * PAIRS[0].sign(), PAIRS[1].nan_to_num(0, 9, -9).long(), PAIRS[1] > 0, PAIRS[1].bfloat16()], ids=["float32", "int64", "bool", "bfloat16"])
def test_sorting(x):
    check({name: function for name, function in SORTS.items() if x.dtype != torch.bool or name not in ("greatest", "least", "all")}, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool], ids=str)
def test_sorting_long_axes(dtype):
    """Which are sorted by loops, and of which few elements that come first are kept in order while the others are read."""
    x = (torch.randn(3, 100, generator=torch.Generator().manual_seed(3)) * 4).round()
    if dtype.is_floating_point:
        x[0, ::7], x[1] = float("nan"), x[1].sort(descending=True).values
    x = (x.abs() if dtype == torch.uint8 else x).to(dtype)
    functions = {"rows": sorts(), "falling": sorts(descending=True), "columns": lambda x: tuple(x.reshape(50, 6).sort(dim=0, stable=True))}
    if dtype != torch.bool:
        functions |= {"few": lambda x: x.topk(5).values, "more": lambda x: x.topk(65, largest=False).values, "one": lambda x: x.topk(1).values}
    check(functions, x)


def test_sorting_axes_whose_length_is_a_symbol():
    rows, length = torch.export.Dim("rows", min=1, max=64), torch.export.Dim("length", min=4, max=4096)
    functions = {"rows": lambda x: torch.cat([x.sort(dim=1, stable=True).values, x.topk(4).values], 1), "places": lambda x: x.sort(dim=1, stable=True).indices}
    compiled = diffattn.compile(Each(functions), (torch.randn(3, 50),), dynamic_shapes=(({0: rows, 1: length},),))
    for sizes in ((1, 4), (5, 9), (2, 64), (3, 1000)):
        x = torch.randn(sizes, generator=torch.Generator().manual_seed(sizes[1])).mul(3).round()
        got = compiled(x)
        assert all(torch.equal(got[name], function(x)) for name, function in functions.items())


def test_sorting_on_a_gpu_is_counting():
    x = torch.randn(2, 40, generator=torch.Generator().manual_seed(5))
    got = diffattn.compile(Each({"few": lambda x: x.topk(3)}), (x,), target="cuda-sim:sm_80")(x)["few"]
    assert all(torch.equal(one, other) for one, other in zip(got, x.topk(3)))


def test_sorting_small_things():
    check({"number": lambda x: tuple(x[0].sort()), "one": lambda x: tuple(x[:1].sort()), "none": lambda x: x[:0].sort().values, "none of some": lambda x: x.topk(0).values}, torch.tensor([3.0, 1, 2]))


def test_a_router_of_experts_with_any_number_of_tokens():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.experts = nn.Linear(8, 6, bias=False), nn.Parameter(torch.randn(6, 8, 8))

        def forward(self, x):
            weights, chosen = self.router(x).softmax(-1).topk(2)
            each = torch.zeros(x.size(0), 6).scatter(1, chosen, weights / weights.sum(-1, keepdim=True))
            return torch.einsum("te,teo->to", each, torch.einsum("ti,eio->teo", x, self.experts))

    module, tokens = Experts(), torch.export.Dim("tokens", min=1, max=4096)
    compiled = diffattn.compile(module, (torch.randn(5, 8),), dynamic_shapes=({0: tokens},))
    for count, _ in itertools.product((5, 1, 33), range(2)):
        x = torch.randn(count, 8)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("query", [lambda x: x[0].contiguous(), lambda x: x[0].transpose(1, 2).contiguous().transpose(1, 2), lambda x: x[0]],
                         ids=["rows", "heads last", "of a product"])
def test_attention_lies_as_its_query(query):
    q = query(torch.randn(2, 5, 3, 3, 4).permute(2, 0, 3, 1, 4))
    torch._dynamo.reset()
    with torch.no_grad():
        want, got = (f(q, q, q) for f in (F.scaled_dot_product_attention, torch.compile(F.scaled_dot_product_attention, backend="diffattn")))
    torch.testing.assert_close(got, want, check_stride=True)


def test_integers_between_numbers_with_a_point():
    for dtype in (torch.int64, torch.int32, torch.uint8):
        check({"both": lambda x: x.clamp(1.5, 2.5), "one": lambda x: (x.clamp(min=0.5), x.clamp_max(2.5), x.clamp(max=float("inf")))}, torch.arange(5).to(dtype))


def test_digits_where_a_formula_would_cancel():
    """exp(x) - 1 near 0, and 1 + tanh(x) near -1, against f64."""
    functions = {"elu": F.elu, "alpha": lambda x: F.elu(x, 0.3), "selu": F.selu, "celu": lambda x: F.celu(x, 1.5), "gelu": lambda x: F.gelu(x, approximate="tanh")}
    x = torch.cat([torch.linspace(-4, 4, 41), *(torch.tensor([1.0, -1.0]) * 10.0**-n for n in range(2, 12))])
    for name, got in diffattn.compile(Each(functions), (x,))(x).items():
        torch.testing.assert_close(got.double(), functions[name](x.double()), rtol=1e-6, atol=0, msg=lambda text, name=name: f"{name}: {text}")
    low = x.bfloat16()
    for name, got in diffattn.compile(Each(functions), (low,))(low).items():
        torch.testing.assert_close(got.double(), functions[name](low.double()), rtol=2.0**-8, atol=0, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_whole_numbers_keep_the_sign_of_zero(dtype):
    x = torch.tensor([-0.5, -0.0, 0.0, 0.5, -1.5, 2.5, float("-inf"), float("nan")], dtype=dtype)
    functions = {name: getattr(torch, name) for name in ("trunc", "round", "ceil", "floor", "fix")}
    for name, got in diffattn.compile(Each(functions), (x,))(x).items():
        torch.testing.assert_close(got, functions[name](x), rtol=0, atol=0, equal_nan=True)
        assert torch.equal(torch.signbit(got[:-1]), torch.signbit(functions[name](x[:-1]))), name
    check({"words": lambda x, n: (n | 8, n.int() | -3, n << n.abs(), (n > 0) | True, n & 1, n ^ 5, n >> 1)}, x, torch.arange(-4, 5))
