"""The places of rows' elements in their order, as one node, which nothing takes apart: order_text.py writes it as loops."""

from __future__ import annotations

import torch

from .op import add_operator

#: Where the `first` elements of each row of `x`, [rows, size], are that come first, or all of them where `first` is 0, in their order;
#: with `falls` 1 the greatest one comes first. Of equal ones the first comes first, and NaN is greater than all others.
SCHEMA = "_order(Tensor x, int first, int falls) -> Tensor"


def _fake(x, first, falls):
    return x.new_empty([x.size(0), first or x.size(1)], dtype=torch.int64)


add_operator(SCHEMA, _fake)


def places_in_order(x, dim, first, falls):
    """Places along axis `dim` of a tensor."""
    rows = x.movedim(dim, -1)
    places = torch.ops.diffattn._order(rows.reshape([rows.numel() // rows.size(-1), rows.size(-1)]), first, int(falls))
    return places.reshape([*rows.shape[:-1], places.size(-1)]).movedim(-1, dim)
