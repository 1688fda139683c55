"""Quantized ops of ONNX as torch-mlir lowers them: it refuses what has no zero point, and takes it, and scales, for a number of the whole
tensor."""

from __future__ import annotations

import numpy as np
import onnx

from .builder import Builder, Refused

_KIND = onnx.TensorProto


def _along(builder: Builder, x: str, name: str) -> str:
    """A scale or zero point of `x`, which has one number, or one for each place of `axis`."""
    if builder.is_number(name):
        return builder.op("Reshape", name, builder.constant(np.zeros(0, np.int64))) if builder.sizes(name) else name
    rank, axis = len(builder.sizes(x) or ()), builder.options.get("axis", 1)
    if not -rank <= axis < rank or builder.options.get("block_size"):
        raise Refused(f"expected {builder.node.op_type} along an axis, not by blocks, but got axis {axis} of {builder.told(x)} and scales of {builder.told(name)}")
    behind = list(range(1, rank - axis % rank))
    return builder.op("Unsqueeze", name, builder.constant(behind)) if behind else name


def _dequantize(builder: Builder) -> bool:
    """Of one scale and zero point it is as torch-mlir takes it."""
    x, scale, zero = (builder.input(number) for number in range(3))
    if zero and builder.is_number(scale) and builder.is_number(zero):
        return False
    if zero:
        x = builder.op("Sub", builder.op("Cast", x, to=_KIND.INT32), builder.op("Cast", _along(builder, builder.input(0), zero), to=_KIND.INT32))
    return builder.finish("Mul", builder.cast(x, scale), _along(builder, builder.input(0), scale))


QUANTIZED = {"DequantizeLinear": _dequantize}
