"""Arithmetic on symbolic sizes that torch-mlir's importer does not know, in operations that it does."""

from __future__ import annotations

import functools
import math
import operator
from fractions import Fraction

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

#: Products of more factors stay as they are.
_MAX_POWER = 8
#: Numerators and denominators of constants up to this one: products with a size are exact in f64, in which PyTorch computes them.
_MAX_FACTOR = 2**16


def simplify(graph: torch.fx.Graph) -> None:
    """Replaces, in place, what gives integers: powers by products, remainders by what is left beside a multiple, sums of many by sums of
    two, and quotients that are rounded (as of `math.ceil(n / 4)`) by divisions of integers. A quotient of tensors is one op: AOTAutograd
    makes another of floats that follow from sizes, behind all decompositions."""
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.true_divide.Tensor:
            node.target = torch.ops.aten.div.Tensor
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.SymInt) or node.target not in _REWRITES:
            continue
        with graph.inserting_before(node):
            made = _REWRITES[node.target](graph, *node.args)
        if isinstance(made, torch.fx.Node):
            made.meta.update(node.meta)
            node.replace_all_uses_with(made)
            graph.erase_node(node)


def _power(graph, base, exponent, modulus=None):
    if modulus is not None or not isinstance(exponent, int) or not 1 < exponent <= _MAX_POWER:
        return None
    product = base
    for _ in range(exponent - 1):
        product = _call(graph, operator.mul, product, base)
    return product


def _remainder(graph, a, b):
    return _call(graph, operator.sub, a, _call(graph, operator.mul, b, _call(graph, operator.floordiv, a, b)))


def _sum(graph, terms):
    return functools.reduce(lambda a, b: _call(graph, operator.add, a, b), terms)


def _min(graph, a, b):
    return _call(graph, torch.ops.prim.min.int, a, b)


def _max(graph, a, b):
    return _call(graph, torch.ops.prim.max.int, a, b)


def _shifted(graph, a, places):
    return _call(graph, operator.floordiv, a, 2**places) if isinstance(places, int) and 0 <= places < 63 else None


def _abs(graph, a):
    return _max(graph, a, _call(graph, operator.neg, a))


def _floor(graph, value):
    a, b = _quotient(graph, value)
    return None if b is None else _call(graph, operator.floordiv, a, b)


def _ceil(graph, value):
    a, b = _quotient(graph, value)
    return None if b is None else _call(graph, operator.neg, _call(graph, operator.floordiv, _call(graph, operator.neg, a), b))


def _trunc(graph, value):
    a, b = _quotient(graph, value)
    if b is None or statically_known_true(_value(a) >= 0):
        return _floor(graph, value)
    return _call(graph, operator.add, _max(graph, _floor(graph, value), 0), _min(graph, _ceil(graph, value), 0))


def _quotient(graph, value) -> tuple:
    """Integers whose quotient `value` is, the second one positive; None in place of these: it is something else, or PyTorch rounds on the
    way to it, which an integer would not show."""
    a, b = _parts(graph, value)
    return (a, b) if b is not None and statically_known_true(_value(b) > 0) else (None, None)


def _parts(graph, value) -> tuple:
    if isinstance(_value(value), (int, torch.SymInt)):
        return value, 1
    if isinstance(value, float) and math.isfinite(value):
        fraction = Fraction(value)
        return (fraction.numerator, fraction.denominator) if max(abs(fraction.numerator), fraction.denominator) <= _MAX_FACTOR else (None, None)
    if not isinstance(value, torch.fx.Node):
        return None, None
    if value.target is torch.sym_float:
        return _parts(graph, value.args[0])
    if value.target not in (operator.mul, operator.truediv):
        return None, None
    (a, b), (c, d) = (_parts(graph, part) for part in value.args)
    if not (_is_exact(b) and _is_exact(d)):
        return None, None
    c, d = (d, c) if value.target is operator.truediv else (c, d)
    return _call(graph, operator.mul, a, c), _call(graph, operator.mul, b, d)


def _is_exact(denominator) -> bool:
    """Whether f64 holds quotients by it."""
    return isinstance(denominator, int) and denominator & (denominator - 1) == 0


#: What makes a node from the operands of one; anything else: there is none.
_REWRITES = {operator.pow: _power, pow: _power, operator.mod: _remainder, torch.sym_sum: _sum, torch.sym_min: _min, torch.sym_max: _max,
             operator.rshift: _shifted, abs: _abs, operator.abs: _abs, math.floor: _floor, math.ceil: _ceil, math.trunc: _trunc}
_VALUES = {torch.ops.prim.min.int: torch.sym_min, torch.ops.prim.max.int: torch.sym_max}


def _value(operand):
    return operand.meta["val"] if isinstance(operand, torch.fx.Node) else operand


def _call(graph, function, *operands):
    """The node of a function of integers; an integer where all operands are."""
    value = _VALUES.get(function, function)(*map(_value, operands))
    if not any(isinstance(operand, torch.fx.Node) for operand in operands):
        return value
    node = graph.call_function(function, operands)
    node.meta["val"] = value
    return node
