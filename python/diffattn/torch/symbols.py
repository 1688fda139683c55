"""Arithmetic on symbolic sizes that torch-mlir's importer does not know, in operations that it does."""

from __future__ import annotations

import operator

import torch

#: Products of more factors stay as they are.
_MAX_POWER = 8


def simplify(graph: torch.fx.Graph) -> None:
    """Replaces, in place, powers of integers by products, and remainders by what is left beside a multiple."""
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.SymInt):
            continue
        with graph.inserting_before(node):
            made = _power(graph, *node.args) if node.target in (operator.pow, pow) else None
            if node.target is operator.mod:
                a, b = node.args
                made = _call(graph, operator.sub, a, _call(graph, operator.mul, b, _call(graph, operator.floordiv, a, b)))
        if made is not None:
            made.meta.update(node.meta)
            node.replace_all_uses_with(made)
            graph.erase_node(node)


def _power(graph, base, exponent):
    if not isinstance(exponent, int) or not 1 < exponent <= _MAX_POWER:
        return None
    product = base
    for _ in range(exponent - 1):
        product = _call(graph, operator.mul, product, base)
    return product


def _call(graph, function, *operands):
    node = graph.call_function(function, operands)
    node.meta["val"] = function(*(operand.meta["val"] if isinstance(operand, torch.fx.Node) else operand for operand in operands))
    return node
