"""Ops of upstream dialects, as lowerings of StableHLO write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from jaxlib.mlir import ir

#: Position of an element along each axis.
Place = Mapping[int, ir.Value]


def replace_each(ops: Iterable[ir.Operation], name: str, lowering: Callable[[ir.Operation], list[ir.Value]]) -> None:
    """Replaces the ops called `name` by the values that `lowering` makes for each, whose types may be signless."""
    for one in ops:
        if one.name == name:
            with ir.InsertionPoint(one), one.location:
                for result, made in zip(list(one.results), lowering(one)):
                    result.replace_all_uses_with(cast(made, result.type))
            one.erase()


def for_each(sizes: Mapping[int, int], carried: list[ir.Value], body: Callable[[Place, list[ir.Value]], list[ir.Value]]) -> list[ir.Value]:
    """Loops over axes of the given sizes, the first outside. `body` takes what is carried and gives what it becomes."""

    def over(axes: list[int], at: Place, carried: list[ir.Value]) -> list[ir.Value]:
        if not axes:
            return body(at, carried)
        return loop(index(0), index(sizes[axes[0]]), index(1), carried, lambda i, inner: over(axes[1:], {**at, axes[0]: i}, inner))

    return over(list(sizes), {}, carried)


def loop(begin: ir.Value, end: ir.Value, step: ir.Value, carried: list[ir.Value],
         body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]]) -> list[ir.Value]:
    made = ir.Operation.create("scf.for", [value.type for value in carried], [begin, end, step, *carried], regions=1)
    block = made.regions[0].blocks.append(ir.IndexType.get(), *[value.type for value in carried])
    with ir.InsertionPoint(block):
        ir.Operation.create("scf.yield", [], body(block.arguments[0], list(block.arguments)[1:]))
    return list(made.results)


def branch(condition: ir.Value, kinds: list[ir.Type], then: Callable[[], list[ir.Value]], otherwise: Callable[[], list[ir.Value]]) -> list[ir.Value]:
    choice = ir.Operation.create("scf.if", kinds, [condition], regions=2)
    for region, body in zip(choice.regions, (then, otherwise)):
        with ir.InsertionPoint(region.blocks.append()):
            ir.Operation.create("scf.yield", [], body())
    return list(choice.results)


def of_scalars(block: ir.Block, scalars: Sequence[ir.Value]) -> list[ir.Value]:
    """The results of a region for scalars. The region takes and gives them as tensors without axes."""
    known = {argument: cast(op("tensor.from_elements", signless(argument.type), scalar), argument.type)
             for argument, scalar in zip(block.arguments, scalars)}
    for inner in block.operations:
        operands = [known.get(operand, operand) for operand in inner.operands]
        if inner.operation.name == "stablehlo.return":
            return [extract(cast(value, signless(value.type))) for value in operands]
        made = inner.operation.clone()
        for number, operand in enumerate(operands):
            made.operands[number] = operand
        known.update(zip(inner.results, made.results))
    raise AssertionError("a region without an end")


def signless(kind: ir.Type) -> ir.Type:
    """The type with signless elements, as ops on tensors have integers."""
    tensor = ir.RankedTensorType(kind)
    if not is_unsigned(tensor.element_type):
        return kind
    return ir.RankedTensorType.get(tensor.shape, ir.IntegerType.get_signless(tensor.element_type.width))


def is_unsigned(element: ir.Type) -> bool:
    return isinstance(element, ir.IntegerType) and element.is_unsigned


def drop_signs(block: ir.Block) -> None:
    """Makes a block's arguments signless; ops in the block still see the signed types, through casts."""
    for argument in block.arguments:
        signed, bare = argument.type, signless(argument.type)
        if bare != signed:
            with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown():
                seen = ir.Operation.create("builtin.unrealized_conversion_cast", [signed], [argument])
            argument.replace_all_uses_except(seen.results[0], seen)
            argument.set_type(bare)


def cast(value: ir.Value, kind: ir.Type) -> ir.Value:
    return value if value.type == kind else op("builtin.unrealized_conversion_cast", kind, value)


def op(name: str, result: ir.Type, *operands: ir.Value, **attributes: ir.Attribute) -> ir.Value:
    return ir.Operation.create(name, [result], list(operands), attributes=attributes).results[0]


def extract(tensor: ir.Value, *place: ir.Value) -> ir.Value:
    return op("tensor.extract", ir.RankedTensorType(tensor.type).element_type, tensor, *place)


def insert(value: ir.Value, tensor: ir.Value, *place: ir.Value) -> ir.Value:
    return op("tensor.insert", tensor.type, value, tensor, *place)


def index(number: int) -> ir.Value:
    return op("arith.constant", ir.IndexType.get(), value=ir.IntegerAttr.get(ir.IndexType.get(), number))


def on_indices(name: str, *operands: ir.Value) -> ir.Value:
    return op(f"arith.{name}", ir.IndexType.get(), *operands)


def is_less(a: ir.Value, b: ir.Value) -> ir.Value:
    """Whether index `a` is less than index `b`, as signed integers."""
    return op("arith.cmpi", truth(), a, b, predicate=ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 2))


def truth() -> ir.Type:
    return ir.IntegerType.get_signless(1)
