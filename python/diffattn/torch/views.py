"""Views of symbolic sizes, as axes that are merged and axes that are split.

torch-mlir guesses which axes of an `aten.view` belong together. Where several sizes are symbols it may guess wrong (`[b, t, 4]` as
`[b * t, 4]` becomes a cast of `t` to 1), and it asks at run time whether a size is -1. Of the symbols one can tell.
"""

from __future__ import annotations

import math
import operator
import random

import sympy
import torch

from ..importing.axis_groups import axis_groups
from .source import call_before

aten, prims = torch.ops.aten, torch.ops.prims
VIEWS = (aten.view.default, aten._unsafe_view.default)


def spell_views(graph: torch.fx.Graph) -> None:
    """Replaces, in place, each view in which a size is symbolic."""
    numbers = _Numbers()
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in VIEWS:
            continue
        source, sizes = node.args[0], list(node.args[1])
        before, after = source.meta["val"].shape, node.meta["val"].shape
        if not any(isinstance(size, torch.SymInt) for size in (*before, *after)):
            continue
        # Sizes that PyTorch finds to fit at run time alone are one group: nothing is known but that their products are equal.
        groups = _groups(list(before), list(after), numbers) or [((0, len(before)), (0, len(after)))]
        if len(groups) == len(before) == len(after):
            continue
        made = _taken_apart(node, source, sizes, after, groups)
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _taken_apart(view, node, sizes, after, groups):
    """Merges what is one group, then splits it; from the last axis on, so that the numbers of the others stay."""
    for (begin, end), (into, to) in reversed(groups):
        shape = node.meta["val"].shape
        if end - begin > 1:
            merged = [*shape[:begin], math.prod(shape[begin:end]), *shape[end:]]
            node = _call(view, prims.collapse.default, (node, begin, end - 1), merged)
        if any(isinstance(size, torch.SymInt) for size in after[into:to]) and to - into > 1:
            shape = node.meta["val"].shape
            parts = _without_unknown(view, node, begin, sizes[into:to], after[into:to])
            node = _call(view, aten.unflatten.int, (node, begin, parts), [*shape[:begin], *after[into:to], *shape[begin + 1:]])
        else:
            node = _split(view, node, begin, after[into:to])
    return node


def _without_unknown(view, node, axis, sizes, made):
    """The sizes that `axis` is taken apart into, with what -1 among them stands for: torch-mlir hands it on as a size."""
    if -1 not in sizes:
        return sizes
    at = sizes.index(-1)
    unknown = made[at]
    if isinstance(unknown, torch.SymInt):
        size = node.meta["val"].shape[axis]
        unknown = call_before(view, aten.sym_size.int, (node, axis), value=size)
        for other in (*sizes[:at], *sizes[at + 1:]):
            size = size // (other.meta["val"] if isinstance(other, torch.fx.Node) else other)
            unknown = call_before(view, operator.floordiv, (unknown, other), value=size)
    return [*sizes[:at], unknown, *sizes[at + 1:]]


def _split(view, node, axis, sizes):
    """`axis` taken apart into known sizes, one by one: `aten.unflatten` is a view again for torch-mlir."""
    for number in range(len(sizes) - 1):
        shape, at = node.meta["val"].shape, axis + number
        parts = [sizes[number], math.prod(sizes[number + 1:])]
        node = _call(view, prims.split_dim.default, (node, at, sizes[number]), [*shape[:at], *parts, *shape[at + 1:]])
    return node


def _call(view, target, arguments, shape):
    return call_before(view, target, arguments, value=view.meta["val"].new_empty(shape))


def _groups(before, after, numbers):
    """Groups as `axis_groups` gives them; None as well if the sizes of a group are not certainly the same."""
    groups = axis_groups(*([numbers.of(size) for size in shape] for shape in (before, after)))
    return groups if groups and all(_is_same(before[a:b], after[c:d]) for (a, b), (c, d) in groups) else None


def _is_same(before, after) -> bool:
    if len(before) == len(after) == 1:
        before, after = before[0], after[0]
        return before is after or _expression(before) == _expression(after)
    return sympy.expand(math.prod(map(_expression, before)) - math.prod(map(_expression, after))) == 0


def _expression(size):
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


class _Numbers:
    """A number for each size, made of large random numbers for the symbols in it: sizes of different numbers differ. A quotient is one of
    them: that of its symbols' numbers would be 0 now and then."""

    def __init__(self):
        self._random, self._atoms, self._known = random.Random(0), {}, {}

    def of(self, size) -> int:
        if not isinstance(size, torch.SymInt):
            return size
        expression = size.node.expr
        if expression not in self._known:
            for atom in sorted(expression.free_symbols | expression.atoms(sympy.Function), key=str):
                self._atoms.setdefault(atom, sympy.Integer(self._random.randrange(10**6, 10**9)))
            number = expression.xreplace(self._atoms)
            self._known[expression] = int(number) if number.is_Integer else self._random.randrange(10**6, 10**9)
        return self._known[expression]
