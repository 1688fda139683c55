"""A model from its folder: its graph is built, compiled and given its weights."""

from __future__ import annotations

import warnings

from . import checks, models
from .arguments import FilePath, Progress
from .checkpoint import DTYPES, Checkpoint, open_checkpoint
from .errors import CheckpointError
from .generation import CompiledModel, Timing
from .generation_config import read_defaults
from .text import printable_name, shown

__all__ = ["Model", "Timing", "build_graph", "load"]


_EMBEDDING = "model.embed_tokens.weight"


def load(directory: FilePath, target: str = "cpu", dtype: str | None = None, *, threads: int | None = None,
         progress: Progress | None = None, cuda_driver: FilePath | None = None, batch_invariant: bool | None = None) -> Model:
    """The model in a directory, compiled; `dtype` (f32, bf16, f16) is that of the weights unless given. `progress(done, total)`
    is called between weights, with the bytes that have been bound or copied to the GPU, and those of all. `cuda_driver` is
    libcuda.so.1, where the system's loader finds none. `batch_invariant` asks that a row does not depend on its batch; None asks
    for it where it costs little (docs/numerics.md)."""
    return Model(open_checkpoint(directory), target, dtype, threads, progress, cuda_driver, batch_invariant)


def _shown(names: list[str]) -> str:
    return ", ".join(map(printable_name, names[:4])) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


#: Parts of names that belong to what a model was wrapped in, and what wraps it so.
_WRAPPERS = {"_orig_mod": "torch.compile", "module": "DataParallel or DistributedDataParallel", "_fsdp_wrapped_module": "FSDP",
             "_checkpoint_wrapped_module": "checkpoint_wrapper"}


def _other_name(missing: list[str], names: list[str]) -> str:
    """A file's name of one of the missing weights: with parts of a wrapper, with another prefix, or without the first part. Empty: no name
    is like one of them."""
    unwrapped = {".".join(part for part in name.split(".") if part not in _WRAPPERS): name for name in names}
    for name in missing:
        if name in unwrapped:
            part = next(part for part in unwrapped[name].split(".") if part in _WRAPPERS)
            return (f"; the file has {shown(unwrapped[name])}, with the '{part}.' of {_WRAPPERS[part]}: save the state_dict of the model "
                    "inside, or its tensors without that part of their names")
    for name in missing[:8]:  # others are named alike, and files have many tensors
        first, _, rest = name.partition(".")
        # Whole parts of a name alone, and enough of them that no other weight is meant.
        for ending, lacks in ((name, ""), (rest, f"{first}.")):
            for other in names if "." in ending else ():
                if other == ending or other.endswith(f".{ending}"):
                    prefix = other[: len(other) - len(ending)]
                    difference = " and ".join([f"with the prefix {shown(prefix)}"] * bool(prefix) + [f"without {lacks!r}"] * bool(lacks))
                    return f"; the file has {shown(other)}, {difference}: save its tensors under the names that are expected"
    return ""


def _check_weights(checkpoint: Checkpoint, module: models.Module, kind: str) -> None:
    """Says what the loader would say of names, shapes and types, without the wait for the compiler."""
    wanted = module.file_types()
    missing = [name for name in wanted if name not in checkpoint.tensors]
    if missing:
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise CheckpointError(f"{checkpoint.directory}: expected the weights of {kind}, but {shown(missing[0])}{more} missing"
                              f"{_other_name(missing, list(checkpoint.tensors))}")
    for name, (shape, elem) in wanted.items():
        tensor = checkpoint.tensors[name]
        if tensor.shape != tuple(shape):
            raise CheckpointError(f"{tensor.file}: weight {shown(name)}: expected shape {list(shape)}, but got {list(tensor.shape)}")
        if elem == "i8" and tensor.dtype != "I8":
            raise CheckpointError(f"{tensor.file}: weight {shown(name)}: expected element type i8, but got {shown(tensor.dtype)}")
        if elem != "i8" and tensor.dtype not in (*DTYPES, "F64"):
            raise CheckpointError(f"{tensor.file}: weight {shown(name)}: expected element type {elem} or another float, but got "
                                  f"{shown(tensor.dtype)}")


def _leftover(checkpoint: Checkpoint, module: models.Module) -> list[str]:
    """Tensors that the model does not use. Those that follow from the config, or from others, are none."""
    used = set(module.file_names())
    tied = "lm_head.weight" not in used and _EMBEDDING in used
    return [name for name in checkpoint.tensors
            if name not in used and not name.endswith("rotary_emb.inv_freq") and not (tied and name == "lm_head.weight")]


def build_graph(checkpoint: Checkpoint, dtype: str | None = None, page_rows: int | None = None, inspect: bool = False) -> models.Module:
    """The graph of a checkpoint's model, whose weights are all there with the right shapes; with `page_rows` that of a decoder whose
    caches lie in pages of so many tokens, with `inspect` that of one whose attention is looked at. Warns of tensors that it does not use: the config may describe a smaller model than the
    file holds."""
    config_file = str(checkpoint.directory / "config.json")
    dtype = checks.choice("dtype", dtype, (None, *models.FLOATS))
    module = models.build(checkpoint.config, dtype or checkpoint.dtype, config_file, page_rows, inspect)
    if "lm_head.weight" not in module.file_names() and _EMBEDDING not in checkpoint.tensors and "lm_head.weight" in checkpoint.tensors:
        module.read_from(_EMBEDDING, "lm_head.weight")  # the file has this one of a tied pair
    _check_weights(checkpoint, module, models.model_type(models.Config(checkpoint.config, config_file)))
    leftover = _leftover(checkpoint, module)
    if leftover:
        warnings.warn(f"{checkpoint.directory}: {len(leftover)} of {len(checkpoint.tensors)} tensors are not used, because "
                      f"config.json describes a model without them: {_shown(leftover)}")
    return module


class Model(CompiledModel):
    def __init__(self, checkpoint: Checkpoint, target: str = "cpu", dtype: str | None = None,
                 threads: int | None = None, progress: Progress | None = None, cuda_driver: FilePath | None = None,
                 batch_invariant: bool | None = None) -> None:
        from .runtime import Executable

        self.module = build_graph(checkpoint, dtype)
        self.checkpoint, self.dtype = checkpoint, dtype or checkpoint.dtype
        # Errors in its files are raised before it is compiled.
        defaults = read_defaults(checkpoint.directory, checkpoint.config)
        executable = Executable(str(self.module), target=target, weights=[str(f) for f in checkpoint.files], threads=threads,
                                progress=progress, cuda_driver=cuda_driver, batch_invariant=batch_invariant)
        config_file = str(checkpoint.directory / "config.json")
        super().__init__(executable, checkpoint.directory, checkpoint.config,
                         models.model_type(models.Config(checkpoint.config, config_file)), defaults)
