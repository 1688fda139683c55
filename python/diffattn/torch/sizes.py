"""Sizes that may differ from call to call, and what torch.export found that must hold for them."""

from __future__ import annotations

import torch

from ..errors import InputError


class Sizes:
    """`places`: the nodes of the arguments, in the order of calls' leaves."""

    def __init__(self, program, places):
        self._ranges = dict(program.range_constraints)
        self._alone, self._derived = [], []
        for number, node in enumerate(places):
            value = node.meta.get("val")
            for axis, size in enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]:
                if isinstance(size, torch.SymInt):
                    expression = size.node.expr
                    (self._alone if expression.is_symbol else self._derived).append((node.name, number, axis, expression))

    def check(self, leaves) -> None:
        """Raises InputError for sizes of which the compiled code was not made."""
        known: dict = {}
        for name, number, axis, symbol in self._alone:
            size = leaves[number] if axis is None else leaves[number].shape[axis]
            first = known.setdefault(symbol, (size, name, axis))
            if first[0] != size:
                raise InputError(f"{_of(name, axis)}: expected {first[0]}, as for {_of(*first[1:])}, but got {size}")
            limits = self._ranges.get(symbol)
            if limits is not None and not limits.lower <= size <= limits.upper:
                raise InputError(f"{_of(name, axis)}: expected a size from {limits.lower} to {limits.upper}, but got {size}")
        values = {symbol: size for symbol, (size, _, _) in known.items()}
        for name, number, axis, expression in self._derived:
            size, expected = leaves[number].shape[axis], expression.subs(values)
            if expected != size:
                raise InputError(f"{_of(name, axis)}: expected {expected}, which is {expression}, but got {size}")


def _of(name: str, axis) -> str:
    return name if axis is None else f"{name}, size of axis {axis}"
