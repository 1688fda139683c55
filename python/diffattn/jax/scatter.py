"""StableHLO's scatter, which jaxlib's passes do not lower, as loops over the updates."""

from __future__ import annotations

from collections.abc import Iterable

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.stablehlo import ScatterDimensionNumbers

from .building import branch, cast, extract, for_each, index, insert, is_less, of_scalars, on_indices, op, replace_each, signless, truth


def lower_scatter(ops: Iterable[ir.Operation]) -> None:
    """Lowers scatter to loops: in the order of the updates, each element of an update is combined with the element at its place. A window
    that is not within the operand is left out as a whole, as XLA does."""
    replace_each(ops, "stablehlo.scatter", _loops)


def _loops(scatter) -> list[ir.Value]:
    count = len(scatter.results)
    operands = [cast(operand, signless(operand.type)) for operand in scatter.operands]
    tensors, indices, updates = operands[:count], operands[count], operands[count + 1:]
    numbers = ScatterDimensionNumbers(scatter.attributes["scatter_dimension_numbers"])
    shape = ir.RankedTensorType(updates[0].type).shape
    outer = {axis: size for axis, size in enumerate(shape) if axis not in numbers.update_window_dims}

    def window(at, carried: list[ir.Value]) -> list[ir.Value]:
        begin, sizes, axes = _place(tensors[0], indices, shape, numbers, [at[axis] for axis in outer])
        outside = None
        for first, size, extent in zip(begin, sizes, ir.RankedTensorType(tensors[0].type).shape):
            for beyond in (is_less(first, index(0)), is_less(index(extent - size), first)):
                outside = beyond if outside is None else op("arith.ori", truth(), outside, beyond)

        def element(inner, carried: list[ir.Value]) -> list[ir.Value]:
            place = [first if axis is None else on_indices("addi", first, inner[axis]) for first, axis in zip(begin, axes)]
            given = [{**at, **inner}[axis] for axis in range(len(shape))]
            old = [extract(tensor, *place) for tensor in carried]
            new = [extract(update, *given) for update in updates]
            return [insert(value, tensor, *place) for tensor, value in zip(carried, of_scalars(scatter.regions[0].blocks[0], [*old, *new]))]

        def write() -> list[ir.Value]:
            return for_each({axis: shape[axis] for axis in numbers.update_window_dims}, carried, element)

        if outside is None:
            return write()
        return branch(outside, [value.type for value in carried], lambda: carried, write)

    return for_each(outer, tensors, window)


def _place(tensor, indices, shape, numbers: ScatterDimensionNumbers, at: list[ir.Value]) -> tuple[list, list, list]:
    """For each axis of the operand: where the window of the update at `at` begins, how long it is, and which axis of the update runs
    along it."""
    rank, inner = len(ir.RankedTensorType(tensor.type).shape), len(ir.RankedTensorType(indices.type).shape)
    begin, windows = [index(0)] * rank, iter(numbers.update_window_dims)
    for number, axis in enumerate(numbers.scattered_dims_to_operand_dims):
        position = [*at[:numbers.index_vector_dim], index(number), *at[numbers.index_vector_dim:]] if numbers.index_vector_dim < inner else at
        begin[axis] = on_indices("index_cast", extract(indices, *position))
    for axis, batching in zip(numbers.input_batching_dims, numbers.scatter_indices_batching_dims):
        begin[axis] = at[batching - (batching >= numbers.index_vector_dim)]
    axes = [None if axis in (*numbers.inserted_window_dims, *numbers.input_batching_dims) else next(windows) for axis in range(rank)]
    return begin, [1 if axis is None else shape[axis] for axis in axes], axes
