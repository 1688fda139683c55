"""Models of other libraries whose attention modules run `torch.ops.diffattn.attention` (docs/custom-op.md).

A module is replaced by its class alone: it stays the same object, with its weights, their names and its hooks.
"""

from __future__ import annotations

import importlib
import warnings

import torch

from ..checks import wrong
from ..errors import UsageError

#: The classes that are replaced, by module and name, and what replaces each.
_CLASSES = {
    ("transformers.models.diffllama.modeling_diffllama", "DiffLlamaAttention"): ("diffllama", "FusedDiffLlamaAttention"),
    ("timm.layers.diff_attention", "DiffAttention"): ("timm", "FusedDiffAttention"),
    ("timm.models.vision_transformer", "DiffParallelScalingBlock"): ("timm", "FusedDiffParallelScalingBlock"),
}


def patch(model: torch.nn.Module) -> list[str]:
    """Replaces every `DiffLlamaAttention` of transformers, `DiffAttention` and `DiffParallelScalingBlock` of timm in `model`,
    itself included, by a class that computes the same by `torch.ops.diffattn.attention`, and returns their names in
    `model.named_modules()`. It trains as before (docs/training.md). Attention weights are not computed; a call that would
    need dropout of them is refused. `unpatch(model)` undoes it.

    Warns once where a library's release was not tried (docs/custom-op.md).

    Raises UsageError, before anything is replaced, if there is none, if one does what the op does not, or if its forward has
    parameters that no tried release has.
    """
    modules = {}
    for name, module in _modules(model).items():
        place = _CLASSES.get((type(module).__module__, type(module).__name__))
        if place is not None:
            fused = getattr(importlib.import_module(f".fused.{place[0]}", __package__), place[1])
            if "forward" in vars(module):
                raise UsageError(f"model: expected modules with their class's forward, but {name or 'the model'!r} has one of its own, "
                                 "as hooks of other libraries set it; patch before they do")
            releases = importlib.import_module(".fused.releases", __package__)
            releases.check_forward(fused, name or "the model")
            fused.check(module, name or "the model")
            modules[name] = module, fused
    if not modules:
        raise _none_found(model)
    untried = {releases.library_of(fused): fused for _, fused in modules.values() if not releases.is_tried(fused)}
    for fused in untried.values():
        warnings.warn(releases.untried_warning(fused), stacklevel=2)
    for module, fused in modules.values():
        module.__class__ = fused
    return list(modules)


def unpatch(model: torch.nn.Module) -> list[str]:
    """Gives what `patch` replaced in `model` its own classes again and returns their names.

    Raises UsageError if there is none.
    """
    modules = {name: module for name, module in _modules(model).items() if hasattr(type(module), "unfused")}
    if not modules:
        raise UsageError(f"model: expected a module that was patched, but {type(model).__name__} has none")
    for module in modules.values():
        module.__class__ = type(module).unfused
    return list(modules)


def _none_found(model: torch.nn.Module) -> UsageError:
    names = " or ".join(f"{name} of {place.split('.')[0]}" for place, name in _CLASSES)
    message = f"model: expected a module with {names} that is not patched yet, but {type(model).__name__} has none"
    for name, module in model.named_modules():
        bases = [base for base in type(module).__mro__[1:] if (base.__module__, base.__name__) in _CLASSES]
        if bases and not hasattr(type(module), "unfused"):
            return UsageError(f"{message}: {name or 'the model'!r} is a {type(module).__name__}, a subclass of {bases[0].__name__}")
    return UsageError(message)


def _modules(model) -> dict[str, torch.nn.Module]:
    if not isinstance(model, torch.nn.Module):
        raise wrong("model", "a torch.nn.Module", model)
    return dict(model.named_modules())
