"""Sums, products and extremes of all elements up to each one along an axis: torch-mlir's own forms are ops of its dialect `tm_tensor`, which MLIR
22 does not parse, or there are none. Along short axes, and those whose length is a symbol, every element is taken with all before it; sums
and products along longer ones double the elements that a number stands for in each pass."""

from __future__ import annotations

import torch

from .scattering import along


#: The longest axis whose elements are each taken with all before them: the fewer passes, the less memory is written.
_SHORT = 32


def cumsum(x, dim, *, dtype=None):
    return _running(_whole(x, dtype), dim, torch.add, 0, torch.sum)


def cumprod(x, dim, *, dtype=None):
    return _running(_whole(x, dtype), dim, torch.mul, 1, torch.prod)


def _running(x, dim, combine, neutral, reduce):
    if x.dim() == 0:
        return x.clone()
    axis = dim % x.dim()
    length = x.size(axis)
    if not isinstance(length, int) or length <= _SHORT:
        return reduce(_terms(x, axis, neutral), axis + 1, dtype=x.dtype)
    whole, step = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x, 1
    while step < length:
        later = combine(whole.narrow(axis, 0, length - step), whole.narrow(axis, step, length - step))
        whole, step = torch.cat([whole.narrow(axis, 0, step), later], axis), 2 * step
    return whole.to(x.dtype)


def cummax(x, dim):
    return _extreme(x, dim, torch.amax, lambda dtype: -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min)


def cummin(x, dim):
    return _extreme(x, dim, torch.amin, lambda dtype: torch.inf if dtype.is_floating_point else torch.iinfo(dtype).max)


def logcumsumexp(x, dim):
    if x.dim() == 0:
        return x.clone()
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    axis, most = dim % x.dim(), _terms(wide, dim, -torch.inf).amax(dim % x.dim() + 1)
    most = torch.where(most.abs() < torch.inf, most, torch.zeros((), dtype=wide.dtype, device=x.device))
    terms = torch.where(_counts(wide, axis), torch.exp(wide.unsqueeze(axis) - most.unsqueeze(axis + 1)), torch.zeros((), dtype=wide.dtype, device=x.device))
    return (torch.log(terms.sum(axis + 1)) + most).to(x.dtype)


def _whole(x, dtype):
    """In the type that is computed in: integers are int64."""
    if dtype is None and not (x.is_floating_point() or x.is_complex()):
        dtype = torch.int64
    return x if dtype is None else x.to(dtype)


def _extreme(x, dim, extreme, last):
    """The values, and the last places where they stand, which are those of NaN once one came."""
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    axis = dim % x.dim()
    wide = x.to(torch.int64) if x.dtype == torch.bool else x
    values = extreme(_terms(wide, dim, last(wide.dtype)), axis + 1)
    one, other = values.unsqueeze(axis + 1), wide.unsqueeze(axis)
    found = _counts(wide, axis) & ((one == other) | (other != other))
    places = along(torch.arange(x.size(axis), device=x.device), x.dim() + 1, axis + 1)
    return values.to(x.dtype), torch.where(found, places, torch.full((), -1, dtype=torch.int64, device=x.device)).amax(axis + 1)


def _terms(x, dim, otherwise):
    """The elements that count for each one, along the axis behind `dim`, and `otherwise` in place of the others."""
    axis = dim % x.dim()
    return torch.where(_counts(x, axis), x.unsqueeze(axis), torch.full((), otherwise, dtype=x.dtype, device=x.device))


def _counts(x, axis):
    places = torch.arange(x.size(axis), device=x.device)
    return along(places.unsqueeze(1) >= places.unsqueeze(0), x.dim() + 1, axis)
