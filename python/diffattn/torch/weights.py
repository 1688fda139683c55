"""Weights of compiled code that are tensors of PyTorch: used where they lie, packed once, and never out of date.

One graph of Dynamo serves every layer that looks alike, and does not say whose weights come. So there is a program for each set of
weights that came, all with the same code, and before a call each weight's address and strides, and of matrices, which products pack,
storage and version, are compared with those that the program was bound to: what changed is bound anew. A program goes when one of its
weights does.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence

import torch

from ..arrays import Array
from ..runtime import Executable
from .facts import Facts
from .graph import Input
from .tensors import CODE_OF, check, fill


def global_name(number: int) -> str:
    """Name of weight `number` in compiled code."""
    return f"w{number}"


class Bound:
    """A program, and the weights that it is bound to."""

    def __init__(self, executable: Executable, weights: Sequence[Input]):
        self.executable, self._weights = executable, weights
        self._facts: Facts | None = None
        self._copies: list = []
        self._memory: set[int] = set()
        self.owners: list = []

    def refresh(self) -> None:
        self._facts = None

    def is_of(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Whether the program is bound to these tensors as they are now."""
        facts = self._facts
        return facts is not None and facts.still_hold(tensors)

    def bind(self, tensors: tuple[torch.Tensor, ...]) -> None:
        if self.is_of(tensors):
            return
        self._facts = None
        for weight, tensor in zip(self._weights, tensors):
            check(weight.name, tensor, weight.value.dtype, weight.value.shape)
        dense = [tensor.detach().contiguous() for tensor in tensors]
        in_place = {number for number, pair in enumerate(zip(dense, tensors)) if self._is_read_in_place(*pair)}
        facts = Facts(tensors, in_place)
        arrays = (Array * len(dense))()
        for slot, tensor in zip(arrays, dense):
            fill(slot, tensor, CODE_OF[tensor.dtype])
        names = (ctypes.c_char_p * len(dense))(*[global_name(number).encode() for number in range(len(dense))])
        self.executable.bind_arrays(names, arrays)
        # Tensors that are not dense were copied.
        self._copies = [copy for copy, tensor in zip(dense, tensors) if copy.data_ptr() != tensor.data_ptr()]
        self._memory = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self._facts = facts

    def _is_read_in_place(self, dense: torch.Tensor, tensor: torch.Tensor) -> bool:
        """Whether each call reads the elements that a weight has then. The runtime packs no vectors, and copies what is not aligned."""
        address = dense.data_ptr()
        return (dense.dim() < 2 and self.executable.ordinal is None and address == tensor.data_ptr()
                and address % dense.element_size() == 0)

    def shares_memory(self, tensor: torch.Tensor) -> bool:
        """Whether a weight lies in the storage of `tensor`."""
        return bool(self._memory) and tensor.untyped_storage().data_ptr() in self._memory


class WeightSets:
    """Programs by the weights that they are bound to.

    make      gives another program with the same code
    weights   what they are, in the order of their globals
    """

    def __init__(self, make: Callable[[], Executable], weights: Sequence[Input]):
        self._make, self._weights, self._lock = make, tuple(weights), threading.RLock()
        # Compiled now, so that its errors come before a call; the first weights get it.
        self._spare: Executable | None = make()
        self.diagnostics, self.applied = self._spare.diagnostics, self._spare.applied
        self.signature = self._spare.signature("main")
        self._sets: dict[tuple[int, ...], Bound] = {}
        # The set of the last call, which is mostly that of the next one too, behind the id of its first weight.
        self._last: tuple[int, Bound] | None = None
        self._without = None if self._weights else Bound(self._spare, ())

    @property
    def count(self) -> int:
        """Number of sets of weights that have a program now."""
        return len(self._sets)

    def get(self, tensors: tuple[torch.Tensor, ...]) -> Bound:
        """The program that is bound to these tensors as they are now."""
        if self._without is not None:
            return self._without
        first, last = id(tensors[0]), self._last
        if last is not None and last[0] == first and last[1].is_of(tensors):
            return last[1]
        key = tuple(map(id, tensors))
        bound = self._sets.get(key) or self._add(key, tensors)
        if not bound.is_of(tensors):
            with self._lock:
                bound.bind(tensors)
        self._last = first, bound
        return bound

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
                    here._last = None

            # An id is a tensor's as long as it lives: its end takes the entry away.
            bound.owners = [weakref.ref(tensor, drop) for tensor in tensors]
            self._sets[key] = bound
            return bound
