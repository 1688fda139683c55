"""Whether the packages that this needs are there, and in versions that were tried."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import sys
import warnings

from ..errors import LibraryError

#: What docs/pytorch.md lists: versions begin so.
TRIED = {"torch": "2.13.", "torch-mlir": "20261001"}


@functools.lru_cache(maxsize=None)
def require() -> None:
    """Raises LibraryError if torch-mlir cannot be imported, and warns once of versions that were not tried."""
    for name in ("torch", "torch_mlir"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            reason = f"expected the package {name.replace('_', '-')}, but importing it gave: {error}; "
            if sys.version_info < (3, 10):
                raise LibraryError(reason + "torch-mlir is made for Python 3.10 and later, and this is "
                                   f"{sys.version_info[0]}.{sys.version_info[1]}") from None
            raise LibraryError(reason + "pip install 'diffattn[torch]'") from None
    others = [f"{name} {importlib.metadata.version(name)}" for name, begin in TRIED.items()
              if not importlib.metadata.version(name).startswith(begin)]
    if others:
        tried = ", ".join(f"{name} {version.rstrip('.')}" for name, version in TRIED.items())
        warnings.warn(f"diffattn was tried with {tried}, but this is {', '.join(others)}", RuntimeWarning, stacklevel=3)
