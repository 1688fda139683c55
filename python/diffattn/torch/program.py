"""A compiled FX graph that is called with the graph's inputs and gives its outputs."""

from __future__ import annotations

import ctypes
import operator
import weakref
from collections.abc import Callable, Sequence

import torch

from .. import text_cache
from ..arrays import CODES, Result, owned
from ..errors import CompileError
from ..importing.weight_globals import with_weights
from ..runtime import Diagnostic, Executable
from . import tensors
from .facts import as_arguments
from .graph import Prepared
from .graph_key import graph_key
from .lowering import lower
from .source import describe
from .weights import WeightSets, global_name

#: For `refresh`: Dynamo's graphs have no other handle.
_ALIVE: weakref.WeakSet = weakref.WeakSet()
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class GraphProgram:
    """`prepared`, compiled. Inputs of the graph whose places are in `weights` are bound and packed once, if they are floats of known
    size; the others are arguments of each call."""

    def __init__(self, prepared: Prepared, weights: Sequence[int] = (), *, target="cpu", threads=None, cache=True, name="module"):
        self._results, self.mlir, self._programs = prepared.results, "", None
        _ALIVE.add(self)
        if not any(result.kind == "result" for result in prepared.results):
            return  # nothing is computed
        self._check_types(prepared)
        self._constants = [one.constant for one in prepared.inputs if one.place is None]
        self._places, self._weight_places, bound, names, constant = [], [], [], {}, prepared.count
        for number, one in enumerate(prepared.inputs):
            place = one.place
            if place is None:
                place, constant = constant, constant + 1
            if (one.place is None or place in weights) and _is_weight(one.value):
                names[number] = global_name(len(bound))
                bound.append(one)
                self._weight_places.append(place)
            else:
                self._places.append(place)
        self.mlir = _text(prepared.module, names, name, cache)
        self._programs = WeightSets(lambda: Executable(self.mlir, target=target, threads=threads, cache=cache, name=name), bound)
        types, gives = self._programs.signature
        self._of_weights, self._of_arguments = _gather(self._weight_places), _gather(self._places)
        codes = [CODES[type_.dtype] for type_ in types]
        is_tensor = [isinstance(one.value, torch.Tensor) for number, one in enumerate(prepared.inputs) if number not in names]
        self._codes = (ctypes.c_int32 * len(codes))(*(code if tensor else -1 for code, tensor in zip(codes, is_tensor)))
        self._numbers = [(number, code) for number, code in enumerate(codes) if not is_tensor[number]]
        self._count = len(gives)

    @property
    def diagnostics(self) -> list[Diagnostic]:
        return self._programs.diagnostics if self._programs is not None else []

    @property
    def applied(self) -> list[Diagnostic]:
        return self._programs.applied if self._programs is not None else []

    @property
    def num_weight_sets(self) -> int:
        """How many sets of weights have packed forms now."""
        return self._programs.count if self._programs is not None else 0

    def refresh(self) -> None:
        if self._programs is not None:
            self._programs.refresh()

    def __call__(self, values: Sequence) -> list:
        """The outputs of the graph for its inputs, which must be of the types and sizes that it was made for."""
        given, free = self._call(values) if self._programs is not None else ([], None)
        return [self._output(result, values, given, free) for result in self._results]

    def _call(self, values: Sequence) -> tuple:
        if self._constants:
            values = [*values, *self._constants]
        executable, given = self._programs.get(self._of_weights(values)), self._of_arguments(values)
        packed = as_arguments(given, self._codes)
        alive = [tensors.fill_number(packed[number], given[number], code) for number, code in self._numbers]
        results = executable.call_packed("main", packed, len(given), self._count)
        del alive, given  # not before the call
        return results, executable.free

    @staticmethod
    def _output(result, values, given, free):
        if result.kind != "result":
            return values[result.value] if result.kind == "input" else result.value
        made = given[result.value]
        # The memory of a result is taken once, however often the result is given back.
        if isinstance(made, Result):
            if result.dtype is None:
                made = owned(made, free).item()
            else:
                made = tensors.taken(made, free, result.dtype)
                made = made if result.order is None else made.permute(result.order)
            given[result.value] = made
        return made

    @staticmethod
    def _check_types(prepared: Prepared) -> None:
        for node in prepared.module.graph.nodes:
            values = node.meta.get("val")
            for value in values if isinstance(values, (tuple, list)) else [values]:
                if isinstance(value, torch.Tensor) and value.dtype not in tensors.CODE_OF:
                    known, what = ", ".join(map(str, tensors.CODE_OF)), node.name if node.op == "placeholder" else node.target
                    raise CompileError(f"{describe(node)}{what}: expected elements of {known}, but got {value.dtype}; fallback='eager' "
                                       "runs this graph in PyTorch")


def _text(module, weights: dict[int, str], name: str, cache) -> str:
    """The graph as text: from the cache, where it lies under what it follows from, else by torch-mlir."""
    key = graph_key(module, weights) if cache is not False else None
    text = text_cache.read(key, cache) if key else None
    if text is None:
        text = with_weights(lower(module), weights)
        if key:
            text_cache.keep(key, f"text of {name}, a graph of PyTorch", text, cache)
    return text


def refresh() -> None:
    """Reads the weights of every compiled graph anew at its next call. Needed only for weights that are tensors of inference mode, or
    that were written to behind PyTorch's back (by NumPy, or through `.data`): they have no version that would tell."""
    for program in list(_ALIVE):
        program.refresh()


def _gather(places: Sequence[int]) -> Callable[[Sequence], tuple]:
    """What gives the values at these places."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda values: tuple(values[place] for place in places)


def _is_weight(value) -> bool:
    return (isinstance(value, torch.Tensor) and value.dtype in _FLOATS and all(isinstance(n, int) and n > 0 for n in value.shape))
