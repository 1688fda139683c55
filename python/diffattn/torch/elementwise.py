"""Element-wise ops that torch-mlir computes otherwise than PyTorch: it loses NaN in the larger of two numbers and between limits, takes a
value for equal to itself, has the constants of GELU's tanh with four digits, and knows no infinity in `fmod` and `isclose`."""

from __future__ import annotations

import math

import torch


def clamp(x, min=None, max=None):
    if not x.is_floating_point() or isinstance(min, torch.SymFloat) or isinstance(max, torch.SymFloat):
        return NotImplemented
    for limit, below in ((min, True), (max, False)):
        if limit is not None:
            beyond = x < limit if below else x > limit
            x = torch.where(beyond, torch.full((), limit, dtype=x.dtype, device=x.device), x)
    return x


def clamp_min(x, min):
    return clamp(x, min)


def clamp_max(x, max):
    return clamp(x, None, max)


def clamp_tensor(x, min=None, max=None):
    x = x if min is None else torch.maximum(x, min)
    return x if max is None else torch.minimum(x, max)


def hardtanh(x, min_val=-1, max_val=1):
    return clamp(x, min_val, max_val)


def hardsigmoid(x):
    return clamp(x + 3, 0, 6) / 6


def maximum(x, y):
    return _larger(x, y, lambda x, y: x > y)


def minimum(x, y):
    return _larger(x, y, lambda x, y: x < y)


def _larger(x, y, exceeds):
    dtype = torch.promote_types(x.dtype, y.dtype) if x.dim() and y.dim() else torch.result_type(x, y)
    if not dtype.is_floating_point:
        return NotImplemented
    x, y = x.to(dtype), y.to(dtype)
    return torch.where(exceeds(x, y) | (x != x), x, y)


def equal(x, y):
    return torch.logical_not(x != y) if x.is_floating_point() and isinstance(y, torch.Tensor) else NotImplemented


def isclose(x, y, rtol=1e-5, atol=1e-8, equal_nan=False):
    if not x.is_floating_point():
        x, y = x.double(), y.double()
    apart = (x - y).abs()
    close = torch.logical_not(x != y) | (apart <= atol + (rtol * y).abs()) & (apart != math.inf)
    return close | (x != x) & (y != y) if equal_nan else close


def fmod(x, y):
    if not x.is_floating_point():
        return NotImplemented
    rest = x - torch.trunc(x / y) * y
    return torch.where((y.abs() == math.inf) & (x.abs() != math.inf), x, rest)


def gelu(x, approximate="none"):
    if approximate != "tanh":
        return NotImplemented
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * (wide * wide * wide))
    return (0.5 * wide * (1 + torch.tanh(inner))).to(x.dtype)
