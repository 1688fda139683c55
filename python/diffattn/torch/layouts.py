"""Where the elements of a tensor lie, by the sizes and strides of the inputs of a graph."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import sympy
import torch

from .tensors import part_type

aten = torch.ops.aten

#: PyTorch's own functions of sizes, beside those of sympy and of `math`.
_FUNCTIONS = {"FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv, "Mod": operator.mod, "PythonMod": operator.mod, "Max": max,
              "Min": min, "TruncToInt": math.trunc, "FloorToInt": math.floor, "CeilToInt": math.ceil, "RoundToInt": round, "ToFloat": float,
              "FloatTrueDiv": operator.truediv, "IntTrueDiv": operator.truediv, "FloatPow": operator.pow, "PowByNatural": operator.pow,
              "LShift": operator.lshift, "RShift": operator.rshift, "OpaqueUnaryFn_sqrt": math.sqrt,
              "ModularIndexing": lambda n, by, modulus: n // by % modulus}


class Numbers:
    """Integers that follow from the inputs of a graph: each is one, or an expression of the graph's symbols."""

    def __init__(self, numbers: Sequence, symbols: dict):
        """`symbols`: of each symbol the input that it is (number, None, None), or whose size, stride or place of the first element it is
        (number, method, axis)."""
        self._known = list(numbers) if all(isinstance(n, int) for n in numbers) else None
        self._symbols = list(symbols.values())
        self._compute = None if self._known else sympy.lambdify(list(symbols), list(numbers), modules=[_FUNCTIONS, "math"])

    @classmethod
    def of(cls, numbers: Sequence, places) -> Numbers | None:
        """In a graph with the inputs `places`; None: they do not follow from its inputs."""
        numbers = _numbers(numbers)
        wanted = set().union(*(n.free_symbols for n in numbers if not isinstance(n, int)))
        known: dict = {}
        for number, node in enumerate(places) if wanted else ():
            for value, method, axis in _sources(node.meta.get("val")):
                if isinstance(value, torch.SymInt) and value.node.expr in wanted:
                    known.setdefault(value.node.expr, (number, method, axis))
        return cls(numbers, known) if len(known) == len(wanted) else None

    def get(self, inputs: Sequence) -> list[int]:
        if self._known is not None:
            return self._known
        return [int(n) for n in self._compute(*(_read(inputs[number], method, axis) for number, method, axis in self._symbols))]


def _numbers(sizes) -> list:
    """Integers, and expressions of what is none."""
    expressions = [n if isinstance(n, int) else n.node.expr for n in sizes]
    return [int(n) if isinstance(n, sympy.Expr) and n.is_Integer else n for n in expressions]


def _sources(value):
    """What is known of an input, and how it is read."""
    if not isinstance(value, torch.Tensor):
        yield value, None, None
        return
    for axis in range(value.dim()):
        yield value.shape[axis], "size", axis
    for axis in range(value.dim()):
        yield value.stride(axis), "stride", axis
    yield value.storage_offset(), "storage_offset", None


def _read(value, method, axis) -> int:
    if method is None:
        return value
    return getattr(value, method)(*(() if axis is None else (axis,)))


def _shown(node: torch.fx.Node, base: torch.fx.Node) -> torch.Tensor | None:
    """What `node` shows of the tensor `base`, by the views that make it of it. None: it is made otherwise.

    The strides of its own value are of no use: where the graph changes `base`, that is a view of what `base` becomes, a new tensor."""
    if node is base or any(user.target is aten.copy_.default and user.args[:2] == (base, node) for user in node.users):
        return base.meta["val"]
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], torch.fx.Node):
        return None
    inner = _shown(node.args[0], base)
    if inner is None:
        return None
    if node.target is operator.getitem:
        return inner[node.args[1]]
    if getattr(node.target, "is_view", False):
        args, kwargs = torch.fx.node.map_arg((node.args[1:], node.kwargs), lambda one: one.meta["val"])
        try:
            return node.target(inner, *args, **kwargs)
        except RuntimeError:  # a view of a dense tensor alone
            return None
    # What an op in place became, which changed what its first operand shows.
    value = node.meta["val"]
    same = isinstance(value, torch.Tensor) and isinstance(inner, torch.Tensor) and _numbers(value.shape) == _numbers(inner.shape)
    return inner if same and value.dtype == inner.dtype else None


def _offset(tensor):
    """Of its first element, in real numbers."""
    return tensor.storage_offset() * (2 if tensor.is_complex() else 1)


class View:
    """An output of `dtype` that shows elements of input number `base`, wherever that lies, or parts of complex ones."""

    def __init__(self, base: int, dim: int, numbers: Numbers, dtype: torch.dtype):
        self._base, self._dim, self._numbers, self._dtype = base, dim, numbers, dtype

    @classmethod
    def of(cls, node: torch.fx.Node, base: int, places) -> View | None:
        """`node` as a view of input `base` of the graph with the inputs `places`; None: where it lies does not follow from them."""
        whole = places[base].meta["val"]
        value = _shown(node, places[base])
        if value is None:
            return None
        if value.dtype != whole.dtype and part_type(value.dtype) != part_type(whole.dtype):
            return None
        # In parts of elements, of which a complex one has two.
        start = _offset(value) - _offset(whole)
        numbers = Numbers.of([*value.shape, *value.stride(), start], places)
        return None if numbers is None else cls(base, value.dim(), numbers, value.dtype)

    def new(self, inputs: Sequence) -> torch.Tensor:
        base, numbers = inputs[self._base], self._numbers.get(inputs)
        sizes, strides, start = numbers[:self._dim], numbers[self._dim:-1], numbers[-1]
        place = (_offset(base) + start) // (2 if self._dtype.is_complex else 1)
        # No view to PyTorch, whose autograd would look for what made it.
        return base.new_empty(0, dtype=self._dtype).set_(base.untyped_storage(), place, sizes, strides)


class Empty:
    """An output without elements."""

    def __init__(self, dim: int, numbers: Numbers, dtype: torch.dtype):
        self._dim, self._numbers, self._dtype = dim, numbers, dtype

    @classmethod
    def of(cls, value: torch.Tensor, places) -> Empty | None:
        """As the fake tensor `value`; None: its sizes do not follow from the inputs `places`."""
        numbers = Numbers.of([*value.shape, *value.stride()], places)
        return None if numbers is None else cls(value.dim(), numbers, value.dtype)

    def new(self, inputs: Sequence) -> torch.Tensor:
        numbers = self._numbers.get(inputs)
        return torch.empty_strided(numbers[:self._dim], numbers[self._dim:], dtype=self._dtype)
