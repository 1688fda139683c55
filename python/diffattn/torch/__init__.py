"""diffattn beside PyTorch. Importing this registers `torch.ops.diffattn.attention` (docs/custom-op.md); the rest is imported when it
is asked for (docs/pytorch.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import op  # noqa: F401
from .registration import register_name

__all__ = ["Report", "backend", "compile", "refresh", "reports"]

if TYPE_CHECKING:
    from ..torch_front import compile
    from .backend import backend
    from .program import refresh
    from .graph_reports import Report, reports

register_name()


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
    if name in ("Report", "reports"):
        from . import graph_reports

        return getattr(graph_reports, name)
    raise AttributeError(f"module 'diffattn.torch' has no attribute {name!r}")
