"""Nodes that write rows (write_node.py) as loops, in text."""

from __future__ import annotations

from .attention_text import sizes_of


def write_op(spec: tuple[int, int], number: str, values: list[tuple[str, str]], result: str, result_type: str) -> list[str]:
    """The lines that make `result` of a tensor, places on one of its axes, and rows for them, each with its type. `spec`: the axis, and
    whether rows are added to what is there."""
    dim, adds = spec
    (x, type_), (index, index_type), (source, source_type) = values
    prefix = f"%write_{number}"
    *sizes, element = sizes_of(type_)
    lines = [f"{prefix}_zero = arith.constant 0 : index", f"{prefix}_one = arith.constant 1 : index",
             f"{prefix}_count = tensor.dim {index}, {prefix}_zero : {index_type}"]
    for axis, size in enumerate(sizes):
        if size == "?" and axis != dim:
            lines += [f"{prefix}_axis_{axis} = arith.constant {axis} : index",
                      f"{prefix}_size_{axis} = tensor.dim {x}, {prefix}_axis_{axis} : {type_}"]
            sizes[axis] = f"{prefix}_size_{axis}"
    sizes[dim] = "1"
    row = f"tensor<{'x'.join(['?' if size.startswith('%') else size for size in sizes] + [element])}>"
    whole, ones = ", ".join(sizes), ", ".join("1" for _ in sizes)

    def part(place: str) -> str:
        return f"[{', '.join(place if axis == dim else '0' for axis in range(len(sizes)))}] [{whole}] [{ones}]"

    made = result if result_type == type_ else f"{prefix}_made"
    lines += [f"{made} = scf.for {prefix}_i = {prefix}_zero to {prefix}_count step {prefix}_one "
              f"iter_args({prefix}_x = {x}) -> ({type_}) {{",
              f"  {prefix}_place = tensor.extract {index}[{prefix}_i] : {index_type}",
              f"  {prefix}_at = arith.index_cast {prefix}_place : {sizes_of(index_type)[-1]} to index",
              f"  {prefix}_row = tensor.extract_slice {source}{part(f'{prefix}_i')} : {source_type} to {row}",
              *([f"  {prefix}_old = tensor.extract_slice {prefix}_x{part(f'{prefix}_at')} : {type_} to {row}",
                 f"  {prefix}_written = linalg.add ins({prefix}_old, {prefix}_row : {row}, {row}) outs({prefix}_old : {row}) -> {row}"]
                if adds else []),
              f"  {prefix}_new = tensor.insert_slice {prefix}_{'written' if adds else 'row'} into {prefix}_x{part(f'{prefix}_at')} : {row} into {type_}",
              f"  scf.yield {prefix}_new : {type_}", "}"]
    if made != result:
        lines.append(f"{result} = tensor.cast {made} : {type_} to {result_type}")
    return lines
