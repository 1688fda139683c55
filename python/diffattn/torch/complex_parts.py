"""The real and imaginary parts of complex tensors and numbers, within a decomposition."""

from __future__ import annotations

import functools

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..errors import CompileError
from .graph import physical_order
from .tensors import part_type


def taken_apart(op):
    """The decomposition of an op that PyTorch itself takes apart into others, which torch.export may keep whole."""
    return functools.partial(op._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)


def is_complex(value) -> bool:
    """Whether a complex tensor, number or type is in it."""
    if isinstance(value, (list, tuple)):
        return any(map(is_complex, value))
    if isinstance(value, dict):
        return any(map(is_complex, value.values()))
    if isinstance(value, torch.Tensor):
        return value.is_complex()
    return isinstance(value, torch.dtype) and value.is_complex or isinstance(value, complex)


def pair(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Both parts, of type `dtype`, on a last axis."""
    if x.is_conj() or x.is_neg():  # of the module: results are none
        raise CompileError("expected tensors whose memory holds their values, but got a lazy view; let the module keep what resolve_conj() or "
                           "resolve_neg() gives")
    if x.is_complex():
        made = torch.view_as_real(x)
        return made if dtype is None or made.dtype == dtype else made.to(dtype)
    x = x if dtype is None else x.to(dtype)
    return torch.cat([x.unsqueeze(-1), torch.zeros_like(x).unsqueeze(-1)], -1)


def as_complex(pairs: torch.Tensor) -> torch.Tensor:
    """The reverse of `pair`."""
    lies_so = statically_known_true(pairs.stride(-1) == 1) and all(statically_known_true(n % 2 == 0)
                                                                   for n in (*pairs.stride()[:-1], pairs.storage_offset()))
    return torch.view_as_complex(pairs if lies_so else pairs.contiguous())


def as_parts(x, dtype: torch.dtype | None = None) -> tuple:
    """The real and the imaginary part of a tensor, or number, as it takes part in what is computed in the complex type `dtype`. None: it
    has none."""
    if not isinstance(x, torch.Tensor):
        re, im = number_parts(x)
        return (re if re or not im else None), im or None
    if not x.is_complex():
        return (x if dtype is None else x.to(part_type(dtype))), None
    pairs = pair(x, None if dtype is None else part_type(dtype))
    return pairs.select(-1, 0), pairs.select(-1, 1)


def number_parts(number) -> tuple:
    """Of a number, which may be a symbol."""
    return (number.real, number.imag) if isinstance(number, complex) else (number, 0)


def join(re, im) -> torch.Tensor:
    """The complex tensor of these parts, of which one may be a number, or None. Its elements lie in the order of axes that the parts'
    have."""
    re, im = (part if isinstance(part, torch.Tensor) else torch.full_like(other, part or 0) for part, other in ((re, im), (im, re)))
    if re.shape != im.shape:
        re, im = torch.broadcast_tensors(re, im)
    order = list(physical_order(re) or physical_order(im) or range(re.dim()))
    back = [*(order.index(axis) for axis in range(re.dim())), re.dim()]
    if order == sorted(order):
        return as_complex(torch.cat([re.unsqueeze(-1), im.unsqueeze(-1)], -1))
    return as_complex(torch.cat([part.permute(order).unsqueeze(-1) for part in (re, im)], -1).permute(back))
