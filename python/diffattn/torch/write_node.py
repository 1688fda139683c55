"""Rows that a graph writes into a tensor at places that data gives, as into a cache: one node, which nothing takes apart.

The builtin `write_rows`. Where the tensor is an argument that the graph changes, the rows are written
to its own memory, and the others are not touched.
"""

from __future__ import annotations

import torch

from .op import add_operator

#: `x` with row i of `source`, along axis `axis`, at place index[i] of that axis, which is there; the last one of several with one place.
#: With `adds` 1 each row is added to what is there, one after the other.
SCHEMA = "_write_rows(Tensor x, int axis, Tensor index, Tensor source, int adds) -> Tensor"


def _fake(x, axis, index, source, adds):
    return x.new_empty(x.shape)


def _run(x, axis, index, source, adds):
    return x.index_add(axis, index, source) if adds else x.index_copy(axis, index, source)


add_operator(SCHEMA, _fake, _run)


def write_rows(x, dim, index, source, adds=False):
    """As the operator; an index that is not there fails at the read, before anything is written."""
    return torch.ops.diffattn._write_rows(x, dim, checked(index, x.size(dim), x.device), source, int(adds))


def checked(index, size, device):
    """A vector of places on an axis of this size, by a read of each one."""
    return torch.arange(size, device=device).index_select(0, index)


#: Ops whose result is their first argument with other elements in parts of it.
_WRITES = (torch.ops.diffattn._write_rows.default, torch.ops.aten.slice_scatter.default)


def is_written_part(value, of) -> bool:
    """Whether node `value` is node `of` with other elements in parts of it, so that it can be made in its memory."""
    while isinstance(value, torch.fx.Node) and value.target in _WRITES:
        value = value.args[0]
        if value is of:
            return True
    return False
