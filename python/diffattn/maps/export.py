"""Maps for other programs: NumPy's files, pictures, and what BertViz takes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .. import checks
from ..importing.requirements import require
from .collection import Maps, chosen_heads
from .page import check_text

if TYPE_CHECKING:
    import torch

#: Maps of each head that `bertviz` gives; the last two are the parts of D above and below 0, without their sign.
PARTS = ("a1", "a2", "difference", "positive", "negative")
#: Heads on one picture.
MOST_ROWS = 64


def arrays(maps: Maps, heads: Sequence[tuple[int, int]] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, by name (docs/maps.md)."""
    shown = chosen_heads(maps, heads)
    pairs = [maps.maps(*head) for head in shown]
    lam = np.stack([maps.attention(layer).lam_of(head) for layer, head in shown])
    a1, a2 = (np.stack([pair[i] for pair in pairs]) for i in (0, 1))
    entries = {"heads": np.array(shown, np.int64), "a1": a1, "a2": a2, "lambda": lam, "difference": a1 - lam[:, :, None] * a2,
               "tokens": np.array(maps.tokens), "layers": np.array(maps.layers), "limit": np.array(maps.limit)}
    if maps.largest_error is not None:
        entries["error"] = np.array(maps.largest_error)
    for layer, summary in zip(maps.layers, maps.summaries):
        entries[f"pictures_{layer}"] = summary.pictures
        entries |= {f"{name}_{layer}": values for name, values in summary.figures.items()}
    if maps.runs:
        entries |= {"factors": np.array([run.factor for run in maps.runs]), "bits": np.stack([run.bits for run in maps.runs]),
                    "next_log_p": np.stack([run.next_log_p for run in maps.runs])}
    return entries


def npz(maps: Maps, heads: Sequence[tuple[int, int]] | None = None) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays(maps, heads))
    return out.getvalue()


def require_png() -> None:
    """Raises LibraryError where `png` has no matplotlib."""
    require("viz", {"matplotlib": ("3.",)})


def png(maps: Maps, heads: Sequence[tuple[int, int]] | None = None) -> bytes:
    """A row a head: A1, A2 and D by one scale with 0 in its middle. Raises LibraryError without matplotlib."""
    require_png()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import FuncNorm
    from matplotlib.figure import Figure

    shown = chosen_heads(maps, heads)[:MOST_ROWS]
    figure = Figure(figsize=(10, 3.2 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), 3, squeeze=False)
    for row, (layer, head) in zip(axes, shown):
        drawn = [*maps.maps(layer, head), maps.difference(layer, head)]
        most = max(float(np.abs(part).max()) for part in drawn) or 1.0
        for place, part, name in zip(row, drawn, ("A1", "A2", "A1 − λA2")):
            # Purple below 0 and brown above, by square roots, as in the report.
            norm = FuncNorm((lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda x: np.sign(x) * x * x), -most, most)
            image = place.imshow(part, cmap="PuOr_r", norm=norm, interpolation="nearest")
            place.set_title(f"layer {layer}, head {head}: {name}", fontsize=9)
            place.set_xlabel("key")
            place.set_ylabel("query")
        figure.colorbar(image, ax=list(row), shrink=0.8)
    figure.suptitle(f"{maps.title}. {check_text(maps)}", fontsize=8, wrap=True)
    out = io.BytesIO()
    FigureCanvasAgg(figure).print_png(out)
    return out.getvalue()


def bertviz(maps: Maps, part: str = "difference") -> tuple[list[torch.Tensor], list[str]]:
    """A tensor `[1, H, T, K]` f32 a layer and the tokens, as `bertviz.head_view` and `model_view` take them. BertViz shows weights from 0
    up: what is below 0 in `difference` is not seen there, and is `negative`."""
    checks.choice("part", part, PARTS)
    import torch

    layers = []
    for attention in maps.attentions:
        layer = np.empty((1, attention.heads, attention.queries, attention.keys), np.float32)
        for head in range(attention.heads):
            a1, a2 = maps.maps(attention.layer, head)
            if part in ("a1", "a2"):
                layer[0, head] = a1 if part == "a1" else a2
                continue
            difference = a1 - attention.lam_of(head)[:, None] * a2
            layer[0, head] = {"difference": difference, "positive": np.maximum(difference, 0), "negative": np.maximum(-difference, 0)}[part]
        layers.append(torch.from_numpy(layer))
    return layers, list(maps.tokens)
