"""Element-wise ops of ONNX that torch-mlir computes otherwise: it loses NaN in the larger of two numbers, between limits and in signs, takes
a value for equal to itself and uint8 for signed, has the constants of GELU's tanh with four digits and those of SELU with six, negates integers
in f32, raises them to powers in f64, forgets `Gemm`'s alpha without C, and rounds quotients in `Mod`."""

from __future__ import annotations

import math

import onnx

from .builder import Builder

_INTEGERS = (onnx.TensorProto.INT8, onnx.TensorProto.INT16, onnx.TensorProto.INT32, onnx.TensorProto.INT64)
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
        return builder.number(value, wide)

    cube = builder.op("Mul", builder.op("Mul", wide, wide), wide)
    inner = builder.op("Add", wide, builder.op("Mul", cube, number(0.044715)))
    tanh = builder.op("Tanh", builder.op("Mul", inner, number(math.sqrt(2 / math.pi))))
    half = builder.op("Mul", wide, number(0.5))
    return builder.finish_as(builder.op("Mul", half, builder.op("Add", tanh, number(1))), x)


def _mod(builder: Builder) -> bool:
    """torch-mlir rounds the quotient of floats where the sign is that of the dividend, and not where it is that of the divisor: the
    rest of numbers without signs is exact."""
    if not _is_float(builder):
        return _of_uint8(builder)
    if not builder.options.get("fmod"):
        return False
    x, y = builder.input(0), builder.input(1)
    rest = builder.op("Mod", builder.op("Abs", x), builder.op("Abs", y))
    is_negative = builder.op("Less", builder.op("Div", builder.number(1, x), x), builder.number(0, x))  # also of -0
    return builder.finish("Where", is_negative, builder.op("Neg", rest), rest)


def _selu(builder: Builder) -> bool:
    """torch-mlir has its constants with six digits."""
    if {"alpha", "gamma"} <= set(builder.options):
        return False
    return builder.finish("Selu", builder.input(0), **{"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875, **builder.options})


def _pow(builder: Builder) -> bool:
    """Of integers, by squares: torch-mlir goes through f64, which does not hold every int64."""
    x, y = builder.input(0), builder.input(1)
    if builder.type(x) not in _INTEGERS or builder.type(y) not in _INTEGERS:
        return False
    exponents, one = builder.array(y), builder.number(1, x)
    bits = int(abs(exponents).max()).bit_length() if exponents is not None and exponents.size else 7
    wide = builder.op("Cast", y, to=onnx.TensorProto.INT64)
    # A power of 66 and more is that of 64 or 65: of an even number 0, as of 0, 1 and -1.
    left = builder.op("Abs", wide)
    if exponents is None:
        two, most = builder.constant(2), builder.constant(64)
        left = builder.op("Where", builder.op("Less", left, most), left, builder.op("Add", most, builder.op("Mod", left, two)))
    made, square = one, x
    for bit in range(max(bits, 1)):
        quotient = builder.op("Div", left, builder.constant(1 << bit))
        is_odd = builder.op("Equal", builder.op("Mod", quotient, builder.constant(2)), builder.constant(1))
        made = builder.op("Mul", made, builder.op("Where", is_odd, square, one))
        square = builder.op("Mul", square, square)
    if exponents is None or (exponents < 0).any():  # only 1 and -1 have an inverse
        is_inverse = builder.op("And", builder.op("Less", wide, builder.constant(0)), builder.op("Not", builder.op("Equal", builder.op("Mul", x, x), one)))
        made = builder.op("Where", is_inverse, builder.number(0, x), made)
    return builder.finish("Identity", made)


def _neg(builder: Builder) -> bool:
    """torch-mlir takes integers through f32."""
    if _is_float(builder):
        return False
    x = builder.input(0)
    return builder.finish("Sub", builder.number(0, x), x)


def _gemm(builder: Builder) -> bool:
    """Without C torch-mlir forgets alpha."""
    if builder.input(2) or builder.options.get("alpha", 1.0) == 1.0:
        return False
    sides = [builder.op("Transpose", builder.input(number), perm=[1, 0]) if builder.options.get(name) else builder.input(number)
             for number, name in enumerate(("transA", "transB"))]
    product = builder.op("MatMul", *sides)
    return builder.finish("Mul", product, builder.number(builder.options["alpha"], product))


ELEMENTWISE = {"Abs": _of_uint8, "Clip": _keeping_nan, "Div": _of_uint8, "Equal": _equal, "Gelu": _gelu, "Gemm": _gemm,
               "Max": _of_several, "Min": _of_several, "Mod": _mod, "Neg": _neg, "Pow": _pow, "Selu": _selu,
               "Sign": _keeping_nan}
