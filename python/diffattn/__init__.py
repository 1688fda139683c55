"""diffattn: differential attention, and the models built on it, compiled for this machine.

    diffattn.attention(q1, k1, q2, k2, v, lam, ...)    one attention on NumPy or DLPack arrays
    diffattn.plain_attention(q, k, v, ...)             the same of a single map: softmax attention
    diffattn.PageTable(block_table, kv_len, ...)       pages of a cache, checked once for several attentions
    diffattn.load(directory)                           a model from its config.json and safetensors
    diffattn.quantize(directory, output, "int4")       the same with narrow weights, as another folder
    diffattn.maps.inspect(directory, prompt)           what its attention looks at
    diffattn.bundle.load(directory)                    a compiled model, without the compiler
    diffattn.compile(module, args)                     a torch.nn.Module, compiled; torch.compile(backend="diffattn") too
    diffattn.onnx.load(file)                           an ONNX model, compiled
    diffattn.jax.compile(function, *args)              a function of JAX, compiled; diffattn.jax.load(file): StableHLO
    diffattn.runtime.Executable(mlir, ...)             a module of your own
    diffattn.trace(file)                               what ran when, for a viewer of Chrome's traces
    diffattn.patch(model)                              a PyTorch model whose attention runs here; diffattn.unpatch(model)

Beside PyTorch, if it was imported before, and by `import diffattn.torch`: torch.ops.diffattn.attention.
"""

from __future__ import annotations

__all__ = ["DiffAttnError", "PageTable", "__version__", "attention", "bundle", "compile", "errors", "jax", "load", "maps", "onnx", "patch",
           "plain_attention", "runtime", "quantize", "trace", "unpatch"]

import sys
from typing import TYPE_CHECKING

from . import errors
from ._version import __version__
from .errors import DiffAttnError

if TYPE_CHECKING:
    from . import bundle, jax, maps, onnx, runtime
    from ._attention import attention, plain_attention
    from .model import load
    from .quantization import quantize
    from .sequence_tables import PageTable
    from .torch_front import compile
    from .torch.patch import patch, unpatch
    from .tracing import trace


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})


def __getattr__(name: str) -> object:
    # Loaded when asked for: `diffattn build` and `diffattn info` need no compiled library.
    if name in ("attention", "plain_attention"):
        from . import _attention

        globals()[name] = getattr(_attention, name)  # the next time without this function
        return globals()[name]
    if name == "PageTable":
        from .sequence_tables import PageTable

        return PageTable
    if name == "load":
        from .model import load

        return load
    if name == "quantize":
        from .quantization import quantize

        return quantize
    if name == "trace":
        from .tracing import trace

        return trace
    if name == "compile":
        from .torch_front import compile

        return compile
    if name in ("bundle", "jax", "maps", "onnx", "runtime"):
        import importlib

        return importlib.import_module(f".{name}", __name__)
    if name in ("patch", "unpatch"):
        import importlib

        return getattr(importlib.import_module(".torch.patch", __name__), name)
    raise AttributeError(f"module 'diffattn' has no attribute {name!r}")


# Not while PyTorch itself is being imported.
if hasattr(sys.modules.get("torch"), "compile"):
    try:
        from . import torch  # noqa: F401
    except errors.LibraryError:  # too old for the operator, which `import diffattn.torch` says
        pass
