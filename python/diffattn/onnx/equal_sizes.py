"""What a model says of sizes that have one name, as assertions at the beginning of its function, where raising reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..importing.function import Value

_HEAD = re.compile(r"^ *func\.func @main\((.*?)\) (?:->.*)?(?:attributes .*)?\{$", re.M)


def assert_equal_sizes(text: str, given: Sequence[Value]) -> str:
    """`text`, a module whose function `main` has the arguments `given` first. The axes of one name are asserted to be equal."""
    head = _HEAD.search(text)
    types = re.findall(r"%arg\d+: (tensor<[^>]*>)", head[1])
    lines, seen, axes = [], {}, set()

    def size(number: int, axis: int) -> str:
        axes.add(axis)
        lines.append(f"%size_{len(lines)} = tensor.dim %arg{number}, %axis_{axis} : {types[number]}")
        return f"%size_{len(lines) - 1}"

    for number, value in enumerate(given):
        for axis, name in enumerate(value.sizes):
            if not isinstance(name, str):
                continue
            known = seen.setdefault(name, (number, axis))
            if known != (number, axis):
                first, second = size(*known), size(number, axis)
                lines.append(f"%size_{len(lines)} = arith.cmpi eq, {first}, {second} : index")
                lines.append(f'cf.assert %size_{len(lines) - 1}, "expected size {{0}} on axis {axis} of input {number} of the graph, as on axis '
                             f'{known[1]} of input {known[0]} of the graph, but got {{1}}"')
    numbers = [f"%axis_{axis} = arith.constant {axis} : index" for axis in sorted(axes)]
    return text[:head.end()] + "".join(f"\n    {line}" for line in numbers + lines) + text[head.end():]
