"""Triangular systems of equations, as delta rules have them, against PyTorch in f64."""
import itertools

import pytest
import torch

import diffattn

pytestmark = pytest.mark.oracle
KINDS = list(itertools.product((False, True), repeat=3))


class Solve(torch.nn.Module):
    """Every kind at once."""
    def forward(self, a, b):
        return [torch.linalg.solve_triangular(a, b if left else b.mT, upper=upper, left=left, unitriangular=unit) for upper, left, unit in KINDS]


def draw(size, columns, dtype, *batch):
    a = torch.randn(*batch, size, size, dtype=dtype) / size + 2 * torch.eye(size, dtype=dtype)
    return a, torch.randn(size, columns, dtype=dtype)


@pytest.mark.parametrize("dtype, rtol", [(torch.float32, 1e-5), (torch.float64, 1e-13)], ids=["f32", "f64"])
def test_every_kind(dtype, rtol):
    torch.manual_seed(0)
    a, b = draw(9, 5, dtype, 2, 3)
    f = diffattn.compile(Solve(), (a, b))
    for got, want in zip(f(a, b), Solve()(a.double(), b.double())):
        torch.testing.assert_close(got.double(), want, rtol=rtol, atol=rtol)


def test_sizes_that_are_not_known():
    torch.manual_seed(1)
    batch, size, columns = (torch.export.Dim(name, min=1, max=64) for name in ("batch", "size", "columns"))
    f = diffattn.compile(Solve(), draw(9, 5, torch.float32, 2), dynamic_shapes=({0: batch, 1: size, 2: size}, {0: size, 1: columns}))
    for a, b in (draw(1, 1, torch.float32, 1), draw(33, 7, torch.float32, 4)):
        for got, want in zip(f(a, b), Solve()(a.double(), b.double())):
            torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_what_is_not_read():
    """The other half, and a diagonal that stands for ones."""

    class Halves(torch.nn.Module):
        def forward(self, a, b):
            return [torch.linalg.solve_triangular(a[i], b, upper=bool(i), unitriangular=True) for i in range(2)]

    torch.manual_seed(2)
    a, b = draw(6, 3, torch.float32, 2)
    hidden = torch.stack([torch.ones(6, 6).triu(), torch.ones(6, 6).tril()]).bool()
    for got, want in zip(diffattn.compile(Halves(), (a, b))(a.masked_fill(hidden, float("nan")), b), Halves()(a.double(), b.double())):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
