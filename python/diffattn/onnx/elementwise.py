"""Element-wise ops of ONNX, and a few beside them, that torch-mlir computes otherwise: it loses NaN in the larger of two numbers, its place,
between limits and in signs, takes NaN for equal to itself and uint8 for signed, has the constants of GELU's tanh with four digits, negates
integers in f32, and forgets `Gemm`'s alpha without C."""

from __future__ import annotations

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


def _extreme(builder: Builder) -> bool:
    """The place of the first NaN, which comes before all numbers, as in NumPy."""
    x, options = builder.input(0), builder.options
    if not _is_float(builder):
        return False
    along = {"axis": options.get("axis", 0), "keepdims": options.get("keepdims", 1)}
    most = builder.op("ReduceMax", x, builder.constant([along["axis"]]), keepdims=along["keepdims"])  # NaN, if there is any
    of_nan = builder.op("ArgMax", builder.op("Cast", builder.op("IsNaN", x), to=onnx.TensorProto.INT32), **along)
    return builder.finish("Where", builder.op("IsNaN", most), of_nan, builder.op(builder.node.op_type, x, **along))


def _neg(builder: Builder) -> bool:
    """torch-mlir takes integers through f32."""
    if _is_float(builder):
        return False
    x = builder.input(0)
    return builder.finish("Sub", builder.number(0, x), x)


ELEMENTWISE = {"Abs": _of_uint8, "ArgMax": _extreme, "ArgMin": _extreme, "Clip": _keeping_nan, "Div": _of_uint8, "Equal": _equal,
               "Max": _of_several, "Min": _of_several, "Mod": _of_uint8, "Neg": _neg, "Sign": _keeping_nan}
