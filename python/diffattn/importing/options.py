"""Options that every importer takes."""

from __future__ import annotations

from dataclasses import dataclass

from .. import checks
from ..errors import UsageError


@dataclass(frozen=True)
class CodeOptions:
    """target            as for `Executable`; arguments lie in memory of the host
    threads           for each call; None: the runtime's default
    cache             whether compiled code is kept on disk, or a folder for it
    batch_invariant   as for `Executable`: whether products keep one order of sums
    """

    target: str = "cpu"
    threads: int | None = None
    cache: object = True
    batch_invariant: bool | None = None

    def __post_init__(self):
        checks.threads(self.threads)
        if self.batch_invariant is not None:
            checks.flag("batch_invariant", self.batch_invariant)
        checks.text("target", self.target, "the name of a target")
        if self.target == "cuda" or self.target.startswith("cuda:"):
            raise UsageError(f"target: expected one that reads memory of the host, cpu or cuda-sim, but got {self.target!r}")

    @property
    def of_code(self) -> dict:
        return {"target": self.target, "threads": self.threads, "cache": self.cache, "batch_invariant": self.batch_invariant}

    @property
    def on_device(self) -> bool:
        return not self.target.startswith("cpu")
