"""Parts of tensors: windows, bags of rows, margins. torch-mlir leaves out the weights of bags, and margins below 0; where a window has
NaN it knows no place of the greatest."""

from __future__ import annotations

import contextlib
import contextvars

import torch
from torch.nn.functional import pad

aten = torch.ops.aten
_kept: contextvars.ContextVar[bool] = contextvars.ContextVar("kept", default=False)


def max_pool2d_with_indices(x, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    """The values as torch-mlir has them, and the places by comparison with these, which is left out where no one asks for them."""
    if _kept.get() or not x.is_floating_point():
        return NotImplemented
    if x.dim() == 3:
        return tuple(one.squeeze(0) for one in aten.max_pool2d_with_indices.default(x.unsqueeze(0), kernel_size, stride, padding, dilation, ceil_mode))
    with _as_it_is():
        values, _ = aten.max_pool2d_with_indices.default(x, kernel_size, stride, padding, dilation, ceil_mode)
    height, width = x.shape[-2:]
    rows, columns = (torch.arange(size, device=x.device) for size in (height, width))
    kernel, stride, padding, dilation = (_pair(one) for one in (kernel_size, stride or kernel_size, padding, dilation))
    missing = torch.full((), -1, dtype=torch.int64, device=x.device)
    place = missing.expand(values.shape)
    for i in reversed(range(kernel[0])):  # so that the first one stays
        for j in reversed(range(kernel[1])):
            at = [torch.arange(size, device=x.device) * step - before + number * apart
                  for size, step, before, number, apart in zip(values.shape[-2:], stride, padding, (i, j), dilation)]
            inside = ((at[0] >= 0) & (at[0] < height)).unsqueeze(1) & ((at[1] >= 0) & (at[1] < width))
            down, across = at[0].clamp(0, height - 1), at[1].clamp(0, width - 1)
            one = x.index_select(-2, down).index_select(-1, across)
            found = inside & ((one == values) | (one != one))
            place = torch.where(found, down.unsqueeze(1) * width + across, place)
    return values, place


def avg_pool2d(x, *options):
    """Of one image: torch-mlir knows batches alone."""
    return aten.avg_pool2d.default(x.unsqueeze(0), *options).squeeze(0) if x.dim() == 3 else NotImplemented


def adaptive_max_pool1d(x, output_size):
    made = adaptive_max_pool2d(x.unsqueeze(-2), [1, *output_size])
    return made if made is NotImplemented else tuple(one.squeeze(-2) for one in made)


def adaptive_max_pool2d(x, output_size):
    """Windows of several sizes, each with its last row and column repeated up to the largest."""
    sizes = [*x.shape[-2:], *output_size]
    if not all(isinstance(size, int) and size for size in sizes):
        return NotImplemented
    down, across = (_windows(size, count, x.device) for size, count in zip(sizes[:2], sizes[2:]))
    parts = x.index_select(-2, down.reshape(-1)).index_select(-1, across.reshape(-1))
    parts = parts.reshape([*x.shape[:-2], *down.shape, *across.shape]).transpose(-3, -2)
    values, found = parts.reshape([*parts.shape[:-2], -1]).max(-1)
    width = across.size(1)
    rows = down[:, :1] + found // width
    return values, torch.minimum(rows, down[:, -1:]) * sizes[1] + torch.minimum(across[:, 0] + found % width, across[:, -1])


def _windows(size, count, device):
    """The places in each of `count` windows that cover an axis."""
    numbers = torch.arange(count, device=device)
    widest = max(((n + 1) * size + count - 1) // count - n * size // count for n in range(count))
    ends = ((numbers + 1) * size + count - 1) // count
    return torch.minimum((numbers * size // count).unsqueeze(1) + torch.arange(widest, device=device), ends.unsqueeze(1) - 1)


@contextlib.contextmanager
def _as_it_is():
    """A context in which the op stays."""
    token = _kept.set(True)
    try:
        yield
    finally:
        _kept.reset(token)


def _pair(value) -> tuple[int, int]:
    values = [value] if isinstance(value, int) else list(value)
    return tuple(values * 2 if len(values) == 1 else values)


def constant_pad_nd(x, margins, value=0):
    """What is cut off before what is added."""
    numbers = list(margins)
    if not all(isinstance(number, int) for number in numbers) or all(number >= 0 for number in numbers) and x.dtype != torch.uint8:
        return NotImplemented
    if x.dtype == torch.uint8:  # torch-mlir adds other numbers
        return pad(x.to(torch.int32), numbers, value=int(value)).to(torch.uint8)
    for axis, (before, behind) in enumerate(zip(numbers[::2], numbers[1::2])):
        dim, cut = x.dim() - 1 - axis, (max(-before, 0), max(-behind, 0))
        if any(cut):
            x = x.narrow(dim, cut[0], x.size(dim) - sum(cut))
    return pad(x, [max(number, 0) for number in numbers], value=value)


def embedding_bag(weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False, per_sample_weights=None,
                  include_last_offset=False, padding_idx=-1):
    """Each row beside each bag: the sum (mode 0), the mean (1) or the greatest (2) of those that belong to it."""
    bags = offsets.size(0) - 1 if include_last_offset else offsets.size(0)
    numbers, begins = torch.arange(indices.size(0), device=weight.device), offsets.to(torch.int64)
    bag = torch.logical_not(begins[:bags] > numbers.unsqueeze(1)).to(torch.int64).sum(1) - 1
    kept = indices != padding_idx if padding_idx >= 0 else torch.ones_like(indices, dtype=torch.bool)
    if include_last_offset:
        kept = kept & (numbers < begins[bags])
    belongs = (torch.arange(bags, device=weight.device).unsqueeze(1) == bag) & kept
    rows = weight.index_select(0, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    counts = belongs.to(torch.int64).sum(1)
    otherwise = torch.full((), -torch.inf if mode == 2 else 0, dtype=rows.dtype, device=rows.device)
    terms = torch.where(belongs.unsqueeze(2), rows, otherwise)
    if mode == 2:
        made = torch.where(counts.unsqueeze(1) > 0, terms.amax(1), torch.zeros((), dtype=rows.dtype, device=rows.device))
    else:
        made = terms.sum(1) if mode == 0 else terms.sum(1) / counts.clamp(min=1).unsqueeze(1)
    return made, bag, counts, counts
