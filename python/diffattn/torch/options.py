"""Options of both ways into the compiler, and the packages that they need."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass

from .. import checks
from ..errors import UsageError
from ..importing import requirements
from ..importing.options import CodeOptions

#: Prefixes of the versions that are tested, as in docs/pytorch.md. The first ones are those of the ordinary tests.
TRIED = {"torch": ("2.13.", "2.15."), "torch-mlir": ("20261001",)}


@dataclass(frozen=True)
class Options(CodeOptions):
    """fallback   "eager": what PyTorch does not trace, or with `whole` does not compile as one graph, runs in PyTorch, with a warning; None:
               it is an error
    whole      whether a graph must be compiled as one; else what is not compiled runs in PyTorch, with a warning"""

    fallback: str | None = None
    whole: bool = False

    def __post_init__(self):
        checks.choice("fallback", self.fallback, (None, "eager"))
        checks.flag("whole", self.whole)
        super().__post_init__()

    @classmethod
    def of(cls, given) -> Options:
        """Options that a dict names."""
        if given is not None and not isinstance(given, dict):
            raise checks.wrong("options", "a dict", given)
        unknown = set(given or {}) - set(cls.__dataclass_fields__)
        if unknown:
            raise UsageError(f"options: expected names among {', '.join(cls.__dataclass_fields__)}, but got {', '.join(sorted(map(str, unknown)))}")
        return cls(**(given or {}))


def warn_of_fallback(error: Exception) -> None:
    warnings.warn(f"a graph runs in PyTorch, because fallback='eager' and: {error}", RuntimeWarning, stacklevel=3)


@functools.lru_cache(maxsize=None)
def require() -> None:
    """Raises LibraryError if torch-mlir cannot be imported, and warns once of versions that were not tried."""
    requirements.require("torch", TRIED)
