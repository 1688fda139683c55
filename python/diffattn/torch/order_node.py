"""The places of rows' elements in their order, as one node, which nothing takes apart: the builtin `argsort`."""

from __future__ import annotations

import torch

from .op import add_operator

#: Where the `first` elements of each row of `x`, [rows, size], are that come first, or all of them where `first` is 0, in their order;
#: with `descending` 1 the greatest one comes first. Of equal ones the first comes first, and NaN is greater than all others.
SCHEMA = "_argsort(Tensor x, int first, int descending) -> Tensor"


def _fake(x, first, descending):
    return x.new_empty([x.size(0), first or x.size(1)], dtype=torch.int64)


def _run(x, first, descending):
    places = torch.sort(x, stable=True, descending=bool(descending)).indices
    return places[:, :first].contiguous() if first else places


add_operator(SCHEMA, _fake, _run)


def places_in_order(x, dim, first, descending):
    """Places along axis `dim` of a tensor."""
    rows = x.movedim(dim, -1)
    places = torch.ops.diffattn._argsort(rows.reshape([rows.numel() // rows.size(-1), rows.size(-1)]), first, int(descending))
    return places.reshape([*rows.shape[:-1], places.size(-1)]).movedim(-1, dim)
