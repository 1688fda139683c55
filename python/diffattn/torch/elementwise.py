"""Element-wise ops that torch-mlir computes otherwise than PyTorch: it loses NaN in the larger of two numbers and between limits, takes a
value for equal to itself, has the constants of GELU's tanh with four digits, takes numbers beside truth values for such, takes uint8 for
signed, rounds a quotient before it takes the whole part, and divides integers in f64. Numbers of floats are in uniform.py."""

from __future__ import annotations

import functools
import math

import torch
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils._pytree import tree_leaves, tree_map


def clamp(x, min=None, max=None):
    if not x.is_floating_point() and any(isinstance(limit, float) for limit in (min, max)):
        return torch.clamp(x.to(torch.get_default_dtype()), min, max)
    if not x.is_floating_point() or isinstance(min, torch.SymFloat) or isinstance(max, torch.SymFloat):
        return NotImplemented
    for limit, below in ((min, True), (max, False)):
        if limit is not None:
            x = torch.where(x < limit if below else x > limit, torch.full((), limit, dtype=x.dtype, device=x.device), x)
    return x


def clamp_tensor(x, min=None, max=None):
    x = x if min is None else torch.maximum(x, min)
    return x if max is None else torch.minimum(x, max)


def extreme(exceeds, x, y):
    """The one that exceeds the other: by `operator.gt` maximum, by `operator.lt` minimum."""
    dtype = torch.promote_types(x.dtype, y.dtype) if x.dim() and y.dim() else torch.result_type(x, y)
    if not dtype.is_floating_point:
        return NotImplemented
    x, y = x.to(dtype), y.to(dtype)
    return torch.where(exceeds(x, y) | (x != x), x, y)


def equal(x, y):
    return torch.logical_not(x != y) if x.is_floating_point() and y.dim() else NotImplemented


def compared(op, x, number):
    """Truth values with a number, as numbers."""
    if x.dtype != torch.bool or isinstance(number, bool):
        return NotImplemented
    return op(x.to(torch.get_default_dtype() if isinstance(number, (float, torch.SymFloat)) else torch.int64), number)


def with_signs(op, *args, **kwargs):
    """An op on tensors of uint8, among others, on such of int32, which holds their numbers and has signs."""
    operands = tree_leaves((args, kwargs))
    if not any(map(_is_bytes, operands)):
        return NotImplemented
    with disable_proxy_modes_tracing():
        types = op(*args, **kwargs)
    wraps = (torch.Tag.pointwise in op.tags or op == torch.ops.aten.floor_divide.default) and type_of_integers(operands) == torch.uint8

    def widened(one):
        if wraps:  # what stands beside bytes is one of them
            one = one % 256 if type(one) is int else one.to(torch.uint8) if isinstance(one, torch.Tensor) and one.dtype != torch.bool else one
        return one.to(torch.int32) if _is_bytes(one) else one

    if kwargs.get("dtype") == torch.uint8:  # a sum whose type is given
        kwargs = {**kwargs, "dtype": torch.int64}
    made = op(*tree_map(widened, args), **tree_map(widened, kwargs))
    return tree_map(lambda one, like: one.to(like.dtype), made, types)


def _is_bytes(one) -> bool:
    return isinstance(one, torch.Tensor) and one.dtype == torch.uint8


def type_of_integers(operands) -> torch.dtype | None:
    """The type that an element-wise op on integers computes in: numbers beside tensors, and tensors of one number beside larger ones, wrap
    around to it. None: there are other operands than integers."""
    tensors = [one for one in operands if isinstance(one, torch.Tensor)]
    has_floats = any(isinstance(one, (float, torch.SymFloat)) for one in operands) or any(one.is_floating_point() or one.is_complex() for one in tensors)
    if not tensors or has_floats:
        return None
    return functools.reduce(torch.promote_types, (one.dtype for one in [one for one in tensors if one.dim()] or tensors))


def bitwise(op, x, number):
    """A tensor with a number, by the op of two tensors: torch-mlir has that alone."""
    return op(x, torch.full((), number, device=x.device).to(torch.result_type(x, number)))


def gelu(x, approximate="none"):
    if approximate != "tanh":
        return NotImplemented
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * (wide * wide * wide))
    # (1 + tanh t) / 2, without the digits that the sum loses where tanh t is near -1.
    return (wide * torch.sigmoid(2 * inner)).to(x.dtype)


def trunc(x):
    """Truncates toward 0 and keeps the sign of -0, which torch-mlir loses."""
    return torch.where(x < 0, torch.ceil(x), torch.floor(x)) if x.is_floating_point() else NotImplemented


# Division with whole quotients.


def fmod(x, y):
    """Computes fmod by torch-mlir's remainder, which is exact."""
    dtype = torch.result_type(x, y)
    if not dtype.is_floating_point:
        return NotImplemented if isinstance(y, torch.Tensor) else torch.fmod(x, _operand(y, dtype, x))
    return _remainder(_operand(x, dtype, y), _operand(y, dtype, x))


def _remainder(x, y):
    """Remainder of the division rounded toward 0, with the sign of `x`."""
    rest = torch.remainder(x.abs(), y.abs())
    return torch.where(x < 0, -rest, rest)


def remainder_of_number(number, x):
    return torch.remainder(_operand(number, torch.result_type(number, x), x), x)


def div(x, y, *, rounding_mode=None):
    return floor_divide(x, y) if rounding_mode == "floor" else NotImplemented


def floor_divide(x, y):
    if any(isinstance(one, torch.SymFloat) for one in (x, y)) or not any(isinstance(one, torch.Tensor) for one in (x, y)):
        return NotImplemented
    dtype = torch.result_type(x, y)
    if dtype.is_floating_point:
        return _float_floor_divide(x, y, dtype)
    wide = torch.promote_types(dtype, torch.int32)
    x, y = _operand(x, wide, y), _operand(y, wide, x)
    quotient = torch.div(x, y, rounding_mode="trunc")
    rest = x - quotient * y
    return (quotient - ((rest != 0) & ((rest < 0) != (y < 0))).to(wide)).to(dtype)


def _float_floor_divide(x, y, dtype):
    """The quotient of x less its remainder, which is whole but for rounding; for a divisor of 0 the plain quotient."""
    wide = torch.promote_types(dtype, torch.float32)
    x, y = _operand(x, wide, y), _operand(y, wide, x)
    plain, rest = x / y, _remainder(x, y)
    quotient = (x - rest) / y
    quotient = torch.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)
    below = torch.floor(quotient)
    whole = torch.where(quotient - below > 0.5, below + 1, below)
    whole = torch.where(quotient == 0, plain * 0, whole)  # with the sign of the plain one
    return torch.where(y == 0, plain, whole).to(dtype)


def _operand(x, dtype, like):
    if isinstance(x, torch.SymInt):  # torch-mlir fills no tensor with a symbolic size
        return torch.zeros((), dtype=dtype, device=like.device) + x
    x = x if isinstance(x, torch.Tensor) else torch.full((), x, dtype=torch.int64 if isinstance(x, int) else dtype, device=like.device)
    return x.to(dtype)
