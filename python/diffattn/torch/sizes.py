"""Sizes that may differ from call to call, and what torch.export found that must hold for them."""

from __future__ import annotations

import sympy
import torch

from ..errors import InputError


class Sizes:
    """`places`: the nodes of the arguments, in the order of calls' leaves."""

    def __init__(self, program, places):
        self._ranges = dict(program.range_constraints)
        self._alone, self._derived = [], []
        self._guards, self._held = _guards(places), set()
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
        if self._guards and tuple(values.values()) not in self._held:
            self._check_guards(values, {symbol: _short(name, axis) for symbol, (_, name, axis) in known.items()})

    def _check_guards(self, values, names) -> None:
        """What the module's own code decided by sizes, as `if x.shape[0] > 4` and `int(x.shape[0] / 2)` do."""
        for guard in self._guards:
            if guard.subs(values) == False:  # noqa: E712 - of sympy, which may also be undecided
                got = ", ".join(f"{names[symbol]} = {values[symbol]}" for symbol in values if symbol in guard.free_symbols)
                raise InputError(f"expected sizes for which {guard.subs({s: sympy.Symbol(n) for s, n in names.items()})}, as for those that "
                                 f"the module was compiled with, but got {got}")
        if len(self._held) < 10000:
            self._held.add(tuple(values.values()))


def _guards(places) -> list:
    """What must hold for sizes beyond their ranges, in the symbols that are left."""
    for node in places:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            env = value.fake_mode.shape_env
            found = [env.replace(guard.expr) for guard in env.guards] if env is not None else []
            return [guard for guard in dict.fromkeys(found) if guard != True]  # noqa: E712 - of sympy
    return []


def _short(name: str, axis) -> str:
    return name if axis is None else f"{name}.shape[{axis}]"


def _of(name: str, axis) -> str:
    return name if axis is None else f"{name}, size of axis {axis}"
