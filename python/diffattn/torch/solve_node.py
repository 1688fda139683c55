"""Triangular systems of equations: one node, which nothing takes apart: the builtin `solve_triangular`."""

from __future__ import annotations

import torch

from .op import add_operator

#: The matrices x, [batch, n, k], of a @ x = b, with those of a, [batch, n, n], on and below their diagonal, with `upper` 1 on and above it;
#: nothing else of a is read. With `unit` 1 the diagonal is ones, and not read.
SCHEMA = "_solve_triangular(Tensor a, Tensor b, int upper, int unit) -> Tensor"


def _fake(a, b, upper, unit):
    return b.new_empty(b.shape)


def _run(a, b, upper, unit):
    return torch.linalg.solve_triangular(a, b, upper=bool(upper), unitriangular=bool(unit))


add_operator(SCHEMA, _fake, _run)


def solve_triangular(a, b, *, upper, left=True, unitriangular=False):
    if not a.is_floating_point():
        return NotImplemented
    if not left:  # of x @ a = b
        return solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (one.expand([*batch, *one.shape[-2:]]) for one in (a, b))
    flat = [one.reshape([-1, *one.shape[-2:]]) for one in (a, b)]
    return torch.ops.diffattn._solve_triangular(*flat, int(upper), int(unitriangular)).reshape(b.shape)
