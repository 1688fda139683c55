"""Quantized ops of ONNX that torch-mlir does not lower, or with other numbers: scales of each channel, of blocks, and products of more than
two axes. Sums are exact, in i32 or f64, and rounded as f32 to even."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from .builder import Builder, Refused

_KIND = onnx.TensorProto


def _is_number(builder: Builder, name: str) -> bool:
    """Of one element, or left out."""
    sizes = builder.sizes(name)
    return not name or sizes is not None and all(size == 1 for size in sizes)


def _along(builder: Builder, x: str, name: str) -> str:
    """A scale or zero point of `x`, which has one number, one for each place of `axis`, or one for each block along it."""
    if _is_number(builder, name):
        return builder.op("Reshape", name, builder.constant(np.zeros(0, np.int64))) if builder.sizes(name) else name
    sizes, parts, options = builder.sizes(x), builder.sizes(name), builder.options
    axis, block = options.get("axis", 1), options.get("block_size", 0)
    if sizes is None or parts is None or not -len(sizes) <= axis < len(sizes):
        raise Refused(f"expected {builder.node.op_type} of a tensor of known rank, along one of its axes, but got axis {axis}")
    axis %= len(sizes)
    if not block:
        behind = list(range(1, len(sizes) - axis))
        return builder.op("Unsqueeze", name, builder.constant(behind)) if behind else name
    if None in sizes or len(parts) != len(sizes) or parts[axis] != -(-sizes[axis] // block):
        raise Refused(f"expected {builder.node.op_type} by blocks of {block} of a tensor of known sizes, but got {sizes} and scales of {parts}")
    wide = builder.op("Expand", builder.op("Unsqueeze", name, builder.constant([axis + 1])), builder.constant([*parts[:axis + 1], block, *parts[axis + 1:]]))
    flat = builder.op("Reshape", wide, builder.constant([*parts[:axis], parts[axis] * block, *parts[axis + 1:]]))
    return builder.op("Slice", flat, builder.constant([0]), builder.constant([sizes[axis]]), builder.constant([axis]))


def _is_lowered(builder: Builder) -> bool:
    """One scale and one zero point, as torch-mlir takes them."""
    return builder.input(2) != "" and all(_is_number(builder, builder.input(number)) for number in (1, 2)) and not builder.options.get("block_size")


def dequantize(builder: Builder) -> bool:
    x, scale, zero = (builder.input(number) for number in range(3))
    if _is_lowered(builder):
        return False
    made = _centred(builder, x, _along(builder, x, zero), _KIND.INT32) if zero else x
    return builder.finish("Mul", builder.cast(made, scale), _along(builder, x, scale))


def quantize(builder: Builder) -> bool:
    x, scale, zero = (builder.input(number) for number in range(3))
    if _is_lowered(builder):
        return False
    kind = builder.type(zero) if zero else builder.options.get("output_dtype") or _KIND.UINT8
    wide = builder.op("Cast", x, to=_KIND.FLOAT)
    quotient = builder.op("Div", wide, builder.op("Cast", _along(builder, x, scale), to=_KIND.FLOAT))
    return _rounded(builder, quotient, _along(builder, x, zero) if zero else "", kind)


def _rounded(builder: Builder, x: str, zero: str, kind: int) -> bool:
    """The nearest number that the type has, beyond a zero point."""
    if kind not in (_KIND.INT8, _KIND.UINT8):
        raise Refused(f"expected {builder.node.op_type} to elements of int8 or uint8, but got {_KIND.DataType.Name(kind).lower()}")
    limits = np.iinfo(helper.tensor_dtype_to_np_dtype(kind))
    made = builder.op("Round", x)
    if zero:
        made = builder.op("Add", made, builder.op("Cast", zero, to=_KIND.FLOAT))
    return builder.finish("Cast", builder.op("Clip", made, builder.number(limits.min, made), builder.number(limits.max, made)), to=kind)


def _centred(builder: Builder, x: str, zero: str, to: int) -> str:
    """Without its zero point, as integers or numbers that hold them."""
    wide = builder.op("Cast", x, to=to)
    return builder.op("Sub", wide, builder.op("Cast", zero, to=to)) if zero else wide


def _column(builder: Builder, name: str, is_left: bool) -> str:
    """A number of each row of a left side, beside matrices."""
    sizes = builder.sizes(name)
    return builder.op("Unsqueeze", name, builder.constant([1])) if name and is_left and sizes is not None and len(sizes) == 1 and sizes[0] != 1 else name


def matmul_integer(builder: Builder) -> bool:
    a, b, a_zero, b_zero = (builder.input(number) for number in range(4))
    sides = [_centred(builder, a, _column(builder, a_zero, True), _KIND.INT32), _centred(builder, b, b_zero, _KIND.INT32)]
    return builder.finish("MatMul", *sides)


def qlinear_matmul(builder: Builder) -> bool:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = (builder.input(number) for number in range(8))
    product = builder.op("MatMul", _centred(builder, a, _column(builder, a_zero, True), _KIND.INT32), _centred(builder, b, b_zero, _KIND.INT32))
    scales = [builder.op("Cast", one, to=_KIND.FLOAT) for one in (_column(builder, a_scale, True), b_scale, scale)]
    factor = builder.op("Div", builder.op("Mul", *scales[:2]), scales[2])
    return _rounded(builder, builder.op("Mul", builder.op("Cast", product, to=_KIND.FLOAT), factor), zero, builder.type(zero))


def _per_channel(builder: Builder, name: str, behind: int) -> str:
    return name if not name or _is_number(builder, name) else builder.op("Unsqueeze", name, builder.constant(list(range(1, behind + 1))))


def _convolved(builder: Builder, x: str, x_zero: str, w: str, w_zero: str) -> str:
    rank = len(builder.sizes(w) or ())
    if rank < 3:
        raise Refused(f"expected {builder.node.op_type} with a weight of known rank, but got one of {rank or 'unknown'} axes")
    if builder.options.get("auto_pad", b"NOTSET").startswith(b"SAME"):
        raise Refused(f"expected {builder.node.op_type} with pads, but got auto_pad {builder.options['auto_pad'].decode()}")
    options = {name: value for name, value in builder.options.items() if name != "auto_pad"}
    sides = _centred(builder, x, x_zero, _KIND.DOUBLE), _centred(builder, w, _per_channel(builder, w_zero, rank - 1), _KIND.DOUBLE)
    return builder.op("Conv", *sides, **options)


def conv_integer(builder: Builder) -> bool:
    return builder.finish("Cast", _convolved(builder, builder.input(0), builder.input(2), builder.input(1), builder.input(3)), to=_KIND.INT32)


def qlinear_conv(builder: Builder) -> bool:
    x, x_scale, x_zero, w, w_scale, w_zero, scale, zero, bias = (builder.input(number) for number in range(9))
    made, behind = _convolved(builder, x, x_zero, w, w_zero), len(builder.sizes(w)) - 2
    if bias:
        made = builder.op("Add", made, builder.op("Cast", _per_channel(builder, bias, behind), to=_KIND.DOUBLE))
    factor = builder.op("Div", builder.op("Mul", x_scale, _per_channel(builder, w_scale, behind)), scale)
    return _rounded(builder, builder.op("Mul", builder.op("Cast", made, to=_KIND.FLOAT), factor), zero, builder.type(zero))


QUANTIZED = {"ConvInteger": conv_integer, "DequantizeLinear": dequantize, "MatMulInteger": matmul_integer, "QLinearConv": qlinear_conv,
             "QLinearMatMul": qlinear_matmul, "QuantizeLinear": quantize}
