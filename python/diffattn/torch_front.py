"""`diffattn.compile`. It stands beside `diffattn.torch`, which imports PyTorch: that is for a call to do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any


def compile(module: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None, *, dynamic_shapes: Any = None,
            target: str = "cpu", threads: int | None = None, cache: bool | str | os.PathLike[str] = True,
            batch_invariant: bool | None = None, fallback: str | None = None, whole: bool = False) -> Any:
    """A function that computes what `module` does, without gradients.

    module          a torch.nn.Module on the CPU, usually after eval()
    args, kwargs    example arguments: tensors on the CPU, numbers, None, and tuples, lists and dicts of them. Calls must have the same
                    structure, and the same numbers and other values that are no tensors
    dynamic_shapes  as of torch.export: which sizes of arguments may differ from call to call
    target          as of `diffattn.runtime.Executable`; arguments lie in memory of the host all the same
    threads         for each call; None: the runtime's default
    cache           whether compiled code is kept on disk, or a folder for it
    batch_invariant as of `diffattn.runtime.Executable`: False lets products go to the library, where that is faster
    whole           whether the module must be compiled as one graph; else ops that are not compiled run in PyTorch, which one warning
                    and the result's `uncompiled` list with their lines
    fallback        "eager": where the module cannot be exported, or with `whole` not be lowered, it is returned as it is, with a warning

    The function takes and gives torch tensors. Weights are the module's own, read where they lie, and packed once; what is written into
    them later is seen by the next call (`refresh` says when not). Buffers and arguments that the module changes are changed.

    Raises CompileError for a module that cannot be exported, or with `whole` not be lowered, with the ATen op and its line, and
    LibraryError if torch-mlir is missing. Calls raise InputError for arguments of another structure, type or size, and RunError for indices that are outside.
    """
    from .torch.options import require

    require()
    from .torch.export import compile_module
    from .torch.options import Options

    options = Options(target=target, threads=threads, cache=cache, batch_invariant=batch_invariant, fallback=fallback, whole=whole)
    return compile_module(module, args, kwargs, dynamic_shapes, options)
