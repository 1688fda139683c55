"""StableHLO's sort, which jaxlib's passes do not lower, as loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jaxlib.mlir import ir

from .building import branch, cast, extract, for_each, index, insert, is_less, loop, of_scalars, on_indices, op, replace_each, signless, truth


def lower_sort(ops: Iterable[ir.Operation]) -> None:
    """Lowers sort to a merge sort of places along the axis, which keeps the order of equal elements, and a read of the elements there."""
    replace_each(ops, "stablehlo.sort", _sorted)


def _sorted(sort) -> list[ir.Value]:
    operands = [cast(operand, signless(operand.type)) for operand in sort.operands]
    sizes = dict(enumerate(ir.RankedTensorType(operands[0].type).shape))
    axis = ir.IntegerAttr(sort.attributes["dimension"]).value
    axis += len(sizes) * (axis < 0)
    size = sizes[axis]
    if size < 2 or 0 in sizes.values():
        return operands

    def line(at, carried: list[ir.Value]) -> list[ir.Value]:
        def elements(place: ir.Value) -> list[ir.Value]:
            return [extract(operand, *place_of(place)) for operand in operands]

        def place_of(place: ir.Value) -> list[ir.Value]:
            return [place if number == axis else at[number] for number in sizes]

        def precedes(a: ir.Value, b: ir.Value) -> ir.Value:
            pairs = [number for both in zip(elements(a), elements(b)) for number in both]
            return of_scalars(sort.regions[0].blocks[0], pairs)[0]

        order, half = _order(size, precedes)
        return loop(index(0), index(size), index(1), carried, lambda k, tensors: [
            insert(value, tensor, *place_of(k)) for value, tensor in zip(elements(extract(order, index(half), k)), tensors)])

    empty = [op("tensor.empty", operand.type) for operand in operands]
    return for_each({number: extent for number, extent in sizes.items() if number != axis}, empty, line)


def _order(size: int, precedes: Callable[[ir.Value, ir.Value], ir.Value]) -> tuple[ir.Value, int]:
    """Places in their order, as one half of a tensor: each pass merges runs from one half to the other."""
    one, end, last = index(1), index(size), index(size - 1)
    order = op("tensor.empty", ir.RankedTensorType.get([2, size], ir.IndexType.get()))
    order = loop(index(0), end, one, [order], lambda i, orders: [insert(i, orders[0], index(0), i)])[0]
    passes = (size - 1).bit_length()

    def merge_all(number: ir.Value, orders: list[ir.Value]) -> list[ir.Value]:
        width, source = on_indices("shli", one, number), on_indices("remui", number, index(2))
        target = on_indices("subi", one, source)

        def merge(low: ir.Value, orders: list[ir.Value]) -> list[ir.Value]:
            middle = on_indices("minsi", on_indices("addi", low, width), end)
            high = on_indices("minsi", on_indices("addi", middle, width), end)

            def take(k: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
                left, right, order = carried
                a, b = (extract(order, source, on_indices("minsi", place, last)) for place in (left, right))
                is_behind = op("arith.andi", truth(), is_less(left, middle), is_less(right, high))
                # One run has ended, or both have elements.
                is_right = branch(is_behind, [truth()], lambda: [precedes(b, a)], lambda: [is_less(right, high)])[0]
                step = op("arith.index_castui", ir.IndexType.get(), is_right)
                return [on_indices("addi", left, on_indices("subi", one, step)), on_indices("addi", right, step),
                        insert(op("arith.select", ir.IndexType.get(), is_right, b, a), order, target, k)]

            return loop(low, high, one, [low, middle, *orders], take)[2:]

        return loop(index(0), end, on_indices("shli", width, one), orders, merge)

    return loop(index(0), index(passes), one, [order], merge_all)[0], passes % 2
