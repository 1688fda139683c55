"""Quantized ops of ONNX as torch-mlir lowers them: it refuses what has no zero point, and takes it, and scales, for a number of the whole
tensor."""

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
    """A scale or zero point of `x`, which has one number, or one for each place of `axis`."""
    if _is_number(builder, name):
        return builder.op("Reshape", name, builder.constant(np.zeros(0, np.int64))) if builder.sizes(name) else name
    rank, axis = len(builder.sizes(x) or ()), builder.options.get("axis", 1)
    if not -rank <= axis < rank or builder.options.get("block_size"):
        raise Refused(f"expected {builder.node.op_type} along an axis, not by blocks, but got axis {axis} of {builder.told(x)} and scales of {builder.told(name)}")
    behind = list(range(1, rank - axis % rank))
    return builder.op("Unsqueeze", name, builder.constant(behind)) if behind else name


def _dequantize(builder: Builder) -> bool:
    """Of one scale and zero point it is as torch-mlir takes it."""
    x, scale, zero = (builder.input(number) for number in range(3))
    if zero and _is_number(builder, scale) and _is_number(builder, zero):
        return False
    if zero:
        x = builder.op("Sub", builder.op("Cast", x, to=_KIND.INT32), builder.op("Cast", _along(builder, builder.input(0), zero), to=_KIND.INT32))
    return builder.finish("Mul", builder.cast(x, scale), _along(builder, builder.input(0), scale))


def _quantize(builder: Builder) -> bool:
    x, scale, zero = (builder.input(number) for number in range(3))
    kind = builder.type(zero) if zero else builder.options.get("output_dtype") or _KIND.UINT8
    if kind not in (_KIND.INT8, _KIND.UINT8):
        raise Refused(f"expected QuantizeLinear to elements of int8 or uint8, but got {_KIND.DataType.Name(kind).lower()}")
    if not _is_number(builder, scale) or not _is_number(builder, zero):
        raise Refused(f"expected QuantizeLinear by one scale, but got scales of {builder.sizes(scale)}")
    return not zero and builder.finish("QuantizeLinear", x, scale, builder.constant(0, helper.tensor_dtype_to_np_dtype(kind)))


def _matmul(builder: Builder) -> bool:
    zeros = [builder.input(number) or builder.constant(0, helper.tensor_dtype_to_np_dtype(builder.type(builder.input(number - 2)))) for number in (2, 3)]
    if not _is_number(builder, builder.input(2)):
        raise Refused(f"expected MatMulInteger with one zero point of its left side, but got {builder.sizes(builder.input(2))}")
    return bool(builder.nodes) and builder.finish("MatMulInteger", *builder.node.input[:2], *zeros)


QUANTIZED = {"DequantizeLinear": _dequantize, "MatMulInteger": _matmul, "QuantizeLinear": _quantize}
