"""diffattn: differential attention, and the models built on it, compiled for this machine.

    diffattn.attention(q1, k1, q2, k2, v, lam, ...)    one attention on NumPy or DLPack arrays
    diffattn.load(directory)                           a model from its config.json and safetensors
    diffattn.bundle.load(directory)                    a compiled model, without the compiler
"""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["DiffAttnError", "attention", "bundle", "errors", "load"]

from . import errors
from .errors import DiffAttnError


def __dir__():
    return sorted({*globals(), *__all__})


def __getattr__(name: str):
    # Loaded when asked for: `diffattn build` and `diffattn info` need no compiled library.
    if name == "attention":
        from ._attention import attention

        return attention
    if name == "load":
        from .model import load

        return load
    if name == "bundle":
        import importlib

        return importlib.import_module(".bundle", __name__)
    raise AttributeError(f"module 'diffattn' has no attribute {name!r}")
