"""diffattn beside PyTorch. Importing this registers `torch.ops.diffattn.attention` (docs/custom-op.md); the rest is imported when it
is asked for (docs/pytorch.md)."""

from __future__ import annotations

from . import op  # noqa: F401

__all__ = ["backend", "compile", "refresh"]


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
