"""Fingerprint of everything but the request that a text depends on: build, weights and instruction set, as one short name."""

from __future__ import annotations

import hashlib
from pathlib import Path

from .. import __version__
from .model import PagedModel

_PART = 1 << 20


def fingerprint(model: PagedModel) -> str:
    """`fp_` and 16 hexadecimal digits. Reads all weights once."""
    digest = hashlib.sha256(__version__.encode())
    library = model.executable._lib.c._name
    for path in [Path(library), *sorted(model.sources, key=lambda path: path.name)]:
        digest.update(_of_file(path))
    for diagnostic in getattr(model.executable, "applied", ()):  # names the instruction set of each kernel
        digest.update(str(diagnostic).encode())
    return f"fp_{digest.hexdigest()[:16]}"


def _of_file(path: Path) -> bytes:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(_PART):
            digest.update(part)
    return digest.digest()
