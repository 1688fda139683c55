"""ONNX models, compiled: docs/onnx.md. The package onnx is imported when a model is loaded."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from .. import checks
from ..importing import requirements
from ..importing.options import CodeOptions

if TYPE_CHECKING:
    from .model import Model

__all__ = ["load"]

#: Prefixes of the versions that are tested, as in docs/onnx.md.
TRIED = {"onnx": ("1.23.",), "torch-mlir": ("20261001",)}


@functools.lru_cache(maxsize=None)
def require() -> None:
    """Raises LibraryError if onnx or torch-mlir cannot be imported, and warns once of versions that were not tried."""
    requirements.require("onnx", TRIED)


def load(path: str | os.PathLike[str], *, target: str = "cpu", threads: int | None = None,
         cache: bool | str | os.PathLike[str] = True, batch_invariant: bool | None = None) -> Model:
    """A function that computes what the ONNX model in the file `path` does.

    target    as of `diffattn.runtime.Executable`; arguments lie in memory of the host all the same
    threads   for each call; None: the runtime's default
    cache     whether compiled code is kept on disk, or a folder for it
    batch_invariant as of `diffattn.runtime.Executable`: False lets products go to the library, where that is faster

    The function takes arrays by place or by the names of the model's inputs: NumPy's, PyTorch's tensors, or anything with DLPack.
    It gives one array, or a tuple of several: tensors if an argument is one, else arrays of NumPy. Weights stay where they are: those
    in files of external data are mapped.

    Raises InputError for a file that cannot be read, IRError for one that holds no sound model, WeightsError for external data that
    is missing, too short or outside of the model's folder, CompileError for ops and types that cannot be lowered, and LibraryError
    if onnx or torch-mlir is missing.
    """
    place, options = checks.path("path", path), CodeOptions(target=target, threads=threads, cache=cache, batch_invariant=batch_invariant)
    require()
    from .model import Model, read

    return Model(read(place), options, os.path.basename(place))
