"""Sums of all elements up to each one along an axis: torch-mlir's own form is an op of its dialect `tm_tensor`, which MLIR 22 does not parse.
Along short axes, and those whose length is a symbol, every element is taken with all before it; along longer ones each pass doubles the
elements that a number stands for."""

from __future__ import annotations

import torch

from .scattering import along

#: The longest axis whose elements are each taken with all before them: the fewer passes, the less memory is written.
_SHORT = 32


def cumsum(x, dim, *, dtype=None):
    if dtype is None and not x.is_floating_point():
        dtype = torch.int64
    x = x if dtype is None else x.to(dtype)
    if x.dim() == 0:
        return x.clone()
    axis = dim % x.dim()
    if not isinstance(x.size(axis), int) or x.size(axis) <= _SHORT:
        places = torch.arange(x.size(axis), device=x.device)
        counts = along(places.unsqueeze(1) >= places.unsqueeze(0), x.dim() + 1, axis)
        return torch.where(counts, x.unsqueeze(axis), torch.zeros((), dtype=x.dtype, device=x.device)).sum(axis + 1, dtype=x.dtype)
    whole = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    length, step = whole.size(axis), 1
    while step < length:
        earlier, later = (whole.narrow(axis, begin, length - step) for begin in (0, step))
        whole = torch.cat([whole.narrow(axis, 0, step), earlier + later], axis)
        step *= 2
    return whole.to(x.dtype)
