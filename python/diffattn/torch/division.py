"""Division with whole quotients: torch-mlir rounds the quotient before it takes the whole part, and divides integers in f64."""

from __future__ import annotations

import torch


def fmod(x, y):
    """By torch-mlir's remainder, which is exact."""
    dtype = torch.result_type(x, y)
    if not dtype.is_floating_point:
        return NotImplemented if isinstance(y, torch.Tensor) else torch.fmod(x, _tensor(y, dtype, x))
    return _rest(_tensor(x, dtype, y), _tensor(y, dtype, x))


def _rest(x, y):
    """What is left of `x`, with its sign."""
    rest = torch.remainder(x.abs(), y.abs())
    return torch.where(x < 0, -rest, rest)


def remainder_of_number(number, x):
    return torch.remainder(_tensor(number, torch.result_type(number, x), x), x)


def floor_divide(x, y):
    if any(isinstance(one, torch.SymFloat) for one in (x, y)) or not any(isinstance(one, torch.Tensor) for one in (x, y)):
        return NotImplemented
    dtype = torch.result_type(x, y)
    if dtype.is_floating_point:
        return _float_floor_divide(x, y, dtype)
    wide = torch.promote_types(dtype, torch.int32)
    x, y = _tensor(x, wide, y), _tensor(y, wide, x)
    quotient = torch.div(x, y, rounding_mode="trunc")
    rest = x - quotient * y
    return (quotient - ((rest != 0) & ((rest < 0) != (y < 0))).to(wide)).to(dtype)


def _float_floor_divide(x, y, dtype):
    """The quotient of what the divisor divides, which is whole but for rounding; beside a divisor of 0 the plain one."""
    wide = torch.promote_types(dtype, torch.float32)
    x, y = _tensor(x, wide, y), _tensor(y, wide, x)
    plain, rest = x / y, _rest(x, y)
    quotient = (x - rest) / y
    quotient = torch.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)
    below = torch.floor(quotient)
    whole = torch.where(quotient - below > 0.5, below + 1, below)
    whole = torch.where(quotient == 0, plain * 0, whole)  # with the sign of the plain one
    return torch.where(y == 0, plain, whole).to(dtype)


def _tensor(x, dtype, like):
    if isinstance(x, torch.SymInt):  # of which torch-mlir fills no tensor
        return torch.zeros((), dtype=dtype, device=like.device) + x
    x = x if isinstance(x, torch.Tensor) else torch.full((), x, dtype=torch.int64 if isinstance(x, int) else dtype, device=like.device)
    return x.to(dtype)
