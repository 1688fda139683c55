"""diffattn beside PyTorch. Importing this registers `torch.ops.diffattn.attention` (docs/custom-op.md), if PyTorch is installed; the
rest is imported when it is asked for (docs/pytorch.md)."""

from __future__ import annotations

import importlib.util

__all__ = ["backend", "compile", "refresh"]

# Without PyTorch the call of `compile` says what to install.
if importlib.util.find_spec("torch") is not None:
    from . import op  # noqa: F401


def __getattr__(name: str) -> object:
    if name == "backend":
        from .backend import backend

        return backend
    if name == "compile":
        from ..torch_front import compile

        return compile
    if name == "refresh":
        from .program import refresh

        return refresh
    raise AttributeError(f"module 'diffattn.torch' has no attribute {name!r}")
