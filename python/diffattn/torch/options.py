"""What both ways into the compiler take as options."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from .. import checks
from ..errors import UsageError


@dataclass(frozen=True)
class Options:
    """target     as for `Executable`; tensors lie in memory of the host
    threads    for each call; None: the runtime's default
    cache      whether compiled code is kept on disk, or a folder for it
    fallback   "eager": a graph that cannot be lowered runs in PyTorch, with a warning; None: it is an error
    """

    target: str = "cpu"
    threads: int | None = None
    cache: object = True
    fallback: str | None = None

    def __post_init__(self):
        checks.choice("fallback", self.fallback, (None, "eager"))
        checks.threads(self.threads)
        checks.text("target", self.target, "the name of a target")
        if self.target == "cuda" or self.target.startswith("cuda:"):
            raise UsageError(f"target: expected one that reads memory of the host, cpu or cuda-sim, but got {self.target!r}")

    @classmethod
    def of(cls, given) -> Options:
        """Options that a dict names."""
        if given is not None and not isinstance(given, dict):
            raise checks.wrong("options", "a dict", given)
        unknown = set(given or {}) - set(cls.__dataclass_fields__)
        if unknown:
            raise UsageError(f"options: expected names among {', '.join(cls.__dataclass_fields__)}, but got {', '.join(sorted(map(str, unknown)))}")
        return cls(**(given or {}))

    @property
    def of_code(self) -> dict:
        return {"target": self.target, "threads": self.threads, "cache": self.cache}


def warn_of_fallback(error: Exception) -> None:
    warnings.warn(f"a graph runs in PyTorch, because fallback='eager' and: {error}", RuntimeWarning, stacklevel=3)
