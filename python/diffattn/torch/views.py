"""Views of symbolic sizes, as axes that are merged and axes that are split.

torch-mlir guesses which axes of an `aten.view` belong together. Where several sizes are symbols it may guess wrong (`[b, t, 4]` as
`[b * t, 4]` becomes a cast of `t` to 1), and it asks at run time whether a size is -1. Of the symbols one can tell.
"""

from __future__ import annotations

import operator
import random

import sympy
import torch

from ..importing.axis_groups import axis_groups

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
        # Of sizes that PyTorch found to fit at run time alone nothing else is known than that all of them do.
        groups = _groups(list(before), list(after), numbers) or [((0, len(before)), (0, len(after)))]
        if len(groups) == len(before) == len(after):
            continue
        with graph.inserting_before(node):
            made = _taken_apart(graph, source, sizes, after, groups)
        made.meta.update(node.meta)
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _taken_apart(graph, node, sizes, after, groups):
    """Merges what is one group, then splits it; from the last axis on, so that the numbers of the others stay."""
    for (begin, end), (into, to) in reversed(groups):
        shape = node.meta["val"].shape
        if end - begin > 1:
            merged = [*shape[:begin], _product(shape[begin:end]), *shape[end:]]
            node = _call(graph, prims.collapse.default, (node, begin, end - 1), node, merged)
        if any(isinstance(size, torch.SymInt) for size in after[into:to]) and to - into > 1:
            shape = node.meta["val"].shape
            parts = _without_unknown(graph, node, begin, sizes[into:to], after[into:to])
            node = _call(graph, aten.unflatten.int, (node, begin, parts), node, [*shape[:begin], *after[into:to], *shape[begin + 1:]])
        else:
            node = _split(graph, node, begin, after[into:to])
    return node


def _without_unknown(graph, node, axis, sizes, made):
    """The sizes that `axis` is taken apart into, with what -1 among them stands for: torch-mlir hands it on as a size."""
    if -1 not in sizes:
        return sizes
    at = sizes.index(-1)
    unknown = made[at]
    if isinstance(unknown, torch.SymInt):
        size = node.meta["val"].shape[axis]
        unknown = graph.call_function(aten.sym_size.int, (node, axis))
        unknown.meta["val"] = size
        for other in (*sizes[:at], *sizes[at + 1:]):
            size = size // (other.meta["val"] if isinstance(other, torch.fx.Node) else other)
            unknown = graph.call_function(operator.floordiv, (unknown, other))
            unknown.meta["val"] = size
    return [*sizes[:at], unknown, *sizes[at + 1:]]


def _split(graph, node, axis, sizes):
    """`axis` taken apart into known sizes, one by one: `aten.unflatten` is a view again for torch-mlir."""
    for number in range(len(sizes) - 1):
        shape, at = node.meta["val"].shape, axis + number
        parts = [sizes[number], _product(sizes[number + 1:])]
        node = _call(graph, prims.split_dim.default, (node, at, sizes[number]), node, [*shape[:at], *parts, *shape[at + 1:]])
    return node


def _call(graph, target, arguments, like, shape):
    node = graph.call_function(target, arguments)
    node.meta["val"] = like.meta["val"].new_empty(shape)
    return node


def _product(sizes):
    result = 1
    for size in sizes:
        result = result * size
    return result


def _groups(before, after, numbers):
    """As of `axis_groups`; None as well if the sizes of a group are not certainly the same."""
    groups = axis_groups(*([numbers.of(size) for size in shape] for shape in (before, after)))
    return groups if groups and all(_is_same(before[a:b], after[c:d]) for (a, b), (c, d) in groups) else None


def _is_same(before, after) -> bool:
    if len(before) == len(after) == 1:
        before, after = before[0], after[0]
        return before is after or _expression(before) == _expression(after)
    return sympy.expand(_product(map(_expression, before)) - _product(map(_expression, after))) == 0


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
