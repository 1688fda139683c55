"""diffattn beside PyTorch. Importing this registers `torch.ops.diffattn.attention` (docs/custom-op.md); the rest is imported when it
is asked for (docs/pytorch.md)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from . import op  # noqa: F401

__all__ = ["Report", "compile", "refresh", "reports"]

if TYPE_CHECKING:
    from ..torch_front import compile
    from .graph_reports import Report, reports
    from .program import refresh

_PLACES = {"Report": ".graph_reports", "compile": "..torch_front", "refresh": ".program", "reports": ".graph_reports"}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'diffattn.torch' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name], __name__), name)
