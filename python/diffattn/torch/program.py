"""A compiled FX graph that is called with the graph's inputs and gives its outputs."""

from __future__ import annotations

import ctypes
import operator
import weakref
from collections.abc import Callable, Sequence

import torch

from .. import text_cache
from ..arrays import CODES, owned
from ..errors import InputError
from ..runtime import Executable
from . import tensors
from .facts import as_arguments
from .graph import Prepared
from .graph_key import graph_key
from .lowering import lower
from .weights import WeightSets, global_name

#: For `refresh`: Dynamo's graphs have no other handle.
_ALIVE: weakref.WeakSet = weakref.WeakSet()
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class GraphProgram:
    """`prepared`, compiled. Inputs of the graph whose places are in `weights` are bound and packed once, if they are floats of known
    size; the others are arguments of each call."""

    def __init__(self, prepared: Prepared, weights: Sequence[int] = (), *, target="cpu", threads=None, cache=True, batch_invariant=None,
                 name="module"):
        self._results, self._changes, self._dtypes = prepared.results, prepared.changes, prepared.dtypes
        #: Ops that run in PyTorch: none, because the graph is compiled whole.
        self.uncompiled: list[str] = []
        _ALIVE.add(self)
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
        self.weight_sets = WeightSets(lambda: Executable(self.mlir, target=target, threads=threads, cache=cache, batch_invariant=batch_invariant,
                                                         name=name), bound)
        self.diagnostics, self.applied = self.weight_sets.diagnostics, self.weight_sets.applied
        types, gives = self.weight_sets.signature
        self._of_weights, self._of_arguments = _gather(self._weight_places), _gather(self._places)
        codes = [CODES[type_.dtype] for type_ in types]
        arguments = [one for number, one in enumerate(prepared.inputs) if number not in names]
        is_tensor = [isinstance(one.value, torch.Tensor) for one in arguments]
        self._codes = (ctypes.c_int32 * len(codes))(*(code if tensor else -1 for code, tensor in zip(codes, is_tensor)))
        self._numbers = [(number, code) for number, code in enumerate(codes) if not is_tensor[number]]
        self._count = len(gives)
        self._written = [place for place, type_ in zip(self._places, types) if type_.in_place]

    def refresh(self) -> None:
        self.weight_sets.refresh()

    def __call__(self, values: Sequence) -> list:
        """The outputs of the graph for its inputs, which must be of the types and sizes that it was made for. What it changes is changed."""
        if self._constants:
            values = [*values, *self._constants]
        bound, arguments = self.weight_sets.get(self._of_weights(values)), self._of_arguments(values)
        if not self._written:
            return self._call(bound, values, arguments)
        written = [values[place] for place in self._written]
        if not any(bound.shares_memory(tensor) for tensor in written):
            try:
                outputs = self._call(bound, values, arguments)
                torch.autograd.graph.increment_version(written)
                return outputs
            except InputError:  # what is written to has holes or shares memory with another argument
                pass
        apart = list(values)
        for place, tensor in zip(self._written, written):
            apart[place] = tensor.clone(memory_format=torch.contiguous_format)
        return self._call(bound, values, self._of_arguments(apart))

    def _call(self, bound, values: Sequence, arguments: tuple) -> list:
        packed = as_arguments(arguments, self._codes)
        alive = [tensors.fill_number(packed[number], arguments[number], code) for number, code in self._numbers]
        slots = bound.executable.call_packed("main", packed, len(arguments), self._count)
        del alive  # not before the call
        free = bound.executable.free
        # A result in the memory of an argument is that argument. Outputs are tensors of their own.
        made = [arguments[slot.argument] if slot.argument >= 0 else owned(slot, free).item() if dtype is None else tensors.taken(slot, free, dtype)
                for slot, dtype in zip(slots, self._dtypes)]
        outputs = [made[number].clone() if slots[number].argument >= 0 else made[number] for number, _ in self._results]
        outputs = [one if order is None else one.permute(order) for one, (_, order) in zip(outputs, self._results)]
        if self._changes:
            with torch.no_grad():
                for place, (number, _) in self._changes:
                    if made[number] is not values[place]:
                        values[place].copy_(made[number])
        return outputs


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
    """Returns a function that gives the values at these places as a tuple."""
    if len(places) > 8 and list(places) == list(range(places[0], places[-1] + 1)):
        # A slice takes less time where they are hundreds.
        begin, end = places[0], places[-1] + 1
        return lambda values: tuple(values[begin:end])
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda values: tuple(values[place] for place in places)


def _is_weight(value) -> bool:
    return (isinstance(value, torch.Tensor) and value.dtype in _FLOATS and all(isinstance(n, int) and n > 0 for n in value.shape))
