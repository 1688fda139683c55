"""Reductions of ONNX that torch-mlir does not lower, or lowers to what loses NaN or the digits of f64."""

from __future__ import annotations

import numpy as np
import onnx

from .builder import Builder

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)
_NARROW = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def extreme(builder: Builder) -> bool:
    """ArgMax and ArgMin: of floats, the first NaN comes before all numbers, as in NumPy."""
    x, options = builder.input(0), builder.options
    if builder.type(x) not in _FLOATS and not options.get("select_last_index"):
        return False
    place = _place(builder, builder.node.op_type, x, options.get("axis", 0), options.get("keepdims", 1), options.get("select_last_index", 0))
    return builder.finish("Identity", place)


def hardmax(builder: Builder) -> bool:
    x, axis, rank = builder.input(0), builder.options.get("axis", -1), len(builder.sizes(builder.input(0)) or ())
    if not -rank <= axis < rank:
        return False
    axis %= rank
    places = builder.places(x, axis)
    if axis < rank - 1:
        places = builder.op("Unsqueeze", places, builder.constant(list(range(1, rank - axis))))
    return builder.finish_as(builder.op("Equal", _place(builder, "ArgMax", x, axis, 1, 0), places), x)


def _place(builder: Builder, kind: str, x: str, axis: int, keepdims: int, is_last: int) -> str:
    made = _counted(builder, kind, x, axis, keepdims, is_last)
    if builder.type(x) not in _FLOATS:
        return made
    most = builder.op("ReduceMax", x, builder.constant([axis]), keepdims=keepdims)  # NaN, if there is any
    of_nan = _counted(builder, "ArgMax", builder.op("Cast", builder.op("IsNaN", x), to=onnx.TensorProto.INT32), axis, keepdims, is_last)
    return builder.op("Where", builder.op("IsNaN", most), of_nan, made)


def _counted(builder: Builder, kind: str, x: str, axis: int, keepdims: int, is_last: int) -> str:
    """The last of equal ones is the first one from the end. torch-mlir takes symbolic sizes for -1 there."""
    if not is_last:
        return builder.op(kind, x, axis=axis, keepdims=keepdims)
    turned = builder.op("Slice", x, builder.constant([-1]), builder.constant([np.iinfo(np.int64).min]), builder.constant([axis]), builder.constant([-1]))
    first = builder.op(kind, turned, axis=axis, keepdims=keepdims)
    return builder.op("Sub", builder.op("Sub", builder.size(x, axis), builder.constant([1])), first)


def _has_axes(builder: Builder) -> bool:
    """Whether none given would mean all."""
    axes = builder.array(builder.input(1))
    return not builder.options.get("noop_with_empty_axes") or axes is not None and axes.size > 0


def norm(builder: Builder) -> bool:
    """ReduceL2 of f64, which torch-mlir computes in f32."""
    x = builder.input(0)
    if builder.type(x) != onnx.TensorProto.DOUBLE or not _has_axes(builder):
        return False
    return builder.finish("Sqrt", builder.op("ReduceSumSquare", *builder.node.input, **builder.options))


def log_sum_exp(builder: Builder) -> bool:
    """Of f64 too; the largest number goes through the exponential function as 0."""
    x = builder.input(0)
    if builder.type(x) != onnx.TensorProto.DOUBLE or not _has_axes(builder):
        return False
    axes, keepdims = builder.node.input[1:], builder.options.get("keepdims", 1)
    most = builder.op("ReduceMax", x, *axes, keepdims=1)
    shift = builder.op("Where", builder.op("IsInf", most), builder.number(0, x), most)
    total = builder.op("ReduceSum", builder.op("Exp", builder.op("Sub", x, shift)), *axes, keepdims=keepdims)
    if not keepdims:
        shift = builder.op("ReduceMax", shift, *axes, keepdims=0)
    return builder.finish("Add", builder.op("Log", total), shift)


def product(builder: Builder) -> bool:
    """Of axes of known sizes: halves are multiplied until one is left."""
    x, sizes = builder.input(0), builder.sizes(builder.input(0))
    if sizes is None or not _has_axes(builder):
        return False
    axes = builder.array(builder.input(1))
    axes = range(len(sizes)) if axes is None or not axes.size else [int(axis) % len(sizes) for axis in axes.reshape(-1)]
    if builder.input(1) and builder.array(builder.input(1)) is None or any(not sizes[axis] for axis in axes):
        return False
    made = builder.op("Cast", x, to=onnx.TensorProto.FLOAT) if builder.type(x) in _NARROW else x
    for axis in axes:
        made = _product(builder, made, axis, sizes[axis])
    made = builder.cast(made, x)
    if builder.options.get("keepdims", 1):
        return builder.finish("Identity", made)
    return builder.finish("Squeeze", made, builder.constant(list(axes)))


def _product(builder: Builder, x: str, axis: int, size: int) -> str:
    def part(begin: int, end: int) -> str:
        return builder.op("Slice", x, *(builder.constant([number]) for number in (begin, end, axis)))

    while size > 1:
        half = size // 2
        made = builder.op("Mul", part(0, half), part(half, 2 * half))
        x = builder.op("Concat", made, part(2 * half, size), axis=axis) if size % 2 else made
        size = half + size % 2
    return x


REDUCTIONS = {"ArgMax": extreme, "ArgMin": extreme, "Hardmax": hardmax, "ReduceL2": norm, "ReduceLogSumExp": log_sum_exp, "ReduceProd": product}
