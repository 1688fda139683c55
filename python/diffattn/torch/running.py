"""Sums, products and extremes of all elements up to each one along an axis: torch-mlir's own forms are ops of its dialect `tm_tensor`, which MLIR
22 does not parse, or there are none. Along short axes, and those whose length is a symbol, every element is taken with all before it; along
longer ones each pass doubles the elements that a number stands for."""

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
    if _is_short(x, axis):
        return reduce(_terms(x, axis, neutral), axis + 1, dtype=x.dtype)
    whole = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return _doubled([whole], axis, lambda earlier, later: [combine(*earlier, *later)])[0].to(x.dtype)


def _is_short(x, axis) -> bool:
    return not isinstance(x.size(axis), int) or x.size(axis) <= _SHORT


def _doubled(parts, axis, combine):
    """Tensors that stand for one element each, as ones that stand for all up to each one: `combine` takes those that stand for some elements
    and those for as many after them."""
    length, step = parts[0].size(axis), 1
    while step < length:
        earlier, later = ([part.narrow(axis, begin, length - step) for part in parts] for begin in (0, step))
        parts = [torch.cat([part.narrow(axis, 0, step), new], axis) for part, new in zip(parts, combine(earlier, later))]
        step *= 2
    return parts


def cummax(x, dim):
    return _extreme(x, dim, torch.amax, lambda dtype: -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min)


def cummin(x, dim):
    return _extreme(x, dim, torch.amin, lambda dtype: torch.inf if dtype.is_floating_point else torch.iinfo(dtype).max)


def logcumsumexp(x, dim):
    if x.dim() == 0:
        return x.clone()
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    if not _is_short(x, dim % x.dim()):
        most, total = _doubled([wide, torch.exp(wide - _finite(wide))], dim % x.dim(), _sum_of_exponentials)
        return (torch.log(total) + _finite(most)).to(x.dtype)
    axis, most = dim % x.dim(), _terms(wide, dim, -torch.inf).amax(dim % x.dim() + 1)
    most = _finite(most)
    terms = torch.where(_counts(wide, axis), torch.exp(wide.unsqueeze(axis) - most.unsqueeze(axis + 1)), torch.zeros((), dtype=wide.dtype, device=x.device))
    return (torch.log(terms.sum(axis + 1)) + most).to(x.dtype)


def _sum_of_exponentials(earlier, later):
    """The greatest logarithm, and the sum relative to it."""
    most = torch.maximum(earlier[0], later[0])
    return [most, sum(total * torch.exp(one - _finite(most)) for one, total in (earlier, later))]


def _finite(x):
    return torch.where(x.abs() < torch.inf, x, torch.zeros((), dtype=x.dtype, device=x.device))


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
    if not _is_short(x, axis):
        places = along(torch.arange(x.size(axis), device=x.device), x.dim(), axis).expand(x.shape)
        values, places = _doubled([wide, places], axis, lambda earlier, later: _later_or_beyond(earlier, later, extreme is torch.amax))
        return values.to(x.dtype), places
    values = extreme(_terms(wide, dim, last(wide.dtype)), axis + 1)
    one, other = values.unsqueeze(axis + 1), wide.unsqueeze(axis)
    found = _counts(wide, axis) & ((one == other) | (other != other))
    places = along(torch.arange(x.size(axis), device=x.device), x.dim() + 1, axis + 1)
    return values.to(x.dtype), torch.where(found, places, torch.full((), -1, dtype=torch.int64, device=x.device)).amax(axis + 1)


def _later_or_beyond(earlier, later, greatest):
    """The later one, with its place, but where the earlier one lies beyond it, or is NaN and the later one is not."""
    (one, place), (other, other_place) = earlier, later
    stays = ((one > other) if greatest else (one < other)) | ((one != one) & (other == other))
    return [torch.where(stays, one, other), torch.where(stays, place, other_place)]


def _terms(x, dim, otherwise):
    """The elements that count for each one, along the axis behind `dim`, and `otherwise` in place of the others."""
    axis = dim % x.dim()
    return torch.where(_counts(x, axis), x.unsqueeze(axis), torch.full((), otherwise, dtype=x.dtype, device=x.device))


def _counts(x, axis):
    places = torch.arange(x.size(axis), device=x.device)
    return along(places.unsqueeze(1) >= places.unsqueeze(0), x.dim() + 1, axis)
