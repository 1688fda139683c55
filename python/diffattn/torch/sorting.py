"""Places of elements by their order: torch-mlir's own form is an op of its dialect `tm_tensor`, which MLIR 22 does not parse. Along a short
axis, as a router's of experts, every element is compared with every other, which are ops on tensors alone; along longer ones, and those
whose length is a symbol, one node, the builtin `argsort`, becomes loops of the host, but for code that runs on a GPU, which has none."""

from __future__ import annotations

import torch

from .op import add_operator
from .scattering import along

#: Where the `first` elements of each row of `x`, [rows, size], are that come first, or all of them where `first` is 0, in their order;
#: with `descending` 1 the greatest one comes first. Of equal ones the first comes first, and NaN is greater than all others.
SCHEMA = "_argsort(Tensor x, int first, int descending) -> Tensor"

#: The longest axis along which every two elements are compared.
_SHORT = 32
#: Up to so many first elements are selected by themselves; for more, all elements are sorted.
_FEW = 64


def sort(x, dim=-1, descending=False, *, compares=False):
    return sort_stable(x, dim=dim, descending=descending, compares=compares)


def sort_stable(x, *, stable=None, dim=-1, descending=False, compares=False):
    """Stable whether that is asked for or not. `compares`: without loops of the host, for axes of any length."""
    return _ranked(x, dim, None, descending, compares)


def topk(x, k, dim=-1, largest=True, sorted=True, *, compares=False):
    """Equal elements stay in their order; the result is always sorted."""
    return _ranked(x, dim, k, largest, compares)


def _fake(x, first, descending):
    return x.new_empty([x.size(0), first or x.size(1)], dtype=torch.int64)


def _run(x, first, descending):
    places = torch.sort(x, stable=True, descending=bool(descending)).indices
    return places[:, :first].contiguous() if first else places


add_operator(SCHEMA, _fake, _run)


def _places_in_order(x, dim, first, descending):
    """The places in order along axis `dim` of a tensor, by the node."""
    rows = x.movedim(dim, -1)
    places = torch.ops.diffattn._argsort(rows.reshape([rows.numel() // rows.size(-1), rows.size(-1)]), first, int(descending))
    return places.reshape([*rows.shape[:-1], places.size(-1)]).movedim(-1, dim)


def with_place(extreme, x, dim, keepdim=False):
    """The elements that `extreme` finds, torch.amax or torch.amin, and their places."""
    place = place_of(extreme, x, dim, keepdim)
    return place if place is NotImplemented else (extreme(x, dim, keepdim), place)


def place_of(extreme, x, dim=None, keepdim=False):
    """The first NaN's, if there is one, which torch-mlir does not see, or else that of the first of the largest."""
    if x.dim() == 0 or not x.is_floating_point():
        return NotImplemented
    flat = x.reshape(-1) if dim is None else x
    axis = 0 if dim is None else dim % x.dim()
    places = along(torch.arange(flat.size(axis), device=x.device), flat.dim(), axis)
    is_extreme = (flat == extreme(flat, axis, keepdim=True)) | (flat != flat)
    first = torch.where(is_extreme, places, torch.full((), torch.iinfo(torch.int64).max, dtype=torch.int64, device=x.device)).amin(axis, keepdim)
    return first.reshape([1] * x.dim()) if dim is None and keepdim else first


def _ranked(x, dim, count, descending, compares):
    """The `count` elements that come first, or all where that is None, and their places."""
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    dim, size = dim % x.dim(), x.size(dim)
    count = size if count is None else count
    if not (compares or (isinstance(size, int) and size <= _SHORT)):
        keys, first = x.to(torch.int64) if x.dtype == torch.bool else x, count if isinstance(count, int) and 0 < count <= _FEW else 0
        places = _places_in_order(keys, dim, first, descending).narrow(dim, 0, count).contiguous()
        return x.gather(dim, places), places
    ranks = _ranks(x, dim, descending)
    numbers, places = (along(torch.arange(length, device=x.device), x.dim() + 1, axis) for length, axis in ((count, dim), (size, dim + 1)))
    nothing = torch.zeros((), dtype=torch.int64, device=x.device)
    order = torch.where(ranks.unsqueeze(dim) == numbers, places, nothing).sum(dim + 1)
    return x.gather(dim, order), order


def _ranks(x, dim, descending):
    """Number of elements that come before each one."""
    if x.dtype == torch.bool:
        x = x.to(torch.int64)
    one, other = x.unsqueeze(dim + 1), x.unsqueeze(dim)
    precedes, follows = (_exceeds(other, one), _exceeds(one, other)) if descending else (_exceeds(one, other), _exceeds(other, one))
    places = torch.arange(x.size(dim), device=x.device)
    earlier = along(places, x.dim() + 1, dim + 1) < along(places, x.dim() + 1, dim)
    return (precedes | ~follows & earlier).to(torch.int64).sum(dim + 1)


def _exceeds(x, y):
    """NaN is greater than all others."""
    return x > y if not x.is_floating_point() else (x > y) | (x != x) & (y == y)
