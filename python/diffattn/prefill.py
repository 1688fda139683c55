"""Prefills on a device: prompts of a shape that comes again are computed by one graph.

    with prefills.run(ids, lengths, new_caches) as (logits, caches):
        ...  # decode steps

A graph has fixed arrays, so it comes with caches of its own, which belong to one run until it is over.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from .calls import CompiledCode
from .errors import RunError

#: Graphs that wait for their shape to come again. Each holds caches and a workspace on the device.
MOST_GRAPHS = 4
#: Shapes that are known to have come.
MOST_SHAPES = 256

Shape = tuple[int, ...]


class _Prefill:
    """A captured call of `prefill` for ids of one shape, and its arrays."""

    def __init__(self, executable: CompiledCode, ids: np.ndarray, lengths: np.ndarray, caches: list) -> None:
        self.ids, self.lengths, self.caches = ids.copy(), lengths.copy(), caches
        self.graph = executable.capture("prefill", self.ids, self.lengths, *caches)

    def __call__(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The logits, which the next run overwrites."""
        self.ids[:], self.lengths[:] = ids, lengths
        return self.graph()[0]


class Prefills:
    """The prefills of a decoder. On a device the first one of a shape is launched kernel by kernel, as it may be the only one; the
    second is captured, and launched as one graph from then on."""

    def __init__(self, executable: CompiledCode) -> None:
        self.executable = executable
        #: Why prefills are launched kernel by kernel; None where they are not, or where none was to be captured yet.
        self.fallback_reason: str | None = None
        self._shapes: OrderedDict[Shape, None] = OrderedDict()
        self._idle: OrderedDict[Shape, _Prefill] = OrderedDict()

    @contextmanager
    def run(self, ids: np.ndarray, lengths: np.ndarray, new_caches: Callable[[], list]) -> Iterator[tuple[np.ndarray, list]]:
        """The logits of a prefill, and the caches that it filled: those of `new_caches`, or of an earlier run. They may be used and
        changed until the block ends, and not after it."""
        prefill = self._idle.pop(ids.shape, None)  # no other run has it from here on
        if prefill is not None:
            logits = prefill(ids, lengths)
        elif self._is_known(ids.shape):
            prefill, logits = self._capture(ids, lengths, new_caches)
        if prefill is None:
            logits, *caches = self.executable.call("prefill", ids, lengths, *new_caches())
            yield logits, caches
            return
        try:
            yield logits, prefill.caches
        finally:
            if not prefill.graph.fallback_reason:
                self._keep(ids.shape, prefill)

    def _is_known(self, shape: Shape) -> bool:
        """Whether a prefill of this shape is to be captured, as one has been before."""
        if not self.executable.has_device or self.fallback_reason is not None:
            return False
        known = shape in self._shapes
        self._shapes[shape] = None
        self._shapes.move_to_end(shape)
        if len(self._shapes) > MOST_SHAPES:
            self._shapes.popitem(last=False)
        return known

    def _capture(self, ids: np.ndarray, lengths: np.ndarray, new_caches: Callable[[], list]) -> tuple[_Prefill | None, np.ndarray | None]:
        """A prefill that is captured, and its logits; None where its arrays find no room."""
        try:
            prefill = _Prefill(self.executable, ids, lengths, new_caches())
            logits, reason = prefill(ids, lengths), prefill.graph.fallback_reason
        except RunError as error:
            prefill, logits, reason = None, None, str(error)
            self._idle.clear()
        if reason:
            self.fallback_reason = reason
            warnings.warn(f"prefills are launched kernel by kernel, not as one graph: {reason}")
        return prefill, logits

    def _keep(self, shape: Shape, prefill: _Prefill) -> None:
        self._idle[shape] = prefill
        self._idle.move_to_end(shape)
        while len(self._idle) > MOST_GRAPHS:
            self._idle.popitem(last=False)
