"""The front door for PyTorch: docs/pytorch.md. Importing this imports no more than what is asked for."""

from __future__ import annotations

__all__ = ["backend", "compile", "refresh"]


def __getattr__(name: str) -> object:
    if name == "backend":
        from .backend import backend

        return backend
    if name == "compile":
        from .front import compile

        return compile
    if name == "refresh":
        from .program import refresh

        return refresh
    raise AttributeError(f"module 'diffattn.torch' has no attribute {name!r}")
