"""Element-wise ops of ONNX that torch-mlir computes otherwise: it loses NaN in the larger of two numbers, between limits and in signs, takes
a value for equal to itself, has the constants of GELU's tanh with four digits, and knows no infinity in `Mod`."""

from __future__ import annotations

import math

import numpy as np
import onnx

from .builder import Builder

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)


def _is_float(builder: Builder) -> bool:
    return builder.type(builder.input(0)) in _FLOATS


def _keeping_nan(builder: Builder) -> bool:
    if not _is_float(builder):
        return False
    x = builder.input(0)
    return builder.finish("Where", builder.op("IsNaN", x), x, builder.op(builder.node.op_type, *builder.node.input, **builder.options))


def _of_several(builder: Builder) -> bool:
    """Of two, the second keeps its NaN."""
    if not _is_float(builder):
        return False
    made, *others = builder.node.input
    for other in others:
        made = builder.op("Where", builder.op("IsNaN", made), made, builder.op(builder.node.op_type, made, other))
    return builder.finish("Identity", made)


def _equal(builder: Builder) -> bool:
    """With a constant as it is: masks are compared with numbers, and raising reads these."""
    x, y = builder.input(0), builder.input(1)
    if not _is_float(builder) or builder.is_constant(x) or builder.is_constant(y):
        return False
    return builder.finish("And", builder.op("Equal", x, y), builder.op("Not", builder.op("IsNaN", x)))


def _gelu(builder: Builder) -> bool:
    if builder.options.get("approximate") != b"tanh":
        return False
    x = builder.input(0)
    wide = x if builder.type(x) == onnx.TensorProto.DOUBLE else builder.op("Cast", x, to=onnx.TensorProto.FLOAT)

    def number(value: float) -> str:
        return builder.op("CastLike", builder.constant(value, np.float64), wide)

    cube = builder.op("Mul", builder.op("Mul", wide, wide), wide)
    inner = builder.op("Add", wide, builder.op("Mul", cube, number(0.044715)))
    tanh = builder.op("Tanh", builder.op("Mul", inner, number(math.sqrt(2 / math.pi))))
    half = builder.op("Mul", wide, number(0.5))
    return builder.finish("CastLike", builder.op("Mul", half, builder.op("Add", tanh, number(1))), x)


def _mod(builder: Builder) -> bool:
    if not _is_float(builder):
        return False
    x, y = builder.input(0), builder.input(1)
    stays = builder.op("And", builder.op("IsInf", y), builder.op("Not", builder.op("IsInf", x)))
    return builder.finish("Where", stays, x, builder.op("Mod", x, y, **builder.options))


ELEMENTWISE = {"Clip": _keeping_nan, "Equal": _equal, "Gelu": _gelu, "Max": _of_several, "Min": _of_several, "Mod": _mod, "Sign": _keeping_nan}
