"""Sums of what came before, windows, margins, and elements written at given places, against PyTorch."""
import pytest
import torch
from torch import nn

import diffattn
from diffattn import errors
from test_torch_elementwise import Each, check

pytestmark = pytest.mark.oracle
F = nn.functional
NAN, INF = float("nan"), float("inf")
X = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
ODD = torch.tensor([[1, NAN, 3, NAN, -1], [3, 2, 2, 5, 2.5], [-INF, 1, INF, -2, 0]])


@pytest.mark.parametrize("x", [X, ODD, X.bfloat16(), (X * 5).long(), X > 0], ids=["float32", "odd", "bfloat16", "int64", "bool"])
def test_of_all_before(x):
    check({"sums": lambda x: (x.cumsum(1), x.cumsum(-2))}, x, rtol=2e-2 if x.dtype == torch.bfloat16 else 1e-5, atol=1e-6)


def test_windows():
    image = torch.randn(2, 3, 8, 9, generator=torch.Generator().manual_seed(1))
    kinds = [{"kernel_size": 2, "dilation": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": (2, 3), "ceil_mode": True}]
    check({str(kind): lambda x, kind=kind: F.max_pool2d(x, **kind) for kind in kinds}, image)
    check({"margins": lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), "all": lambda x: F.adaptive_avg_pool2d(x, 1)}, image, atol=1e-6)


def test_margins_below_zero():
    check({str(margins): lambda x, n, margins=margins: (F.pad(x, margins, value=3.0), F.pad(n, margins, value=7)) for margins in ((1, -1), (-1, 1), (-1, -1), (2, -1, -1, 0))}, X, (X * 5).long())


def test_places_in_memory():
    """Tensors that lie in another order than that of their axes, as Longformer reads its windows."""
    check({"windows": lambda x: (x.mT * 2).as_strided((3, 2), (2, 5), 1).contiguous(), "rows": lambda x: (x * 2).as_strided((2, 2), (3, 1)).contiguous()}, X)


def put(*at, adds=False):
    """Values at the indices with these numbers; None: all of the axis."""
    return lambda x, values, *indices: torch.ops.aten.index_put(x, [None if one is None else indices[one] for one in at], values, adds)


@pytest.mark.parametrize("at, sizes", [((0, None, 1), (2, 2, 4)), ((None, 0, 1), (3, 2, 2)), ((None, 0), (3, 2, 2, 5)), ((None, 0, 1), (1, 1, 2)), ((0, 1, 1), (2, 2)), ((0, 1), ()), ((1,), (2, 4, 5))])
def test_values_at_several_indices(at, sizes):
    generator, dtype = torch.Generator().manual_seed(3), {4: torch.int64, 2: torch.bfloat16}.get(len(sizes), torch.float32)
    x, values = (torch.randint(-9, 9, shape, generator=generator).to(dtype) for shape in ((3, 4, 5), sizes))
    check({"written": put(*at), "added": put(*at, adds=True), "narrow": lambda x, v, a, b: put(*at)(x, v, a.int(), b.int())}, x, values, torch.tensor([[0, 2], [1, -1]]), torch.tensor([2, 1]))


def test_elements_that_add_up():
    generator = torch.Generator().manual_seed(4)
    few, many = torch.randint(0, 3, (2, 4), generator=generator), torch.randint(0, 5, (3, 7), generator=generator)
    check({"columns": lambda x, a, b, s: x.scatter_add(0, a, s), "rows": lambda x, a, b, s: x.scatter_add(1, b, s), "reduced": lambda x, a, b, s: x.scatter_reduce(1, b, s, reduce="sum"), "index": lambda x, a, b, s: x.index_add(0, b[:, 0] % 3, s[:, :5], alpha=2),
           "fewer": lambda x, a, b, s: x[:, :4].scatter(1, torch.tensor([[3, 0], [1, 2]]), s), "number": lambda x, a, b, s: x.scatter(0, a[:, :2], 7.0), "folded": lambda x, a, b, s: F.fold(s.repeat(4, 1)[None, :, :6], (4, 3), (2, 2)),
           "repeated": lambda x, a, b, s: torch.zeros(3, 5).index_put((a[0], a[1]), s[0, :4], accumulate=True)}, X, few, many, torch.randn(3, 7, generator=generator), atol=1e-6)


def test_any_number_of_elements_that_add_up():
    class Added(nn.Module):
        def forward(self, x, places, rows):
            return x.index_add(0, places, rows), x.scatter_add(0, places[:, None].expand(-1, 5), rows)

    module, count = Added(), torch.export.Dim("count", min=2, max=50)
    compiled = diffattn.compile(module, (X, torch.tensor([0, 2]), X[:2]), dynamic_shapes=(None, {0: count}, {0: count}))
    for places in ([1, 1], [2, 0, 1, 1, 1, 0, 0]):
        given = X, torch.tensor(places), torch.arange(5.0 * len(places)).reshape(-1, 5)
        torch.testing.assert_close(compiled(*given), module(*given))
    for wrong in ([3, 0], [0, -1]):
        with pytest.raises(errors.RunError, match="expected an index from 0 and below 3"):
            compiled(X, torch.tensor(wrong), X[:2])


def test_a_mask_as_an_index():
    """Masks as indices are refused: torch-mlir does not come back from them."""
    with pytest.raises(errors.CompileError, match=r"\.py:\d+: expected results whose sizes follow from those of the inputs, but got a mask as an index, .*torch.where\(mask, x, 0\)"):
        diffattn.compile(Each({"mask": lambda x: x[x > 0]}), (X,), whole=True)
    check({"one of seven": lambda x: F.one_hot(x.abs().long(), 7)}, X)  # its size follows from the number


def test_attention_whose_result_is_viewed():
    """As GPT-2 does: torch.export takes it to lie as PyTorch's kernel has it."""
    check({"rows": lambda q, k, v: F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 32).view(-1, 32)}, *torch.randn(3, 2, 4, 5, 8, generator=torch.Generator().manual_seed(5)), atol=1e-6)
