"""Graph builders: a config goes in, ordinary MLIR comes out. docs/models.md states what the functions take and give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import diff_v1, diff_v2, diffllama
from .config import Config, ConfigError
from .mlir_text import FLOATS, Module

BUILDERS = {
    "diff_v1": diff_v1.build,
    "diff_v2": diff_v2.build,
    "diffllama": diffllama.build,
}
DECODERS = ("diff_v1", "diff_v2", "diffllama")


def build(config: Mapping[str, Any], dtype: str = "f32", source: str = "config.json") -> Module:
    """The module of the model that `config` describes, with weights of `dtype` (f32, bf16 or f16)."""
    checked = Config(config, source)
    if dtype not in FLOATS:
        raise ValueError(f"expected dtype to be one of {', '.join(FLOATS)}, but got {dtype!r}")
    return BUILDERS[checked.choice("model_type", tuple(BUILDERS))](checked, dtype)


__all__ = ["BUILDERS", "DECODERS", "Config", "ConfigError", "Module", "build"]
