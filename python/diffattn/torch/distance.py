"""Lengths of hypotenuses and distances of points, for which torch-mlir has no lowering."""

from __future__ import annotations

import math

import torch


def hypot(x, y):
    """Neither square is computed, since it may be beyond the type where the root is not."""
    dtype = torch.result_type(x, y)
    x, y = x.to(dtype).abs(), y.to(dtype).abs()
    most, least = torch.maximum(x, y), torch.minimum(x, y)
    part = torch.where(most == 0, torch.zeros((), dtype=dtype, device=x.device), least / most)
    return torch.where((x == math.inf) | (y == math.inf), torch.full((), math.inf, dtype=dtype, device=x.device), most * torch.sqrt(1 + part * part))


def cdist_forward(x, y, p, compute_mode):
    apart = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    if p == 0:
        return (apart != 0).to(x.dtype).sum(-1)
    if p == math.inf:
        return apart.amax(-1)
    return apart.sum(-1) if p == 1 else torch.sqrt((apart * apart).sum(-1)) if p == 2 else (apart**p).sum(-1) ** (1 / p)
