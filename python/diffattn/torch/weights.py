"""Weights of compiled code that are tensors of PyTorch: used where they lie, packed once, and never out of date.

One graph of Dynamo serves every layer that looks alike, and does not say whose weights come. So there is a program for each set of
weights that came, all with the same code, and before a call each weight's storage, version, address and strides are compared with
those that the program was bound to: what changed is bound anew. A program goes when one of its weights does.
"""

from __future__ import annotations

import ctypes
import operator
import threading
import weakref
from collections.abc import Callable, Sequence

import torch

from ..arrays import Array
from ..runtime import Executable
from .graph import Input
from .tensors import CODE_OF, check, fill


def global_name(number: int) -> str:
    """What compiled code calls weight `number`."""
    return f"w{number}"


_storage, _address, _is_dense = torch.Tensor.untyped_storage, torch.Tensor.data_ptr, torch.Tensor.is_contiguous
_shape, _version = operator.attrgetter("shape"), operator.attrgetter("_version")


class _State:
    """What changes when the elements of tensors may have. Storages are kept, so that another one is not taken for them; tensors of
    inference mode have no version. It is compared in every call, so it asks each thing of all tensors at once."""

    def __init__(self, tensors: Sequence[torch.Tensor]):
        self._has_versions = not any(tensor.is_inference() for tensor in tensors)
        self._storages = list(map(_storage, tensors))
        self._rest = self._describe(tensors)

    def is_of(self, tensors: Sequence[torch.Tensor]) -> bool:
        return all(map(operator.is_, map(_storage, tensors), self._storages)) and self._describe(tensors) == self._rest

    def _describe(self, tensors) -> tuple:
        dense = list(map(_is_dense, tensors))
        # Dense ones have the strides of their shape.
        strides = [] if all(dense) else [tensor.stride() for tensor in tensors]
        versions = map(_version, tensors) if self._has_versions else (
            -1 if tensor.is_inference() else tensor._version for tensor in tensors)
        return list(versions), list(map(_address, tensors)), list(map(_shape, tensors)), dense, strides


class Bound:
    """A program, and the weights that it is bound to."""

    def __init__(self, executable: Executable, weights: Sequence[Input]):
        self.executable, self._weights = executable, weights
        self._state: _State | None = None
        self._copies: list = []
        self.owners: list = []

    def refresh(self) -> None:
        self._state = None

    def bind(self, tensors: Sequence[torch.Tensor]) -> None:
        if self._state is not None and self._state.is_of(tensors):
            return
        self._state = None
        for weight, tensor in zip(self._weights, tensors):
            check(weight.name, tensor, weight.value.dtype, weight.value.shape)
        state, dense = _State(tensors), [tensor.detach().contiguous() for tensor in tensors]
        arrays = (Array * len(dense))()
        for slot, tensor in zip(arrays, dense):
            fill(slot, tensor, CODE_OF[tensor.dtype])
        names = (ctypes.c_char_p * len(dense))(*[global_name(number).encode() for number in range(len(dense))])
        self.executable.bind_arrays(names, arrays)
        # What is not dense was copied.
        self._copies = [copy for copy, tensor in zip(dense, tensors) if copy.data_ptr() != tensor.data_ptr()]
        self._state = state


class WeightSets:
    """Programs by the weights that they are bound to.

    make      gives another program with the same code
    weights   what they are, in the order of their globals
    """

    def __init__(self, make: Callable[[], Executable], weights: Sequence[Input]):
        self._make, self._weights, self._lock = make, tuple(weights), threading.RLock()
        # Made now, so that what cannot be compiled is said before a call; the first weights get it.
        self._spare: Executable | None = make()
        self.diagnostics, self.applied = self._spare.diagnostics, self._spare.applied
        self.signature = self._spare.signature("main")
        self._sets: dict[tuple[int, ...], Bound] = {}

    @property
    def count(self) -> int:
        """How many sets of weights have a program now."""
        return len(self._sets)

    def get(self, tensors: Sequence[torch.Tensor]) -> Executable:
        """The program that is bound to these tensors as they are now."""
        if not self._weights:
            return self._spare
        key = tuple(map(id, tensors))
        bound = self._sets.get(key)
        if bound is None:
            bound = self._add(key, tensors)
        with self._lock:
            bound.bind(tensors)
        return bound.executable

    def refresh(self) -> None:
        """Binds all weights anew at their next call: for what changed without a version."""
        for bound in list(self._sets.values()):
            bound.refresh()

    def _add(self, key, tensors) -> Bound:
        with self._lock:
            bound = Bound(self._spare or self._make(), self._weights)
            self._spare = None
            sets = weakref.ref(self)

            def drop(_) -> None:
                here = sets()
                if here is not None:
                    here._sets.pop(key, None)

            # An identity is a tensor's as long as it lives: its end takes the entry away.
            bound.owners = [weakref.ref(tensor, drop) for tensor in tensors]
            self._sets[key] = bound
            return bound
