"""A report as one HTML file: a template, and the data that its script draws. It loads nothing else, and asks no network."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .collection import Maps, chosen_heads
from .figures import CELLS, FIGURES, edges, pooled

#: Rows and columns of a map that is shown in full; of longer texts its cells are several tokens.
MOST_CELLS = 1024
_DATA = "<!-- data -->"


def page(maps: Maps, heads: Sequence[tuple[int, int]] | None = None) -> Iterator[bytes]:
    """The file piece by piece; `heads`, layers and heads, are shown in full, by default those with most negative mass."""
    template = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    before, after = template.split(_DATA)
    yield before.encode()
    shown, blobs = chosen_heads(maps, heads), {"pictures": _pictures(maps)}
    described = []
    for number, (layer, head) in enumerate(shown):
        description, blobs[f"map-{number}"] = _map(maps, layer, head)
        described.append(description)
    if maps.image is not None:
        blobs["image"] = np.ascontiguousarray(maps.image, np.uint8).tobytes()
    yield _script("data", "application/json", _json(_described(maps, described)))
    for name, blob in blobs.items():
        yield _script(name, "application/octet-stream", base64.b64encode(zlib.compress(blob, 6)).decode())
    yield after.encode()


def _script(name: str, kind: str, content: str) -> bytes:
    return f'<script id="{name}" type="{kind}">{content}</script>\n'.encode()


def _json(value: Any) -> str:
    """JSON that no text in it can end, as it stands in a script."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return text.encode("utf-8", "replace").decode()


def _numbers(values: Iterable[float | None], digits: int = 6) -> list[float | None]:
    """Numbers as JSON has them, which has no infinities."""
    return [round(float(value), digits) if value is not None and np.isfinite(value) else None for value in values]


def check_text(maps: Maps) -> str:
    """A sentence about how far maps are from those that the model used."""
    if maps.largest_error is None:
        return "What the model made of these maps is not known, so nothing was compared."
    return (f"Maps were compared with what the model used: values mixed by them are off from its own by at most {maps.largest_error:.2g} of what "
            f"is added up, and may be by {maps.limit:g}.")


def _described(maps: Maps, shown: list[dict]) -> dict[str, Any]:
    layers, first = [], 0
    for attention, summary in zip(maps.attentions, maps.summaries):
        layers.append({"layer": attention.layer, "heads": attention.heads, "first": first,
                       "most": _numbers(np.abs(summary.pictures).max((1, 2)), 8),
                       "figures": {name: _numbers(values) for name, values in summary.figures.items()}})
        first += attention.heads
    likeliest = maps.likeliest()
    runs = [{"factor": run.factor, "per_unit": _numbers([maps.bits_per_unit(run)])[0], "bits": _numbers(run.bits, 3),
             "next": _numbers(np.exp(run.next_log_p[likeliest]))} for run in maps.runs]
    picture = list(maps.summaries[0].pictures.shape[1:])
    return {"title": f"Attention maps of {maps.title}", "check": check_text(maps), "tokens": maps.tokens, "what": FIGURES, "layers": layers,
            "cells": CELLS if max(picture) == CELLS else max(picture), "picture": picture, "maps": shown, "runs": runs,
            "next": [maps.text_of(i) if maps.text_of else f"<{i}>" for i in likeliest],
            "unit": "token" if maps.characters is None else "character",
            "grid": maps.grid, "image": None if maps.image is None else list(maps.image.shape[:2])}


def _pictures(maps: Maps) -> bytes:
    """Pictures of all heads, a byte a cell: the root of its share of the head's largest magnitude, with its sign."""
    parts = []
    for summary in maps.summaries:
        most = np.abs(summary.pictures).max((1, 2), keepdims=True)
        share = summary.pictures / np.maximum(most, np.finfo(np.float32).tiny)
        parts.append(np.round(np.sign(share) * np.sqrt(np.abs(share)) * 127).astype(np.int8).tobytes())
    return b"".join(parts)


def _map(maps: Maps, layer: int, head: int) -> tuple[dict[str, Any], bytes]:
    """A1 and A2 as multiples of 1/65535 and D as multiples of its largest magnitude / 32767, two bytes a cell, one map after the
    other."""
    attention = maps.attention(layer)
    (a1, a2), lam = maps.maps(layer, head), attention.lam_of(head)
    difference = a1 - lam[:, None] * a2
    rows, columns = (edges(count, MOST_CELLS) for count in a1.shape)
    if (len(rows), len(columns)) != a1.shape:
        a1, a2, difference = (pooled(part, rows, columns) for part in (a1, a2, difference))
        lam = pooled(lam[:, None], rows, np.zeros(1, np.int64))[:, 0]
    most = float(np.abs(difference).max())
    planes = [np.round(np.clip(part, 0, 1) * 65535).astype("<u2") for part in (a1, a2)]
    planes.append(np.round(difference / (most or 1.0) * 32767).astype("<i2"))
    description = {"layer": layer, "head": head, "rows": len(rows), "columns": len(columns), "most": most, "lam": _numbers(lam),
                   "starts": [rows.tolist(), columns.tolist()]}
    return description, b"".join(plane.tobytes() for plane in planes)
