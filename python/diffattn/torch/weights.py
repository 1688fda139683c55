"""Weights of compiled code that are tensors of PyTorch: used where they lie, packed once, and never out of date.

One graph of Dynamo serves every layer that looks alike, and does not say whose weights come. So there is a program for each set of
weights that came, all with the same code, and before a call each weight's storage, version, address and strides are compared with
those that the program was bound to: what changed is bound anew. A program goes when one of its weights does.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence

import torch

from ..arrays import Array
from ..runtime import Executable
from .facts import Facts, identity
from .graph import Input
from .tensors import CODE_OF, as_pairs, check, fill


def global_name(number: int) -> str:
    """What compiled code calls weight `number`."""
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

    def bind(self, tensors: Sequence[torch.Tensor]) -> None:
        if self._facts is not None and self._facts.still_hold():
            return
        self._facts = None
        for weight, tensor in zip(self._weights, tensors):
            check(weight.name, tensor, weight.given.dtype, weight.given.shape)
        facts, dense = Facts(tensors), [as_pairs(tensor.detach()).contiguous() for tensor in tensors]
        arrays = (Array * len(dense))()
        for slot, tensor in zip(arrays, dense):
            fill(slot, tensor, CODE_OF[tensor.dtype])
        names = (ctypes.c_char_p * len(dense))(*[global_name(number).encode() for number in range(len(dense))])
        self.executable.bind_arrays(names, arrays)
        # What is not dense was copied.
        self._copies = [copy for copy, tensor in zip(dense, tensors) if copy.data_ptr() != tensor.data_ptr()]
        self._memory = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self._facts = facts

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
        # Made now, so that what cannot be compiled is said before a call; the first weights get it.
        self._spare: Executable | None = make()
        self.diagnostics, self.applied = self._spare.diagnostics, self._spare.applied
        self.signature = self._spare.signature("main")
        self._sets: dict[bytes, Bound] = {}
        # What came last, which mostly comes again: to compare identities takes less time than to hash one.
        self._last: tuple[bytes, Bound] | None = None
        self._without = None if self._weights else Bound(self._spare, ())

    @property
    def count(self) -> int:
        """How many sets of weights have a program now."""
        return len(self._sets)

    def get(self, tensors: tuple[torch.Tensor, ...]) -> Bound:
        """The program that is bound to these tensors as they are now."""
        if self._without is not None:
            return self._without
        key = identity(tensors)
        last = self._last
        if last is not None and last[0] == key:
            bound = last[1]
        else:
            bound = self._sets.get(key) or self._add(key, tensors)
            self._last = key, bound
        with self._lock:
            bound.bind(tensors)
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

            # An identity is a tensor's as long as it lives: its end takes the entry away.
            bound.owners = [weakref.ref(tensor, drop) for tensor in tensors]
            self._sets[key] = bound
            return bound
