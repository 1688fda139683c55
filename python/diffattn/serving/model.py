"""A decoder whose caches lie in pages: its compiled functions, and what belongs to its folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .. import checks, files, models
from ..arguments import FilePath, Progress
from ..arrays import ValueType
from ..bundle import BundledCode
from ..calls import CompiledCode
from ..checkpoint import open_checkpoint, read_config, read_json
from ..errors import BundleError, RunError
from ..generation_config import read_defaults
from ..model import build_graph
from ..tokenizer import Tokenizer

#: Tokens of a page: a multiple of 32, so that decode steps read keys and values where they lie.
PAGE_ROWS = 64


class PagedModel:
    """`extend`, `score` and `decode` of docs/models.md, with the config and the tokenizer that belong to them.

    `kind` is the model_type; `context` the longest sequence that the model was made for, None where the config does not say;
    `sources` the files of its weights, and of a bundle its code.
    """

    def __init__(self, executable: CompiledCode, directory: Path, config: dict[str, Any], sources: Sequence[Path] = ()) -> None:
        source, self.sources = str(directory / "config.json"), list(sources)
        self.executable, self.directory, self.config = executable, directory, config
        self.kind = models.model_type(models.Config(config, source))
        self.defaults = read_defaults(directory, config)
        self.context: int | None = models.Config(config, source).integer("max_position_embeddings", None)
        arguments = executable.signature("decode")[0]
        caches = [argument for argument in arguments if argument.in_place]
        #: Whether sequences have states, in slots that calls name behind ids, positions and block_table.
        self.has_states = len(arguments) - len(caches) > 3
        # Keys and values of all tokens are the first two.
        self._paged, self._states = (caches[:2], caches[2:]) if self.has_states else (caches, [])
        self.page_rows = self._paged[0].shape[2]

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The folder's tokenizer; None if it has none: ids need no tokenizer."""
        path = self.directory / "tokenizer.json"
        return Tokenizer(path) if files.exists(path) else None

    @property
    def vocabulary(self) -> int:
        return self.executable.signature("decode")[1][0].shape[-1]

    @property
    def page_bytes(self) -> int:
        """Bytes of the keys and values of one page in all layers."""
        return _bytes_of_one(self._paged)

    @property
    def slot_bytes(self) -> int:
        """Bytes of the states of one sequence; 0 in models that have none."""
        return _bytes_of_one(self._states)

    def new_caches(self, pages: int, slots: int = 0) -> list[Any]:
        """Caches `[layers, pages, page_rows, heads, width]`, and behind them states `[layers, slots, ...]` of models that have some, on
        the device if the model runs on one."""
        pages, slots = checks.integer("pages", pages, 1), checks.integer("slots", slots, 1 if self.has_states else 0)
        try:
            return [self.executable.zeros([count if size is None else size for size in cache.shape], cache.dtype)
                    for caches, count in ((self._paged, pages), (self._states, slots)) for cache in caches]
        except (MemoryError, OverflowError, ValueError):  # NumPy refuses sizes that no address reaches with the second
            states = f" and states of {slots} sequences of {self.slot_bytes}" if self.has_states else ""
            raise RunError(f"expected memory for caches of {pages} pages of {self.page_bytes} bytes{states}, but the system has no more") from None

    def call(self, entry: str, *arrays: Any) -> Sequence[Any]:
        return self.executable.call(entry, *arrays)


def _bytes_of_one(caches: Sequence[ValueType]) -> int:
    """Bytes of a page or a slot in all caches of a kind."""
    return sum(int(np.prod([n for n in cache.shape if n is not None])) * cache.dtype.itemsize for cache in caches)


def load(directory: FilePath, target: str = "cpu", dtype: str | None = None, *, threads: int | None = None,
         progress: Progress | None = None, cuda_driver: FilePath | None = None) -> PagedModel:
    """The model in a directory, compiled for serving. On a CPU a sequence has the same bits in any batch (docs/numerics.md). The
    arguments are those of `diffattn.load`."""
    from ..runtime import Executable

    checkpoint = open_checkpoint(directory)
    module = build_graph(checkpoint, dtype, PAGE_ROWS)
    on_cpu = target.partition(":")[0] == "cpu"
    executable = Executable(str(module), target=target, weights=[str(f) for f in checkpoint.files], threads=threads,
                            progress=progress, cuda_driver=cuda_driver, batch_invariant=True if on_cpu else None)
    return PagedModel(executable, checkpoint.directory, checkpoint.config, checkpoint.files)


def load_bundle(directory: FilePath, *, weights: FilePath | None = None, threads: int | None = None, progress: Progress | None = None,
                cuda_driver: FilePath | None = None) -> PagedModel:
    """The model in a bundle that was written with pages (`diffattn bundle --paged`), whose code is run: open only what you trust."""
    directory = Path(checks.path("directory", directory))
    code = BundledCode(directory, weights=weights, threads=threads, cuda_driver=cuda_driver, progress=progress)
    if set(code.entries) != {"extend", "score", "decode"}:  # bundles with contiguous caches have other entries too
        raise BundleError(f"{directory}: expected a bundle with pages, which diffattn bundle --paged writes, but got one with "
                          f"{', '.join(code.entries)}")
    manifest = read_json(directory / "manifest.json")
    if not manifest["devices"] and manifest.get("batch_invariant") != "true":
        raise BundleError(f"{directory}: expected a bundle whose rows do not depend on their batch, as diffattn bundle --paged writes it, but "
                          "got another")
    named = [Path(file["path"]) for file in manifest["weight_files"]]
    weight_files = [directory / path if weights is None else Path(checks.path("weights", weights)) / path.name for path in named]
    return PagedModel(code, directory, read_config(directory), [directory / "model.so", *weight_files])
