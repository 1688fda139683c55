"""A model from its folder: its graph is built, compiled and given its weights."""

from __future__ import annotations

from pathlib import Path

from . import models
from .checkpoint import Checkpoint, CheckpointError, open_checkpoint
from .generation import CompiledModel, Timing

__all__ = ["Model", "Timing", "build_graph", "load"]


def load(directory: str | Path, target: str = "cpu", dtype: str | None = None, *, threads: int | None = None,
         progress=None) -> Model:
    """The model in a directory, compiled; `dtype` (f32, bf16, f16) is that of the weights unless given. `progress(done, total)`
    is called between weights, with the bytes that have been bound or copied to the GPU, and those of all."""
    return Model(open_checkpoint(directory), target, dtype, threads, progress)


def build_graph(checkpoint: Checkpoint, dtype: str | None = None) -> models.Module:
    """The graph of a checkpoint's model, whose weights are all there: says at once how many are missing, where the loader would
    stop at the first."""
    config_file = str(checkpoint.directory / "config.json")
    module = models.build(checkpoint.config, dtype or checkpoint.dtype, config_file)
    missing = [name for name in module.file_names() if name not in checkpoint.tensors]
    if missing:
        kind = models.model_type(models.Config(checkpoint.config, config_file))
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{checkpoint.directory}: expected the weights of {kind}, but {missing[0]!r}{more} is missing")
    return module


class Model(CompiledModel):
    def __init__(self, checkpoint: Checkpoint, target: str = "cpu", dtype: str | None = None,
                 threads: int | None = None, progress=None) -> None:
        from .runtime import Executable

        self.checkpoint, self.dtype = checkpoint, dtype or checkpoint.dtype
        self.module = build_graph(checkpoint, dtype)
        executable = Executable(str(self.module), target=target, weights=[str(f) for f in checkpoint.files], threads=threads,
                                progress=progress)
        config_file = str(checkpoint.directory / "config.json")
        super().__init__(executable, checkpoint.directory, checkpoint.config,
                         models.model_type(models.Config(checkpoint.config, config_file)))
