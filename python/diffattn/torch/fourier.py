"""Fourier transforms of known sizes as products of real matrices: both parts of all elements along an axis, side by side, times a constant
that holds the cosines and sines. PyTorch writes its transforms by the three ops here, which have all axes, lengths and norms resolved."""

from __future__ import annotations

import torch

from ..errors import CompileError
from .complex_parts import as_complex, pair, taken_apart
from .fourier_matrix import MOST_ELEMENTS

aten = torch.ops.aten


def rules() -> dict:
    """The decompositions by op."""
    composed = (aten.fft_fft, aten.fft_ifft, aten.fft_rfft, aten.fft_irfft, aten.fft_hfft, aten.fft_ihfft, aten.fft_fft2, aten.fft_ifft2, aten.fft_rfft2,
                aten.fft_irfft2, aten.fft_hfft2, aten.fft_ihfft2, aten.fft_fftn, aten.fft_ifftn, aten.fft_rfftn, aten.fft_irfftn, aten.fft_hfftn,
                aten.fft_ihfftn, aten.fft_fftshift, aten.fft_ifftshift, aten.stft)
    result = {op: taken_apart(op) for packet in composed for op in (getattr(packet, name) for name in packet.overloads() if name != "out")}
    result.update({aten.fft_fftfreq.default: fftfreq, aten.fft_rfftfreq.default: rfftfreq})
    result.update({aten._fft_r2c.default: r2c, aten._fft_c2r.default: c2r, aten._fft_c2c.default: c2c})
    return result


def fftfreq(n, d=1.0, *, dtype=None, layout=None, device=None, pin_memory=None):
    return ((torch.arange(n, device=device) + n // 2) % n - n // 2).to(dtype or torch.get_default_dtype()) * (1.0 / (n * d))


def rfftfreq(n, d=1.0, *, dtype=None, layout=None, device=None, pin_memory=None):
    return torch.arange(n // 2 + 1, device=device).to(dtype or torch.get_default_dtype()) * (1.0 / (n * d))


def r2c(x, dim, normalization, onesided):
    *others, last = dim
    size = _known(x.size(last))
    pairs = _times(x.unsqueeze(-1), last, size, size // 2 + 1 if onesided else size, -1, normalization, 2)
    return c2c(as_complex(pairs), others, normalization, True)


def c2r(x, dim, normalization, last_dim_size):
    *others, last = dim
    x = c2c(x, others, normalization, False)
    size = _known(last_dim_size)
    return _times(pair(x), last, size, size, 1, normalization, 1).squeeze(-1)


def c2c(x, dim, normalization, forward):
    for axis in dim:
        size = _known(x.size(axis))
        x = as_complex(_times(pair(x), axis, size, size, -1 if forward else 1, normalization, 2))
    return x


def _times(pairs, axis, size, columns, sign, normalization, gives):
    """`pairs` with the axis `axis` and the last one multiplied by those of the matrix."""
    axis %= pairs.dim() - 1
    matrix = torch.ops.diffattn._fourier_matrix(pairs, size, _known(pairs.size(axis)), columns, sign, normalization, pairs.size(-1), gives)
    product = torch.matmul(pairs.movedim(axis, -2).flatten(-2), matrix)
    return product.unflatten(-1, (columns, gives)).movedim(-2, axis)


def _known(size) -> int:
    number = size if isinstance(size, int) else size.node.maybe_as_int()  # of a symbol that turned out to be one
    if number is None:
        raise CompileError(f"expected sizes that are known along the axes of a Fourier transform, but got {size}")
    if number > MOST_ELEMENTS:
        raise CompileError(f"expected at most {MOST_ELEMENTS} elements along an axis of a Fourier transform, which is a product with a matrix, "
                           f"but got {number}")
    return number
