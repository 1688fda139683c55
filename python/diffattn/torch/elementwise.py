"""Element-wise ops that torch-mlir computes otherwise than PyTorch: it loses NaN in the larger of two numbers and between limits, takes a
value for equal to itself, compares floats with numbers in f64, has the constants of GELU's tanh with four digits, divides integers in f64,
knows no infinity in `isclose`, and takes uint8 for signed."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch


def clamp(x, min=None, max=None):
    if not x.is_floating_point() or isinstance(min, torch.SymFloat) or isinstance(max, torch.SymFloat):
        return NotImplemented
    for limit, below in ((min, True), (max, False)):
        if limit is not None:
            limit = _nearest(x.dtype, limit)
            x = torch.where(x < limit if below else x > limit, torch.full((), limit, dtype=x.dtype, device=x.device), x)
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
    return torch.logical_not(x != y) if x.is_floating_point() and y.dim() else NotImplemented


def compared(op):
    """A float tensor with a number that its type does not hold: the nearest that it does hold stands for it."""

    def compare(x, number):
        if not x.is_floating_point() or isinstance(number, (torch.SymInt, torch.SymFloat)):
            return NotImplemented
        nearest = _nearest(x.dtype, number)
        return NotImplemented if nearest == number or nearest != nearest else op(x, nearest)

    return compare


def _nearest(dtype, number):
    """What the type holds of a number, without ops of PyTorch, which would be traced; a number beyond all of the type as it is."""
    number = float(number)
    if dtype == torch.float64 or not abs(number) <= torch.finfo(dtype).max:
        return number
    if dtype == torch.bfloat16:
        bits = int(np.float32(number).view(np.uint32))
        return float(np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32))
    return float((np.float16 if dtype == torch.float16 else np.float32)(number))


def with_signs(op):
    """An op on tensors of uint8, among others, on such of a type that holds their numbers and has signs."""

    def decomposed(*args, **kwargs):
        tensors = [one for arg in args for one in (arg if isinstance(arg, (list, tuple)) else (arg,)) if isinstance(one, torch.Tensor)]
        if all(one.dtype != torch.uint8 for one in tensors):
            return NotImplemented
        promoted = _promoted(op, tensors, [arg for arg in args if isinstance(arg, (int, float, torch.SymInt, torch.SymFloat))])
        wide = torch.int32 if promoted == torch.uint8 else promoted

        def widen(one):
            if isinstance(one, (list, tuple)):
                return type(one)(map(widen, one))
            return one.to(wide) if isinstance(one, torch.Tensor) and one.dtype == torch.uint8 else one

        made = op(*map(widen, args), **kwargs)
        return made.to(torch.uint8) if promoted == torch.uint8 and made.dtype == wide else made

    return decomposed


def _promoted(op, tensors, numbers):
    """The type that the op computes in."""
    aten = torch.ops.aten
    if op == aten.cat.default:
        return functools.reduce(torch.promote_types, (one.dtype for one in tensors))
    first, *others = [*(tensors[1:] if op == aten.where.self else tensors), *numbers]
    return functools.reduce(torch.promote_types, [torch.result_type(first, one) for one in others] or [first.dtype])


def isclose(x, y, rtol=1e-5, atol=1e-8, equal_nan=False):
    if not x.is_floating_point():
        x, y = x.double(), y.double()
    apart = (x - y).abs()
    close = torch.logical_not(x != y) | (apart <= atol + (rtol * y).abs()) & (apart != math.inf)
    return close | (x != x) & (y != y) if equal_nan else close


def fmod(x, y):
    """By torch-mlir's remainder, which is exact."""
    if not (x.is_floating_point() or y.is_floating_point()):
        return NotImplemented
    dtype = torch.result_type(x, y)
    x, y = x.to(dtype), y.to(dtype)
    rest = torch.remainder(x.abs(), y.abs())
    return torch.where(x < 0, -rest, rest)


def floor_divide(x, y):
    """Of integers."""
    number = not isinstance(y, torch.Tensor)
    if not isinstance(x, torch.Tensor) or x.is_floating_point() or (isinstance(y, (float, torch.SymFloat)) if number else y.is_floating_point()):
        return NotImplemented
    dtype = x.dtype if number else torch.result_type(x, y)
    wide = torch.promote_types(dtype, torch.int32)
    x, y = x.to(wide), torch.full((), y, dtype=wide, device=x.device) if number else y.to(wide)
    quotient = torch.div(x, y, rounding_mode="trunc")
    rest = x - quotient * y
    return (quotient - ((rest != 0) & ((rest < 0) != (y < 0))).to(wide)).to(dtype)


def power(x, exponent):
    """Of integers to a float: torch-mlir's program would end."""
    if x.is_floating_point() or x.is_complex() or not isinstance(exponent, float):
        return NotImplemented
    return torch.pow(x.to(torch.get_default_dtype()), exponent)


def gelu(x, approximate="none"):
    if approximate != "tanh":
        return NotImplemented
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * (wide * wide * wide))
    return (0.5 * wide * (1 + torch.tanh(inner))).to(x.dtype)
