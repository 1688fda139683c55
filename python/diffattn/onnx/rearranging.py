"""ONNX ops that move elements, and products of axes by name, which torch-mlir lowers to views that it guesses, or to wrong numbers."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import numpy_helper

from .builder import Builder, Refused


def constant_of_floats(builder: Builder) -> bool:
    """torch-mlir takes all forms but `value_floats`."""
    values = builder.options.get("value_floats")
    return values is not None and builder.finish("Constant", value=numpy_helper.from_array(np.array(values, np.float32)))


def depth_to_space(builder: Builder) -> bool:
    """Mode CRD, whose channels are [channel, row of the block, column], to [batch, channel, row, column]. torch-mlir takes them for
    [row, column, channel] where these sizes differ."""
    x, block = builder.input(0), builder.options["blocksize"]
    sizes = builder.sizes(x) or ()
    if builder.options.get("mode", b"DCR") != b"CRD" or len(sizes) != 4 or not sizes[1] or block < 1:
        return False
    channels = sizes[1] // block**2
    height, width = builder.size(x, 2), builder.size(x, 3)
    blocks = builder.op("Concat", builder.constant([0, channels, block, block]), height, width, axis=0)
    moved = builder.op("Transpose", builder.op("Reshape", x, blocks), perm=[0, 1, 4, 2, 5, 3])
    wide = [builder.op("Mul", size, builder.constant([block])) for size in (height, width)]
    return builder.finish("Reshape", moved, builder.op("Concat", builder.constant([0, channels]), *wide, axis=0))


def gather_nd(builder: Builder) -> bool:
    """Rows of a table, which is Gather: torch-mlir's views of the indices are guessed."""
    data, indices = builder.input(0), builder.input(1)
    if builder.options.get("batch_dims") or (builder.sizes(indices) or [None])[-1] != 1:
        return False
    return builder.finish("Gather", data, builder.op("Squeeze", indices, builder.constant([-1])), axis=0)


def space_to_depth(builder: Builder) -> bool:
    if builder.options.get("mode", b"DCR") != b"DCR":
        raise Refused(f"expected SpaceToDepth of mode DCR, but got {builder.options['mode'].decode()}")
    return False


def slice_backwards(builder: Builder) -> bool:
    """From the last element on, where it begins behind that: torch-mlir begins at the one behind."""
    starts, axes, steps = (builder.array(builder.input(number)) for number in (1, 3, 4))
    sizes = builder.sizes(builder.input(0))
    if starts is None or steps is None or sizes is None or builder.input(3) and axes is None or not (steps < 0).any():
        return False
    axes, made = range(len(starts)) if axes is None else axes.tolist(), []
    for start, axis, step in zip(starts.tolist(), axes, steps.tolist()):
        size = sizes[axis]
        is_behind = step < 0 and (start >= size if size is not None else start >= np.iinfo(np.int32).max)
        made.append(-1 if is_behind and size != 0 else start)
    return builder.finish("Slice", builder.input(0), builder.constant(made, starts.dtype), *builder.node.input[2:])


def pad(builder: Builder) -> bool:
    """Pads below 0 cut off, which torch-mlir does along axes of known sizes alone; its passes do not end for those that wrap around."""
    pads, axes, sizes = builder.array(builder.input(1)), builder.array(builder.input(3)), builder.sizes(builder.input(0))
    if pads is not None and (pads < 0).any() and sizes is not None and (axes is not None or not builder.input(3)):
        axes = list(range(len(sizes))) if axes is None else axes.tolist()
        begins, ends = pads.reshape(2, -1).tolist()
        cut = builder.op("Slice", builder.input(0), builder.constant([max(-one, 0) for one in begins]),
                         builder.constant([min(one, 0) or np.iinfo(np.int64).max for one in ends]), builder.constant(axes))
        return builder.finish("Pad", cut, builder.constant([max(one, 0) for one in pads.tolist()]), *builder.node.input[2:], **builder.options)
    if builder.options.get("mode") == b"wrap":
        raise Refused("expected Pad of mode constant, reflect or edge, but got wrap")
    return False


def einsum(builder: Builder) -> bool:
    """Of two operands, one of them of known sizes as a weight is, and the other not: a product of matrices [in both and the result,
    in the first alone, summed] and [in both and the result, summed, in the second alone]."""
    equation = builder.options["equation"].decode().replace(" ", "")
    labels, arrow, made = equation.partition("->")
    labels = labels.split(",")
    shapes = [builder.sizes(name) for name in builder.node.input]
    if not arrow or "." in equation or len(shapes) != 2 or any(shape is None or len(shape) != len(names) for shape, names in zip(shapes, labels)):
        return False
    if sum(None in shape for shape in shapes) != 1 or any(len(set(names)) < len(names) for names in [*labels, made]):
        return False
    a, b = labels
    batch, summed = [n for n in a if n in b and n in made], [n for n in a if n in b and n not in made]
    rows, columns = [n for n in a if n not in b], [n for n in b if n not in a]
    if any(n not in made for n in [*rows, *columns]):
        return False
    axes = {name: (builder.input(number), axis) for number, names in enumerate(labels) for axis, name in enumerate(names)}
    known = {name: size for shape, names in zip(shapes, labels) for size, name in zip(shape, names) if size is not None}

    def size_of(names: list[str]) -> str:
        if all(name in known for name in names):
            return builder.constant([math.prod(known[name] for name in names)])
        product = builder.size(*axes[names[0]])
        for name in names[1:]:
            product = builder.op("Mul", product, builder.size(*axes[name]))
        return product

    def matrix(number: int, *groups: list[str]) -> str:
        order = [labels[number].index(name) for group in groups for name in group]
        moved = builder.op("Transpose", builder.input(number), perm=order)
        sizes = [size_of([name]) for name in groups[0]] + [size_of(group) for group in groups[1:]]
        return builder.op("Reshape", moved, builder.op("Concat", *sizes, axis=0))

    product = builder.op("MatMul", matrix(0, batch, rows, summed), matrix(1, batch, summed, columns))
    order = [*batch, *rows, *columns]
    if not order:
        return builder.finish("Squeeze", product)
    apart = builder.op("Reshape", product, builder.op("Concat", *(size_of([name]) for name in order), axis=0))
    return builder.finish("Transpose", apart, perm=[order.index(name) for name in made])


REARRANGING = {"Constant": constant_of_floats, "DepthToSpace": depth_to_space,
               "Einsum": einsum, "GatherND": gather_nd, "Pad": pad, "Slice": slice_backwards, "SpaceToDepth": space_to_depth}
