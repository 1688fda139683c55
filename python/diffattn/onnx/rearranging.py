"""ONNX ops that move elements, and products of axes by name, which torch-mlir lowers to views that it guesses, or to wrong numbers."""

from __future__ import annotations

import math

import numpy as np
from onnx import numpy_helper

from .builder import Builder


def constant_of_floats(builder: Builder) -> bool:
    """torch-mlir takes all forms but `value_floats`."""
    values = builder.options.get("value_floats")
    return values is not None and builder.finish("Constant", value=numpy_helper.from_array(np.array(values, np.float32)))


def gather_nd(builder: Builder) -> bool:
    """Rows of a table, which is Gather: torch-mlir's views of the indices are guessed."""
    data, indices = builder.input(0), builder.input(1)
    if builder.options.get("batch_dims") or (builder.sizes(indices) or [None])[-1] != 1:
        return False
    return builder.finish("Gather", data, builder.op("Squeeze", indices, builder.constant([-1])), axis=0)


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


REARRANGING = {"Constant": constant_of_floats, "Einsum": einsum, "GatherND": gather_nd}
