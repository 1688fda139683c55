"""Element-wise ops that torch-mlir computes otherwise than PyTorch: it loses NaN in the larger of two numbers and between limits, takes a
value for equal to itself, compares floats with numbers in f64, has the constants of GELU's tanh with four digits, takes numbers of
tensors for f64, takes numbers beside truth values for such, and takes uint8 for signed; beside integers of fewer bits than a number has
it goes on with the number itself. Division is in division.py."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch


def clamp(x, min=None, max=None):
    if not x.is_floating_point() and any(isinstance(limit, float) for limit in (min, max)):
        return torch.clamp(x.to(torch.get_default_dtype()), min, max)
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
    """A float tensor with a number that its type does not hold: the nearest that it does hold stands for it. Truth values with a number
    as numbers."""

    def compare(x, number):
        if x.dtype == torch.bool and not isinstance(number, bool):
            return op(x.to(torch.get_default_dtype() if isinstance(number, (float, torch.SymFloat)) else torch.int64), number)
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


def filled(op, place):
    """A tensor of one number, operand number `place`, that its type does not hold: torch-mlir would go on with the number itself."""

    def fill(*args, **kwargs):
        like = args[0] if isinstance(args[0], torch.Tensor) else None
        dtype, number = kwargs.get("dtype") or (like.dtype if like is not None else torch.get_default_dtype()), args[place]
        if not isinstance(number, float) or not dtype.is_floating_point:
            return NotImplemented
        nearest = _nearest(dtype, number)
        return NotImplemented if nearest == number or nearest != nearest else op(*args[:place], nearest, *args[place + 1:], **kwargs)

    return fill


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

        if kwargs.get("dtype") == torch.uint8:  # of a sum
            return op(*map(widen, args), **{**kwargs, "dtype": torch.int64}).to(torch.uint8)
        made = op(*map(widen, args), **kwargs)
        if promoted != torch.uint8:
            return made
        narrowed = [one.to(torch.uint8) if one.dtype == wide else one for one in (made if isinstance(made, tuple) else (made,))]
        return tuple(narrowed) if isinstance(made, tuple) else narrowed[0]

    return decomposed


def of_own_type(op):
    """An op on integers beside numbers, and tensors of one number, that their type does not hold: these wrap around first."""

    def decomposed(*args, **kwargs):
        named = {name: kwargs[name] for name in ("min", "max") if kwargs.get(name) is not None}
        operands = [*args, *named.values()]
        tensors = [one for one in operands if isinstance(one, torch.Tensor)]
        if any(one.is_complex() for one in tensors) or all(one.dtype in (torch.int64, torch.bool) or one.is_floating_point() for one in tensors):
            return NotImplemented
        dtype = _promoted(op, tensors, [one for one in operands if isinstance(one, (int, float, torch.SymInt, torch.SymFloat))])
        if dtype.is_floating_point or dtype == torch.bool:
            return NotImplemented
        chooses = op == torch.ops.aten.where.self  # by its first operand
        wrapped = [one if chooses and place == 0 else _wrapped(one, dtype) for place, one in enumerate(operands)]
        if all(one is other for one, other in zip(operands, wrapped)):
            return NotImplemented
        return op(*wrapped[:len(args)], **{**kwargs, **dict(zip(named, wrapped[len(args):]))})

    return decomposed


def _wrapped(one, dtype):
    limits = torch.iinfo(dtype)
    if type(one) is int and not limits.min <= one <= limits.max:
        return (one - limits.min) % (1 << limits.bits) + limits.min
    wider = isinstance(one, torch.Tensor) and one.dim() == 0 and not one.is_floating_point() and one.dtype not in (dtype, torch.bool)
    return one.to(dtype) if wider else one


def _promoted(op, tensors, numbers):
    """The type that the op computes in."""
    aten = torch.ops.aten
    if op == aten.cat.default:
        return functools.reduce(torch.promote_types, (one.dtype for one in tensors))
    first, *others = [*(tensors[1:] if op == aten.where.self else tensors), *numbers]
    return functools.reduce(torch.promote_types, [torch.result_type(first, one) for one in others] or [first.dtype])


def is_finite(x):
    return x.abs() < math.inf if x.is_floating_point() else torch.ones_like(x, dtype=torch.bool)


def bitwise(op):
    """A tensor with a number, by the op of two tensors: torch-mlir has that alone."""
    return lambda x, number: op(x, torch.full((), number, dtype=torch.result_type(x, number), device=x.device))


def gelu(x, approximate="none"):
    if approximate != "tanh":
        return NotImplemented
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * (wide * wide * wide))
    # (1 + tanh t) / 2, without the digits that the sum loses where tanh t is near -1.
    return (wide * torch.sigmoid(2 * inner)).to(x.dtype)


def trunc(x):
    """With the sign of -0, which torch-mlir loses."""
    return torch.where(x < 0, torch.ceil(x), torch.floor(x)) if x.is_floating_point() else NotImplemented


def elu(x, alpha=1, scale=1, input_scale=1):
    """Also SELU and CELU. By `expm1`: torch-mlir's `exp(x) - 1` loses all digits of a small negative x."""
    if not x.is_floating_point():
        return NotImplemented
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return torch.where(wide > 0, wide * scale, torch.expm1(wide * input_scale) * (alpha * scale)).to(x.dtype)
