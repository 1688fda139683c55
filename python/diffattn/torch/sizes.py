"""Sizes that may differ from call to call, and what torch.export found that must hold for them."""

from __future__ import annotations

import sympy
import torch
from torch.utils._sympy.numbers import int_oo

from ..errors import InputError
from .source import sizes_of


class Sizes:
    """`places`: the nodes of the arguments, in the order of calls' leaves."""

    def __init__(self, program, places):
        self._ranges = dict(program.range_constraints)
        self._alone, self._derived = [], []
        self._guards, self._held = _guards(places), set()
        for number, node in enumerate(places):
            for axis, size in sizes_of(node):
                expression = size.node.expr
                (self._alone if expression.is_symbol else self._derived).append((node.name, number, axis, expression))

    def check(self, leaves) -> None:
        """Raises InputError for sizes of which the compiled code was not made."""
        known: dict = {}
        for name, number, axis, symbol in self._alone:
            size = _size(leaves, number, axis)
            first = known.setdefault(symbol, (size, name, axis))
            if first[0] != size:
                raise InputError(f"{_of(name, axis)}: expected {first[0]}, as for {_of(*first[1:])}, but got {size}")
            self._check_limits(name, axis, symbol, symbol, size, size)
        values = {symbol: size for symbol, (size, _, _) in known.items()}
        names = {symbol: _short(name, axis) for symbol, (_, name, axis) in known.items()}
        for name, number, axis, expression in self._derived:
            size = _size(leaves, number, axis)
            self._solve(name, axis, expression, size, values, names)
            expected = expression.subs(values)
            if expected != size:
                raise InputError(f"{_of(name, axis)}: expected {expected}, which is {_named(expression, names)}, but got {size}")
        if self._guards and tuple(values.values()) not in self._held:
            self._check_guards(values, names)

    def _solve(self, name, axis, expression, size, values, names) -> None:
        """The symbol of which alone `expression` is a multiple, plus a number, where no size is that symbol itself, from this size."""
        unknown = expression.free_symbols - set(values)
        if len(unknown) != 1 or not (expression.is_Add or expression.is_Mul):
            return
        (symbol,) = unknown
        rest = expression.subs(values)
        factor, start = rest.coeff(symbol, 1), rest.subs(symbol, 0)
        if not (factor.is_Integer and factor > 0 and sympy.expand(rest - factor * symbol - start) == 0):
            return
        value, left = divmod(size - int(start), int(factor))
        if left:
            more = f" plus {start}" if start > 0 else f" minus {-start}" if start < 0 else ""
            raise InputError(f"{_of(name, axis)}: expected a multiple of {factor}{more}, but got {size}")
        self._check_limits(name, axis, symbol, rest, value, size)
        values[symbol] = value
        names[symbol] = f"({_short(name, axis)}{f' - {start}' if start else ''}) / {factor}"

    def _check_limits(self, name, axis, symbol, expression, value, size) -> None:
        """`size`, which is `expression`, by the limits of `symbol`, which is then `value`."""
        limits = self._ranges.get(symbol)
        if limits is None or limits.lower <= value <= limits.upper:
            return
        lowest = expression.subs(symbol, limits.lower)
        wanted = f"a size of at least {lowest}" if limits.upper == int_oo else f"a size from {lowest} to {expression.subs(symbol, limits.upper)}"
        # torch.export takes 0 and 1 for sizes of another kind, unless it is told.
        is_special = expression == symbol and limits.lower == 2 and 0 <= value < 2
        hint = f"; torch.export.Dim(name, min={value}) in dynamic_shapes widens that" if is_special else ""
        raise InputError(f"{_of(name, axis)}: expected {wanted}, but got {size}{hint}")

    def _check_guards(self, values, names) -> None:
        """Raises InputError for sizes by which the module's own code would decide otherwise, as `if x.shape[0] > 4` and `int(x.shape[0] / 2)` do."""
        for guard in self._guards:
            if guard.subs(values) == False:  # noqa: E712 - of sympy, which may also be undecided
                got = ", ".join(f"{names[symbol]} = {values[symbol]}" for symbol in values if symbol in guard.free_symbols)
                raise InputError(f"expected sizes for which {_named(guard, names)}, as for those that "
                                 f"the module was compiled with, but got {got}")
        if len(self._held) < 10000:
            self._held.add(tuple(values.values()))


def _guards(places) -> list:
    """Conditions on sizes beyond their ranges, in the symbols that are left."""
    for node in places:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            env = value.fake_mode.shape_env
            guards = [env.replace(guard.expr) for guard in env.guards] if env is not None else []
            return [guard for guard in dict.fromkeys(guards) if guard != True]  # noqa: E712 - of sympy
    return []


def _size(leaves, number, axis):
    return leaves[number] if axis is None else leaves[number].shape[axis]


def _named(expression, names):
    return expression.subs({symbol: sympy.Symbol(name) for symbol, name in names.items()})


def _short(name: str, axis) -> str:
    return name if axis is None else f"{name}.shape[{axis}]"


def _of(name: str, axis) -> str:
    return name if axis is None else f"{name}, size of axis {axis}"
