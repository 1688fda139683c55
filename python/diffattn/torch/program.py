"""A compiled FX graph that is called with the graph's inputs and gives its outputs."""

from __future__ import annotations

import ctypes
import operator
import weakref
from collections.abc import Callable, Sequence

import torch

from .. import text_cache
from ..arrays import CODES, Result, owned
from ..errors import InputError
from ..runtime import Diagnostic, Executable
from . import tensors
from .facts import as_arguments
from .graph import Prepared
from .graph_key import graph_key
from .lowering import lower
from .source import refusal
from .weights import WeightSets, global_name

#: For `refresh`: Dynamo's graphs have no other handle.
_ALIVE: weakref.WeakSet = weakref.WeakSet()
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class Given:
    """What a call was given and gave: the graph's inputs, the results of compiled code, which `free` frees, and its arguments."""

    def __init__(self, values: Sequence, results: Sequence, free, arguments: tuple):
        self.values, self._results, self._free, self._arguments = values, list(results), free, arguments
        self._in_place: set[int] = set()

    def new(self, result):
        """What `result` describes: an argument itself where compiled code has made it in the argument's memory."""
        if result.kind == "made":
            return result.value.new(self.values)
        if result.kind != "result":
            return self.values[result.value] if result.kind == "input" else result.value
        made = self._results[result.value]
        # The memory of a result is taken once, however often the result is given back.
        if isinstance(made, Result):
            if made.argument >= 0:
                made = self._arguments[made.argument]
                self._in_place.add(result.value)
            elif result.dtype is None:
                made = owned(made, self._free).item()
            else:
                made = tensors.taken(made, self._free, tensors.part_type(result.dtype))
            self._results[result.value] = made
        made = made if result.order is None else made.permute(result.order)
        return torch.view_as_complex(made) if result.dtype is not None and result.dtype.is_complex and not made.is_complex() else made

    def output(self, result):
        """As `new`, but no argument that compiled code has changed: a tensor with its elements."""
        made = self.new(result)
        return made.clone() if result.kind == "result" and result.value in self._in_place else made


class GraphProgram:
    """`prepared`, compiled. Inputs of the graph whose places are in `weights` are bound and packed once, if they are floats of known
    size; the others are arguments of each call."""

    def __init__(self, prepared: Prepared, weights: Sequence[int] = (), *, target="cpu", threads=None, cache=True, batch_invariant=None,
                 name="module"):
        self._results, self._changes, self.mlir, self._programs = prepared.results, prepared.changes, "", None
        #: What runs in PyTorch: nothing.
        self.uncompiled: list[str] = []
        _ALIVE.add(self)
        if not any(result.kind == "result" for result in [*prepared.results, *(new for _, new in prepared.changes)]):
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
        written = {number for number, one in enumerate(prepared.inputs) if one.written}
        self.mlir = _text(prepared.module, names, written, name, cache)
        self._programs = WeightSets(lambda: Executable(self.mlir, target=target, threads=threads, cache=cache, batch_invariant=batch_invariant,
                                                       name=name), bound)
        types, gives = self._programs.signature
        self._of_weights, self._of_arguments = _gather(self._weight_places), _gather(self._places)
        codes = [CODES[type_.dtype] for type_ in types]
        arguments = [one for number, one in enumerate(prepared.inputs) if number not in names]
        is_tensor = [isinstance(one.value, torch.Tensor) for one in arguments]
        self._codes = (ctypes.c_int32 * len(codes))(*(code if tensor else -1 for code, tensor in zip(codes, is_tensor)))
        self._numbers = [(number, code) for number, code in enumerate(codes) if not is_tensor[number]]
        self._count = len(gives)
        self._complex = {number for number, one in enumerate(arguments) if isinstance(one.given, torch.Tensor) and one.given.is_complex()}
        self._written = [place for place, type_ in zip(self._places, types) if type_.in_place]

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
        """The outputs of the graph for its inputs, which must be of the types and sizes that it was made for. What it changes is changed."""
        if self._programs is None:
            return self._outputs(Given(values, (), None, ()))
        if self._constants:
            values = [*values, *self._constants]
        bound, arguments = self._programs.get(self._of_weights(values)), self._of_arguments(values)
        if not self._written:
            return self._outputs(self._call(bound, values, arguments))
        written = [values[place] for place in self._written]
        if not any(bound.shares_memory(tensor) or tensor.is_conj() or tensor.is_neg() for tensor in written):
            try:
                outputs = self._outputs(self._call(bound, values, arguments))
                torch.autograd.graph.increment_version(written)
                return outputs
            except InputError:  # what is written to has holes or shares memory with another argument
                pass
        apart = list(values)
        for place, tensor in zip(self._written, written):
            apart[place] = tensor.clone(memory_format=torch.contiguous_format)
        return self._outputs(self._call(bound, values, self._of_arguments(apart)))

    def _call(self, bound, values: Sequence, arguments: tuple) -> Given:
        real = self._real(arguments) if self._complex else arguments
        packed = as_arguments(real, self._codes)
        alive = [tensors.fill_number(packed[number], arguments[number], code) for number, code in self._numbers]
        results = bound.executable.call_packed("main", packed, len(arguments), self._count)
        del alive, real  # not before the call
        return Given(values, results, bound.executable.free, arguments)

    def _real(self, arguments: tuple) -> tuple:
        """The arguments with pairs of real numbers in place of complex ones."""
        return tuple(tensors.as_pairs(one) if number in self._complex else one for number, one in enumerate(arguments))

    def _outputs(self, given: Given) -> list:
        outputs = [given.output(result) for result in self._results]
        if self._changes:
            # All are read before one is changed.
            changed = [(given.values[place], result) for place, result in self._changes]
            changed = [(old, given.output(result).clone() if result.kind == "input" else given.output(result))
                       for old, result in changed if given.new(result) is not old]
            with torch.no_grad():
                for old, new in changed:
                    old.copy_(new)
        return outputs

    @staticmethod
    def _check_types(prepared: Prepared) -> None:
        for node in prepared.module.graph.nodes:
            values = node.meta.get("val")
            for value in values if isinstance(values, (tuple, list)) else [values]:
                if isinstance(value, torch.Tensor) and value.dtype not in tensors.CODE_OF:
                    known, what = ", ".join(map(str, tensors.CODE_OF)), node.name if node.op == "placeholder" else node.target
                    raise refusal(node, f"{what}: expected elements of {known}, but got {value.dtype}; fallback='eager' "
                                        "runs this graph in PyTorch")


def _text(module, weights: dict[int, str], written: set[int], name: str, cache) -> str:
    """The graph as text: from the cache, where it lies under what it follows from, else by torch-mlir."""
    key = graph_key(module, weights, written) if cache is not False else None
    text = text_cache.read(key, cache) if key else None
    if text is None:
        text = lower(module, weights, written)
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
    if len(places) > 8 and list(places) == list(range(places[0], places[-1] + 1)):
        # A slice takes less time where they are hundreds.
        begin, end = places[0], places[-1] + 1
        return lambda values: tuple(values[begin:end])
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda values: tuple(values[place] for place in places)


def _is_weight(value) -> bool:
    return (isinstance(value, torch.Tensor) and value.dtype in _FLOATS and all(isinstance(n, int) and n > 0 for n in value.shape))
