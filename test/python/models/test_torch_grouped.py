"""Products of groups of rows with a matrix each, and histograms, which count the rows: what mixtures of experts are made of."""
import pytest
import torch
import transformers.integrations.moe  # noqa: F401 - defines its operator

import diffattn
from test_torch_elementwise import check

pytestmark = pytest.mark.oracle
GROUPS, DEPTH, COLUMNS, ROWS = 5, 24, 40, 17
ENDS = [[3, 3, 10, 10, 17], [0, 0, 0, 0, 17], [17] * 5, [1, 2, 3, 4, 17], [2, 5, 6, 9, 11], [0] * 5]


class Grouped(torch.nn.Module):
    """As experts have them: matrices as they lie, or turned, like a linear layer's."""
    def __init__(self, dtype, turned):
        super().__init__()
        self.matrices = torch.nn.Parameter(torch.randn(GROUPS, *((COLUMNS, DEPTH) if turned else (DEPTH, COLUMNS))).to(dtype))
        self.turned = turned

    def forward(self, x, ends):
        multiply = torch._grouped_mm if x.dtype == torch.bfloat16 else torch.ops.transformers.grouped_mm_fallback
        return multiply(x, self.matrices.mT if self.turned else self.matrices, ends)


def expected(x, matrices, ends):
    """In f64; rows behind the last end are 0."""
    result, begin = torch.zeros(x.size(0), matrices.size(2), dtype=torch.float64), 0
    for matrix, end in zip(matrices.double(), ends):
        result[begin:end] = x[begin:end].double() @ matrix
        begin = end
    return result


@pytest.mark.parametrize("turned", [False, True], ids=["as-they-lie", "turned"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["f32", "bf16", "f16"])
@torch.no_grad()
def test_groups(dtype, turned):
    torch.manual_seed(3)
    module, x = Grouped(dtype, turned).eval(), torch.randn(ROWS, DEPTH).to(dtype)
    rows = torch.export.Dim("rows", min=1, max=64)
    f = diffattn.compile(module, (x, torch.tensor(ENDS[0], dtype=torch.int32)), dynamic_shapes=({0: rows}, None))
    assert "linalg.transpose" not in f.mlir  # all matrices would be copied in each call
    rtol = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-10}[dtype]
    matrices = module.matrices.mT if turned else module.matrices
    for ends in ENDS:
        for count in (ROWS, 30):
            x = torch.randn(count, DEPTH).to(dtype)
            want = expected(x, matrices, ends)
            torch.testing.assert_close(f(x, torch.tensor(ends, dtype=torch.int32)).double(), want, rtol=rtol, atol=1e-5)


@torch.no_grad()
def test_ends_that_are_none():
    """Ends behind the rows, before them, or that fall, reach nothing outside."""
    module, x = Grouped(torch.float32, True).eval(), torch.randn(ROWS, DEPTH)
    f = diffattn.compile(module, (x, torch.tensor(ENDS[0], dtype=torch.int32)))
    for ends, meant in (([3, 40, 50, 60, 70], [3, 17, 17, 17, 17]), ([-5, 4, 2, 9, 9], [0, 4, 4, 9, 9]), ([2**31 - 1, -2**31, 0, 0, 0], [17] * 5)):
        torch.testing.assert_close(f(x, torch.tensor(ends, dtype=torch.int32)).double(), expected(x, module.matrices.mT, meant), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_row_is_the_same_in_any_group():
    module = Grouped(torch.float32, True).eval()
    module.matrices.data[:] = module.matrices.data[0]
    x = torch.randn(40, DEPTH)
    f = diffattn.compile(module, (x, torch.tensor(ENDS[0], dtype=torch.int32)), batch_invariant=True)
    whole, *others = (f(x, torch.tensor(ends, dtype=torch.int32)) for ends in ([0, 0, 0, 0, 40], [1, 3, 12, 25, 40], [9, 10, 20, 39, 40]))
    for other in others:
        assert torch.equal(whole, other)


def test_histograms():
    x = torch.randn(400, generator=torch.Generator().manual_seed(1))
    places = torch.arange(400) % 8
    odd = torch.where(places == 3, float("nan"), x)
    check({str((bins, low, high)): lambda x, places, odd, kind=(bins, low, high): [torch.histc(one, *kind) for one in (x, places.float(), x.double(), odd)]
           for bins, low, high in ((8, 0, 7), (5, -1, 1), (7, 0.1, 0.7), (1, -2, 2))}, x, places, odd)
    check({"own range": lambda x, same: (torch.histc(x), torch.histc(x.reshape(20, 20), 10), torch.histc(same, 4), torch.histc(x, 3, 2, 2))}, x, torch.full((9,), 2.0))
