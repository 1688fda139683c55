"""Whether the packages that this needs are there, and in versions that were tried."""

from __future__ import annotations

import functools

from ..importing import requirements

#: What docs/pytorch.md lists: versions begin so. The first ones are those of the ordinary tests.
TRIED = {"torch": ("2.13.", "2.15."), "torch-mlir": ("20261001",)}


@functools.lru_cache(maxsize=None)
def require() -> None:
    """Raises LibraryError if torch-mlir cannot be imported, and warns once of versions that were not tried."""
    requirements.require("torch", TRIED)
