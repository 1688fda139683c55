"""Functions of complex numbers as formulas of real tensors: a number is (real part, imaginary part), of which one may be None, which is 0.
Formulas are those of PyTorch's kernels where these lose no digits that others keep."""

from __future__ import annotations

import math

import torch


def plus(a, b):
    return b if a is None else a if b is None else a + b


def minus(a, b):
    return a if b is None else -b if a is None else a - b


def times(a, b):
    return None if a is None or b is None else a * b


def scaled(z, factor):
    return tuple(times(part, factor) for part in z)


def product(x, y):
    (a, b), (c, d) = x, y
    return minus(times(a, c), times(b, d)), plus(times(a, d), times(b, c))


def quotient(x, y):
    """By the larger part of the divisor, since the sum of squares may be beyond the type (Smith's way). By 0 it is infinite, by what is
    infinite 0."""
    (a, b), (c, d) = x, y
    if d is None:
        return tuple(part if part is None else part / c for part in x)
    if c is None:
        return quotient(product(x, (None, -1)), (d, None))
    if not isinstance(c, torch.Tensor):
        return product(x, _reciprocal(complex(c, d)))
    by_real = c.abs() >= d.abs()
    larger, smaller = torch.where(by_real, c, d), torch.where(by_real, d, c)
    larger = torch.where(larger == 0, larger.abs(), larger)
    ratio = torch.where(larger == 0, larger, smaller / larger)
    factor = 1 / (larger + smaller * ratio)
    re = _either(by_real, plus(a, times(b, ratio)), plus(times(a, ratio), b))
    im = _either(by_real, minus(b, times(a, ratio)), minus(times(b, ratio), a))
    return re * factor, im * factor


def _reciprocal(number):
    try:
        number = 1 / number
    except ZeroDivisionError:
        return math.inf, math.nan
    return number.real, number.imag


def _either(condition, x, y):
    return torch.where(condition, *(one if isinstance(one, torch.Tensor) else torch.full_like(other, one) for one, other in ((x, y), (y, x))))


def sign(a, b):
    length = torch.hypot(a, b)
    is_zero = length == 0
    return tuple(torch.where(is_zero, torch.zeros_like(part), part / length) for part in (a, b))


def _by(size, factor):
    """The product, and 0 with the factor 0 even if the size is beyond the type."""
    return torch.where(factor == 0, factor, size * factor)


def exp(a, b):
    size = torch.exp(a)
    return size * torch.cos(b), _by(size, torch.sin(b))


def log(a, b):
    return torch.log(torch.hypot(a, b)), torch.atan2(b, a)


def sqrt(a, b):
    """The root of the larger sum, and the other part by it."""
    half = 2 * torch.sqrt(a.abs() / 8 + torch.hypot(a / 8, b / 8))
    other = torch.where((half == 0) | (b.abs() == math.inf), b.abs(), b.abs() / (2 * half))
    on_right = a >= 0
    im = torch.where(on_right, other, half)
    return torch.where(on_right, half, other), torch.where(torch.signbit(b), -im.abs(), im.abs())


def sinh(a, b):
    return torch.sinh(a) * torch.cos(b), _by(torch.cosh(a), torch.sin(b))


def cosh(a, b):
    return torch.cosh(a) * torch.cos(b), _by(torch.sinh(a), torch.sin(b))


def sin(a, b):
    re, im = sinh(-b, a)
    return im, -re


def cos(a, b):
    return cosh(-b, a)


def tanh(a, b):
    """Without the difference of large numbers that the quotient of both would have; beyond 40 the real part is 1."""
    a = a.clamp(-40, 40)
    tangent, sine = torch.sin(b) / torch.cos(b), torch.sinh(a)
    square = 1 + tangent * tangent
    norm = 1 + square * sine * sine
    return square * torch.sqrt(1 + sine * sine) * sine / norm, tangent / norm


def tan(a, b):
    re, im = tanh(-b, a)
    return im, -re


def sigmoid(a, b):
    """By the power of e that is at most 1."""
    on_right = a >= 0
    size, angle = torch.exp(-a.abs()), torch.where(on_right, -b, b)
    re, im = size * torch.cos(angle), size * torch.sin(angle)
    return quotient((torch.where(on_right, torch.ones_like(re), re), torch.where(on_right, torch.zeros_like(im), im)), (1 + re, im))


def silu(a, b):
    return product((a, b), sigmoid(a, b))


def power(x, y):
    """By products where the exponent is a small whole number, else by the logarithm, which 0 has none of."""
    (a, b), (c, d) = x, y
    if d is None and isinstance(c, (int, float)) and float(c).is_integer() and abs(c) <= 16:
        return _whole_power(x, int(c))
    if d is None and isinstance(c, float) and c == 0.5 and b is not None:
        return sqrt(a, b)
    return _general_power(x, y)


def _whole_power(x, n):
    if n < 0:
        return quotient((1, None), _whole_power(x, -n))
    made, square = None, x
    while n:
        if n & 1:
            made = square if made is None else product(made, square)
        n >>= 1
        square = product(square, square) if n else square
    return (torch.ones_like(x[0] if x[0] is not None else x[1]), None) if made is None else made


def _general_power(x, y):
    (a, b), (c, d) = x, y
    if not any(isinstance(part, torch.Tensor) for part in x):  # a number to a tensor
        number = complex(a or 0, b or 0)
        if number == 0:
            return _power_of_zero(c, d), None
        logarithm = (math.log(abs(number)), math.atan2(number.imag, number.real) or None)
        return exp(*_both(product(logarithm, y)))
    a, b = _both(x)
    length = torch.hypot(a, b)
    is_zero = length == 0
    re, im = exp(*_both(product(log(torch.where(is_zero, torch.ones_like(a), a), b), y)))
    return torch.where(is_zero, _power_of_zero(*_both(y, a)), re), torch.where(is_zero, torch.zeros_like(im), im)


def _power_of_zero(c, d):
    """1 with the exponent 0, 0 with one whose real part is positive, else no number."""
    c, d = _both((c, d))
    other = torch.where((c == 0) & (d == 0), torch.ones_like(c), torch.full_like(c, math.nan))
    return torch.where(c > 0, torch.zeros_like(c), other)


def _both(z, like=None):
    """Both parts as tensors, numbers as such of the type of `like`."""
    a, b = (part if part is None or isinstance(part, torch.Tensor) else torch.full((), part, dtype=like.dtype, device=like.device) for part in z)
    return (torch.zeros_like(b) if a is None else a), (torch.zeros_like(a) if b is None else b)
