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
    """Handles an operand and a weight, whose sizes are known: [in both and the result, in the first alone, summed] times [in both and the result,
    summed, in the weight alone], where what is summed, and what the weight has alone, is one axis."""
    equation = builder.options["equation"].decode().replace(" ", "")
    labels, arrow, made = equation.partition("->")
    operands = [(names, name, builder.sizes(name)) for names, name in zip(labels.split(","), builder.node.input)]
    operands.sort(key=lambda operand: None not in (operand[2] or [None]))  # the weight last
    if not arrow or "." in equation or len(operands) != 2 or any(shape is None or len(shape) != len(names) for names, _, shape in operands):
        return False
    (a, x, given), (b, weight, known) = operands
    if None not in given or None in known or any(len(set(names)) < len(names) for names in (a, b, made)):
        return False
    batch, summed = [n for n in a if n in b and n in made], [n for n in a if n in b and n not in made]
    rows, columns = [n for n in a if n not in b], [n for n in b if n not in a]
    if any(n not in made for n in [*rows, *columns]):
        return False
    sizes = dict(zip(b, known))
    terms, width = (math.prod(sizes[n] for n in names) for names in (summed, columns))
    before = [*(sizes[n] for n in batch), *[0] * len(rows)]
    left = builder.op("Transpose", x, perm=[a.index(n) for n in [*batch, *rows, *summed]])
    left = builder.op("Reshape", left, builder.constant([*before, *([] if rows else [1]), terms]))
    right = builder.op("Transpose", weight, perm=[b.index(n) for n in [*batch, *summed, *columns]])
    between = [1] * (len(rows) - 1) if batch else []
    right = builder.op("Reshape", right, builder.constant([*(sizes[n] for n in batch), *between, terms, width]))
    product = builder.op("Reshape", builder.op("MatMul", left, right), builder.constant([*before, *(sizes[n] for n in columns)]))
    order = [*batch, *rows, *columns]
    return builder.finish("Transpose", product, perm=[order.index(n) for n in made])


REARRANGING = {"Constant": constant_of_floats, "Einsum": einsum, "GatherND": gather_nd}
