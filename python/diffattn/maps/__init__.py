"""Attention maps of differential transformers, made again from what the fused attention used (docs/maps.md).

    inspect(directory, prompt)     the maps of a decoder in a directory
    record(model, ...)             those of one call of a patched model of PyTorch
    Maps                           what is found: maps, figures of heads, and what other factors of lambda give
    page, npz, png, bertviz        of Maps: a report, arrays, a picture, and what BertViz takes
"""

from typing import TYPE_CHECKING

from .attention import Attention, Norm
from .collection import Maps, Run
from .decoders import inspect
from .export import arrays, bertviz, npz, png, require_png
from .figures import FIGURES, Summary, summarize
from .page import check_text, page

if TYPE_CHECKING:
    from .torch_models import record

__all__ = ["FIGURES", "Attention", "Maps", "Norm", "Run", "Summary", "arrays", "bertviz", "check_text", "inspect", "npz", "page", "png", "record",
           "require_png", "summarize"]


def __getattr__(name: str) -> object:
    if name == "record":  # needs PyTorch
        from .torch_models import record

        return record
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
