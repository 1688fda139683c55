"""The masks, as PyTorch code spells them: `MASKS[name](scores, sizes, given)`.

`scores` is [B, H, queries, keys], `sizes` the last two; `given` is the mask that comes as an argument or lies in the module
as a buffer. A buffer's contents are `BUFFERS[name](T, H)`.
"""

import torch

MASKS = {}
INFINITY = float("inf")


def mask(function):
    MASKS[function.__name__] = function
    return function


def positions(sizes):
    """Queries down, keys across."""
    queries, keys = sizes
    return torch.arange(queries)[:, None], torch.arange(keys)[None, :]


def viewed_positions(sizes):
    queries, keys = sizes
    return torch.arange(queries).view(-1, 1), torch.arange(keys).view(1, -1)


@mask
def none(scores, sizes, given):
    return scores


@mask
def triu_add(scores, sizes, given):
    queries, keys = sizes
    return scores + torch.triu(torch.zeros(queries, keys).fill_(-INFINITY).type_as(scores), 1 + keys - queries)


@mask
def triu_full(scores, sizes, given):
    queries, keys = sizes
    return scores + torch.full((queries, keys), -INFINITY).triu(1 + keys - queries)


@mask
def tril_fill(scores, sizes, given):
    queries, keys = sizes
    return scores.masked_fill(torch.tril(torch.ones(queries, keys), diagonal=keys - queries) == 0, -INFINITY)


@mask
def tril_not(scores, sizes, given):
    queries, keys = sizes
    return scores.masked_fill(~torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries), -INFINITY)


@mask
def triu_bool(scores, sizes, given):
    return scores.masked_fill(torch.triu(torch.ones(*sizes, dtype=torch.bool), diagonal=1), -INFINITY)


@mask
def where_min(scores, sizes, given):
    queries, keys = sizes
    i, j = positions(sizes)
    return torch.where(j <= i + (keys - queries), scores, torch.finfo(scores.dtype).min)


@mask
def where_1e9(scores, sizes, given):
    i, j = positions(sizes)
    fill = -1e9 if scores.dtype != torch.float16 else -1e4
    return torch.where(i >= j, scores, torch.tensor(fill, dtype=scores.dtype))


@mask
def window(scores, sizes, given):
    i, j = positions(sizes)
    keep = (j <= i) & (i - j < 5)
    return scores.masked_fill(~keep, -INFINITY)


@mask
def window_or(scores, sizes, given):
    i, j = viewed_positions(sizes)
    return torch.where((j > i) | (j < i - 4), torch.full_like(scores, -INFINITY), scores)


@mask
def sym(scores, sizes, given):
    i, j = viewed_positions(sizes)
    return scores.masked_fill((i - j).abs() > 4, -torch.inf)


@mask
def mul_1e4(scores, sizes, given):
    return scores + (1.0 - torch.tril(torch.ones(*sizes))) * -10000.0


@mask
def mul_min(scores, sizes, given):
    keep = torch.tril(torch.ones(*sizes)).to(scores.dtype)
    return scores + (1.0 - keep) * torch.finfo(scores.dtype).min


@mask
def in_bool(scores, sizes, given):
    return scores.masked_fill(~given, -INFINITY)


@mask
def in_bool4(scores, sizes, given):
    return scores.masked_fill(given == False, -INFINITY)  # noqa: E712, the spelling is the point


@mask
def in_int(scores, sizes, given):
    return scores.masked_fill(given[:, None, None, :] == 0, -INFINITY)


@mask
def in_add(scores, sizes, given):
    return scores + given


@mask
def in_add4(scores, sizes, given):
    return scores + given


@mask
def in_sliced(scores, sizes, given):
    return scores + given[:, :, :, :sizes[1]]


@mask
def lens(scores, sizes, given):
    j = torch.arange(sizes[1])[None, :]
    return scores.masked_fill((j >= given[:, None])[:, None, None, :], -INFINITY)


@mask
def lens_causal(scores, sizes, given):
    queries, keys = sizes
    i, j = torch.arange(queries), torch.arange(keys)
    keep = (j[None, None, None, :] < given[:, None, None, None]) & (j[None, :] <= i[:, None])[None, None]
    return torch.where(keep, scores, torch.tensor(-INFINITY).to(scores.dtype))


@mask
def causal_pad(scores, sizes, given):
    keep = torch.tril(torch.ones(*sizes, dtype=torch.bool))[None, None] & given[:, None, None, :]
    return scores.masked_fill(torch.logical_not(keep), -INFINITY)


@mask
def buf_tril(scores, sizes, given):
    queries, keys = sizes
    return scores.masked_fill(given[:, :, :queries, :keys] == 0, -INFINITY)


@mask
def buf_bool(scores, sizes, given):
    queries, keys = sizes
    return scores.masked_fill(~given[:queries, :keys], -INFINITY)


@mask
def buf_inf(scores, sizes, given):
    queries, keys = sizes
    return scores + given[:queries, :keys]


@mask
def buf_window(scores, sizes, given):
    return scores.masked_fill(~given, -1e9)


@mask
def buf_alibi(scores, sizes, given):
    return scores + given


def distance(T):
    i = torch.arange(T)
    return (i[:, None] - i[None, :]).abs()


BUFFERS = {
    "buf_tril": lambda T, H: torch.tril(torch.ones(T, T)).view(1, 1, T, T),
    "buf_bool": lambda T, H: torch.tril(torch.ones(T, T, dtype=torch.bool)),
    "buf_inf": lambda T, H: torch.full((T, T), -INFINITY).triu(1),
    "buf_window": lambda T, H: distance(T) <= 3,
    "buf_alibi": lambda T, H: -distance(T).float() * torch.arange(1, H + 1).float()[:, None, None] * .1,
}
