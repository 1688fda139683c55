"""Elements and rows that are written, or added up, at places that data gives, as into a cache. torch-mlir's own form is an op of its
dialect `tm_tensor`, which MLIR 22 does not parse: here it is one node, the builtin `write_rows`, which nothing takes apart. Where the tensor
is an argument that the graph changes, the rows are written to its own memory, and the others are not touched."""

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

#: Ops whose result is their first argument with other elements in parts of it.
_WRITES = (torch.ops.diffattn._write_rows.default, torch.ops.aten.slice_scatter.default)


def is_written_part(value, of) -> bool:
    """Whether node `value` is node `of` with other elements in parts of it, so that it can be made in its memory."""
    while isinstance(value, torch.fx.Node) and value.target in _WRITES:
        value = value.args[0]
        if value is of:
            return True
    return False


def _write_rows(x, dim, index, source, adds=False):
    """Writes rows by the operator; an index out of range fails at the read, before anything is written."""
    return torch.ops.diffattn._write_rows(x, dim, _checked(index, x.size(dim), x.device), source, int(adds))


def _checked(index, size, device):
    """A vector of places on an axis of this size, by a read of each one."""
    return torch.arange(size, device=device).index_select(0, index)


def index(x, indices):
    """torch-mlir reads by int64 alone, and along several axes by places of known sizes."""
    if any(one is not None and one.dtype == torch.int32 for one in indices):
        return torch.ops.aten.index.Tensor(x, [one if one is None or one.dtype != torch.int32 else one.to(torch.int64) for one in indices])
    given = [axis for axis, one in enumerate(indices) if one is not None]
    places = [indices[axis] for axis in given]
    if len(given) < 2 or any(one.dtype != torch.int64 for one in places) or all(isinstance(n, int) for one in (x, *places) for n in one.shape):
        return NotImplemented
    return _read_rows(x, given, [_there(x, axis, one) for axis, one in zip(given, places)])


def index_copy(x, dim, index, source):
    if x.dim() == 0:
        return NotImplemented
    return _write_rows(x, dim % x.dim(), index.reshape(-1), source)


def index_put(x, indices, values, accumulate=False):
    """Handles truth values as the only index, with one number to write; otherwise how much is written depends on data."""
    given = [i for i, index in enumerate(indices) if index is not None]
    if any(indices[i].dtype in (torch.bool, torch.uint8) for i in given):
        if len(given) != 1 or values.dim() or accumulate:
            return NotImplemented
        return torch.where(along(indices[given[0]], x.dim(), given[0]), values.to(x.dtype), x)
    if accumulate and x.dtype == torch.bool:
        return NotImplemented
    if len(given) == 1 and indices[given[0]].dim() <= 1:
        (dim,) = given
        index = _from_front(x, dim, indices[dim]).reshape(-1)
        source = values.expand([index.size(0) if axis == dim else size for axis, size in enumerate(x.shape)])
        return _write_rows(x, dim, index, source, accumulate)
    return _put_rows(x, given, [_there(x, axis, indices[axis]) for axis in given], values, accumulate)


def _from_front(x, axis, index):
    """Places on an axis, of which some count from its end."""
    return torch.where(index < 0, index + x.size(axis), index).to(torch.int64)


def _there(x, axis, index):
    """Places as `_from_front` gives them, checked by a read of each."""
    return _checked(_from_front(x, axis, index).reshape(-1), x.size(axis), x.device).reshape(index.shape)


def _read_rows(x, given, places):
    """Reads the rows that `_put_rows` writes."""
    shape, rest, first = _parts(x, given, places)
    sizes = [x.size(axis) for axis in rest]
    rows = x.permute([*given, *rest]).reshape([-1, *sizes]).index_select(0, _rows(x, given, places, shape)).reshape([*shape, *sizes])
    count = len(shape)
    return rows.permute([*range(count, count + first), *range(count), *range(count + first, rows.dim())])


def _parts(x, given, places) -> tuple:
    """The sizes of what the places give together, the other axes, and before which of these the places stand."""
    rest = [axis for axis in range(x.dim()) if axis not in given]
    # Where the axes stand side by side, those of the places stand there too, else in front.
    first = given[0] if given == list(range(given[0], given[-1] + 1)) else 0
    return torch.broadcast_shapes(*(place.shape for place in places)), rest, first


def _rows(x, given, places, shape):
    """The places on the axes `given` as one."""
    row = torch.zeros((), dtype=torch.int64, device=x.device)
    for axis, place in zip(given, places):
        row = row * x.size(axis) + place
    return row.expand(shape).reshape(-1)


def _put_rows(x, given, places, values, accumulate):
    """Writes values at places, with the axes `given` as one, in front."""
    shape, rest, first = _parts(x, given, places)
    sizes = [x.size(axis) for axis in rest]
    values = values.expand([*sizes[:first], *shape, *sizes[first:]])
    values = values.permute([*range(first, first + len(shape)), *range(first), *range(first + len(shape), values.dim())])
    row = _rows(x, given, places, shape)
    order = [*given, *rest]
    moved = x.permute(order)
    written = _write_rows(moved.reshape([-1, *sizes]), 0, row, values.reshape([-1, *sizes]), accumulate)
    written = written.reshape(moved.shape).permute([order.index(axis) for axis in range(x.dim())])
    return written.contiguous() if x.is_contiguous() else written


def scatter(x, dim, index, src, adds=False):
    """Each element by itself, in their order; of `src` those that have an index."""
    if x.dim() == 0 or index.dim() != x.dim() or src.dim() != x.dim():
        return NotImplemented
    dim, axes = dim % x.dim(), list(range(x.dim()))
    for axis in axes:
        src = src.narrow(axis, 0, index.size(axis))
    index = _checked(index.reshape(-1), x.size(dim), x.device).reshape(index.shape)
    places = [index if axis == dim else along(torch.arange(index.size(axis), device=x.device), x.dim(), axis) for axis in axes]
    return _put_rows(x, axes, places, src, adds)


def scatter_number(x, dim, index, value):
    return scatter(x, dim, index, torch.full((), value, dtype=x.dtype, device=x.device).expand(index.shape))


def scatter_add(x, dim, index, src):
    return scatter(x, dim, index, src, adds=True) if x.dtype != torch.bool else NotImplemented


def scatter_reduce(x, dim, index, src, reduce, *, include_self=True):
    return scatter_add(x, dim, index, src) if reduce == "sum" and include_self else NotImplemented


def along(x, rank, dim):
    """`x` with its axes from axis `dim` on, among `rank` axes."""
    return x.reshape([1] * dim + list(x.shape) + [1] * (rank - dim - x.dim()))
