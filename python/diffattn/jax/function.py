"""A function of JAX or of StableHLO as compiled code."""

from __future__ import annotations

import warnings
from typing import Any

from ..explain import Explanation
from ..explain_times import explain_function
from ..importing.function import Imported, ImportedFunction, Value, sizes_of, views_of
from ..importing.options import CodeOptions
from ..runtime import Diagnostic
from .stablehlo import lower

#: For how many sets of sizes a function keeps compiled code.
MOST_SETS = 32


class CompiledFunction:
    """A function compiled by `diffattn.jax.compile` or `diffattn.jax.load`: call it like the function. Where sizes are symbols, there is
    compiled code, with packed weights, for each of the `MOST_SETS` sets of sizes that came last."""

    def __init__(self, source, options: CodeOptions):
        self._source, self._options = source, options
        #: Types and sizes of arguments, in the order of their leaves.
        self.inputs: list[Value] = source.arguments
        #: The one that was called last stands last.
        self._functions: dict[tuple, ImportedFunction] = {}
        self._text, self._warned = "", False
        if not self.symbols:
            self._function(tuple(value.sizes for value in self.inputs), source.own_weak_types)

    @property
    def symbols(self) -> list[str]:
        """Sizes that calls decide."""
        return list(dict.fromkeys(size for value in self.inputs for size in value.sizes if isinstance(size, str)))

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """Why attention was not fused or is no kernel: as of `diffattn.runtime.Executable`, for all code that was compiled until now."""
        return [one for function in self._functions.values() for one in function.diagnostics]

    @property
    def applied(self) -> list[Diagnostic]:
        """The attentions that were fused, and the kernel of each attention, for all these sets of sizes."""
        return [one for function in self._functions.values() for one in function.applied]

    @property
    def mlir(self) -> str:
        """The module that was compiled last, as text of MLIR; empty before the first call, if sizes are symbols."""
        return self._text

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """A table of what each attention was compiled to (docs/python.md). With the arguments of a call, makes that call several times, and adds
        how long each product and attention takes, beside what this machine reaches (docs/seeing.md)."""
        return explain_function(self, args, kwargs)

    def __call__(self, *args, **kwargs):
        given = self._source.flatten(args, kwargs)
        views = views_of(self.inputs, given)
        sizes_of(self.inputs, views)
        function = self._function(tuple(view.shape for view in views), self._source.weak_types(given))
        return self._source.unflatten(function.call(views), given)

    def _function(self, shapes: tuple, weak_types: tuple | None) -> ImportedFunction:
        function = self._functions.get((shapes, weak_types))
        if function is None:
            function = ImportedFunction(import_with(self._source, shapes, weak_types), self._options, self._source.name)
            self._text = function.mlir
        self._functions[shapes, weak_types] = self._functions.pop((shapes, weak_types), function)
        if len(self._functions) > MOST_SETS:
            del self._functions[next(iter(self._functions))]
            if not self._warned:
                self._warned = True
                warnings.warn(f"{self._source.name} was called with more than {MOST_SETS} sets of sizes: code for those that came longest "
                              "ago is given up, and made again when they come back; pad arguments to few sizes", RuntimeWarning, stacklevel=3)
        return function


def import_with(source, shapes, weak_types) -> Imported:
    """The module of `source`, for arguments of these shapes and weak types, in upstream dialects."""
    return lower(source.module(shapes, weak_types), source.name, source.arguments, shapes)
