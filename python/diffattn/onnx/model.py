"""An ONNX model as a function."""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from ..explain import Explanation
from ..explain_times import explain_function
from ..importing.function import Imported, ImportedFunction, as_given
from ..importing.options import CodeOptions
from .files import read_model
from .lowering import lower


def read(path: str) -> Imported:
    """The model in a file, in upstream dialects."""
    return lower(read_model(path))


class Model:
    """A compiled ONNX model, made by `diffattn.onnx.load`. `inputs` and `outputs` are those of the model: `name`, `dtype` (NumPy) and
    `sizes`, where a text names a size that may differ from call to call."""

    def __init__(self, imported: Imported, options: CodeOptions, name: str):
        self._function = ImportedFunction(imported, options, name)
        self.inputs, self.outputs = self._function.arguments, self._function.results
        #: Why attention was not fused or is no kernel, and what was: as of `diffattn.runtime.Executable`.
        self.diagnostics, self.applied = self._function.diagnostics, self._function.applied
        #: The model as text of MLIR.
        self.mlir = self._function.mlir

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """A table of what each attention was compiled to (docs/python.md). With the arguments of a call, makes that call several times, and adds
        how long each product and attention takes, beside what this machine reaches (docs/seeing.md)."""
        return explain_function(self, args, kwargs)

    def __call__(self, *args, **kwargs):
        given = self._arranged(args, kwargs)
        results = as_given(self._function.call(given), given)
        return results[0] if len(results) == 1 else tuple(results)

    def _arranged(self, args, kwargs) -> list:
        names = [value.name for value in self.inputs]
        if len(args) > len(names):
            raise InputError(f"expected at most {len(names)} arguments, {_list(names)}, but got {len(args)}")
        given = dict(zip(names, args))
        for name, value in kwargs.items():
            if name not in names:
                raise InputError(f"expected arguments among {_list(names)}, but got {name!r}")
            if name in given:
                raise InputError(f"{name}: expected it once, but got it by place and by name")
            given[name] = value
        missing = [name for name in names if name not in given]
        if missing:
            raise InputError(f"expected arguments {_list(names)}, but {_list(missing)} is missing")
        return [given[name] for name in names]


def _list(names) -> str:
    return ", ".join(names) or "none"
