"""Ops of ONNX in which torch-mlir loses NaN: in the larger of two numbers, its place, between limits, in signs, and as equal to itself; and
integers, which it negates in f32."""

from __future__ import annotations

import onnx

from .builder import Builder

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)


def _is_float(builder: Builder) -> bool:
    return builder.type(builder.input(0)) in _FLOATS


def _keeping_nan(builder: Builder) -> bool:
    x = builder.input(0)
    return builder.finish("Where", builder.op("IsNaN", x), x, builder.op(builder.node.op_type, *builder.node.input, **builder.options))


def _of_several(builder: Builder) -> bool:
    """Takes inputs two by two. The op of two keeps a NaN of its second input only, so a NaN of the first is kept here."""
    made, *others = builder.node.input
    for other in others:
        made = builder.op("Where", builder.op("IsNaN", made), made, builder.op(builder.node.op_type, made, other))
    return builder.finish("Identity", made)


def _equal(builder: Builder) -> bool:
    """Compares with a constant as it is: masks are compared with numbers, and raising reads these."""
    x, y = builder.input(0), builder.input(1)
    if builder.is_constant(x) or builder.is_constant(y):
        return False
    return builder.finish("And", builder.op("Equal", x, y), builder.op("Not", builder.op("IsNaN", x)))


def _extreme(builder: Builder) -> bool:
    """The place of the first NaN, which comes before all numbers, as in NumPy."""
    x, along = builder.input(0), {name: builder.options.get(name, default) for name, default in (("axis", 0), ("keepdims", 1))}
    most = builder.op("ReduceMax", x, builder.constant([along["axis"]]), keepdims=along["keepdims"])  # NaN, if there is any
    of_nan = builder.op("ArgMax", builder.op("Cast", builder.op("IsNaN", x), to=onnx.TensorProto.INT32), **along)
    return builder.finish("Where", builder.op("IsNaN", most), of_nan, builder.op(builder.node.op_type, x, **along))


#: Decompositions by op, of operands that are floats.
_NAN = {"ArgMax": _extreme, "ArgMin": _extreme, "Clip": _keeping_nan, "Equal": _equal, "Max": _of_several, "Min": _of_several, "Sign": _keeping_nan}


def of_elements(builder: Builder) -> bool:
    """torch-mlir takes integers through f32 where it negates them."""
    kind, x = builder.node.op_type, builder.input(0)
    if _is_float(builder):
        return kind in _NAN and _NAN[kind](builder)
    return kind == "Neg" and builder.finish("Sub", builder.number(0, x), x)


ELEMENTWISE = dict.fromkeys([*_NAN, "Neg"], of_elements)
