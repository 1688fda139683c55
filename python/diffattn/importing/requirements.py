"""Whether the packages that a way into the compiler needs are there, and in versions that were tried."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import warnings

from ..errors import LibraryError

#: Packages that are not made for every Python that this one is for.
_LEAST_PYTHON = {"torch-mlir": (3, 10), "jax": (3, 11), "jaxlib": (3, 11), "starlette": (3, 11), "uvicorn": (3, 10)}


def require(extra: str, tried: dict[str, tuple[str, ...]]) -> None:
    """Raises LibraryError if a package cannot be imported, and warns of versions that were not tried.

    extra   what pip knows the packages by: diffattn[extra]
    tried   by package how its versions begin that the documents list
    """
    for name in tried:
        try:
            importlib.import_module(name.replace("-", "_"))
        except ImportError as error:
            reason = f"expected the package {name}, but importing it gave: {error}; "
            least = _LEAST_PYTHON.get(name, (3, 9))
            if sys.version_info < least:
                raise LibraryError(reason + f"{name} is made for Python {least[0]}.{least[1]} and later, and this is "
                                   f"{sys.version_info[0]}.{sys.version_info[1]}") from None
            raise LibraryError(reason + f"pip install 'diffattn[{extra}]'") from None
    others = [f"{name} {importlib.metadata.version(name)}" for name, begins in tried.items()
              if not importlib.metadata.version(name).startswith(begins)]
    if others:
        known = ", ".join(f"{name} {' or '.join(begin.rstrip('.') for begin in begins)}" for name, begins in tried.items())
        warnings.warn(f"diffattn was tried with {known}, but this is {', '.join(others)}", RuntimeWarning, stacklevel=4)
