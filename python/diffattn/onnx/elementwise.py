"""Element-wise ops of ONNX that torch-mlir computes otherwise: it loses NaN in the larger of two numbers, between limits and in signs, takes
a value for equal to itself and uint8 for signed, has the constants of GELU's tanh with four digits, negates integers in f32, forgets `Gemm`'s
alpha without C, and knows no infinity in `Mod`."""

from __future__ import annotations

import math

import numpy as np
import onnx

from .builder import Builder

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)


def _is_float(builder: Builder) -> bool:
    return builder.type(builder.input(0)) in _FLOATS


def _of_uint8(builder: Builder) -> bool:
    """torch-mlir takes uint8 for signed."""
    if builder.type(builder.input(0)) != onnx.TensorProto.UINT8:
        return False
    wide = [builder.op("Cast", one, to=onnx.TensorProto.INT32) if one else "" for one in builder.node.input]
    return builder.finish("Cast", builder.op(builder.node.op_type, *wide, **builder.options), to=onnx.TensorProto.UINT8)


def _keeping_nan(builder: Builder) -> bool:
    if not _is_float(builder):
        return _of_uint8(builder)
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
        return _of_uint8(builder)
    x, y = builder.input(0), builder.input(1)
    stays = builder.op("And", builder.op("IsInf", y), builder.op("Not", builder.op("IsInf", x)))
    return builder.finish("Where", stays, x, builder.op("Mod", x, y, **builder.options))


def _neg(builder: Builder) -> bool:
    """torch-mlir takes integers through f32."""
    if _is_float(builder):
        return False
    x = builder.input(0)  # x - x is 0 of its type in opsets that have no CastLike
    return builder.finish("Sub", builder.op("Sub", x, x), x)


def _gemm(builder: Builder) -> bool:
    """Without C torch-mlir forgets alpha."""
    if builder.input(2) or builder.options.get("alpha", 1.0) == 1.0:
        return False
    sides = [builder.op("Transpose", builder.input(number), perm=[1, 0]) if builder.options.get(name) else builder.input(number)
             for number, name in enumerate(("transA", "transB"))]
    product = builder.op("MatMul", *sides)
    return builder.finish("Mul", product, builder.op("CastLike", builder.constant(builder.options["alpha"], np.float32), product))


ELEMENTWISE = {"Abs": _of_uint8, "Clip": _keeping_nan, "Div": _of_uint8, "Equal": _equal, "Gelu": _gelu, "Gemm": _gemm, "Max": _of_several, "Min": _of_several, "Mod": _mod, "Neg": _neg, "Sign": _keeping_nan}
