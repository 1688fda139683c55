"""Graph builders: a config goes in, ordinary MLIR comes out. docs/models.md states what the functions take and give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError
from ..text import shown
from . import diff_v1, diff_v2, diffllama, edifice, motif, multihead, phi4flash, timm_vit
from .config import Config, ConfigError
from .mlir_text import FLOATS, Module

BUILDERS = {
    "diff_v1": diff_v1.build,
    "diff_v2": diff_v2.build,
    "diffllama": diffllama.build,
    "motif": motif.build,
    "phi4flash": phi4flash.build,
    "diff_multihead": multihead.build_multihead,
    "diff_attention": multihead.build_attention,
    "edifice_diff_transformer": edifice.build,
    "edifice_diff_attention": edifice.build_diff_attention,
    **dict.fromkeys(timm_vit.ARCHITECTURES, timm_vit.build),
}
DECODERS = ("diff_v1", "diff_v2", "diffllama", "motif", "phi4flash")


def build(config: Mapping[str, Any], dtype: str = "f32", source: str = "config.json") -> Module:
    """The module of the model that `config` describes, with weights of `dtype` (f32, bf16 or f16)."""
    checked = Config(config, source)
    if dtype not in FLOATS:
        raise UsageError(f"expected dtype to be one of {', '.join(FLOATS)}, but got {dtype!r}")
    _check_not_quantized(checked)
    return BUILDERS[model_type(checked)](checked, dtype)


def _check_not_quantized(config: Config) -> None:
    given = config.values.get("quantization_config")
    if given is None:
        return
    method = given.get("quant_method") if isinstance(given, Mapping) else None
    got = f"quantization_config = {shown(given)}" if method is None else f"{shown(method)} in quantization_config"
    raise ConfigError(f"{config.source}: expected weights that are not quantized, but got {got}")


def model_type(config: Config) -> str:
    """The kind of model that a config names; timm's own files say `architecture`."""
    key = "architecture" if "model_type" not in config.values and "architecture" in config.values else "model_type"
    return config.choice(key, tuple(BUILDERS))


__all__ = ["BUILDERS", "DECODERS", "Config", "ConfigError", "Module", "build", "model_type"]
