"""Graph builders: a config goes in, ordinary MLIR comes out. docs/models.md states what the functions take and give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import checks
from ..errors import UsageError
from ..text import shown
from . import diff_v1, diff_v2, diffllama, edifice, motif, multihead, phi4flash, timm_vit
from .config import Config, ConfigError
from .mlir_text import FLOATS, Module
from .quantization import Quantization, read_quantization

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
MOST_PAGE_ROWS = 1 << 16


def build(config: Mapping[str, Any], dtype: str = "f32", source: str = "config.json", page_rows: int | None = None,
          inspect: bool = False) -> Module:
    """The module of the model that `config` describes, with weights of `dtype` (f32, bf16 or f16). With `page_rows` that of a decoder
    whose caches lie in pages of so many tokens; with `inspect` that of a decoder with the entry of that name alone."""
    checked = Config(config, source)
    if dtype not in FLOATS:
        raise UsageError(f"expected dtype to be one of {', '.join(FLOATS)}, but got {dtype!r}")
    read_quantization(checked)  # a method that is not known is the first thing to say
    kind = model_type(checked)
    if inspect:
        if page_rows is not None:
            raise UsageError(f"page_rows: expected none with inspect, which has no caches, but got {shown(page_rows)}")
        if kind not in DECODERS:
            raise checked.fail("model_type", f"one of {', '.join(DECODERS)}, whose attention can be looked at", kind)
        return BUILDERS[kind](checked, dtype, inspect=True)
    if page_rows is None:
        return BUILDERS[kind](checked, dtype)
    if kind not in DECODERS:
        raise checked.fail("model_type", f"one of {', '.join(DECODERS)}, whose caches lie in pages", kind)
    return BUILDERS[kind](checked, dtype, checks.integer("page_rows", page_rows, 1, MOST_PAGE_ROWS))


def model_type(config: Config) -> str:
    """The kind of model that a config names; timm's own files say `architecture`."""
    key = "architecture" if "model_type" not in config.values and "architecture" in config.values else "model_type"
    _check_nested(config, key)
    return config.choice(key, tuple(BUILDERS))


def _check_nested(config: Config, key: str) -> None:
    """Models of several parts have a config for each of them, and their weights under names for each: only texts' own are read."""
    nested = config.values.get("text_config")
    if not isinstance(nested, Mapping):
        return
    differ = [name for name, value in nested.items() if config.values.get(name) != value]
    if differ:
        kind = nested.get("model_type", config.values.get(key))
        raise ConfigError(f"{config.source}: expected the keys of one model, but got a 'text_config' of {shown(kind)} too, "
                          f"which has another {shown(differ[0])}; save that part alone, its text_config as config.json beside its weights")


__all__ = ["BUILDERS", "DECODERS", "Config", "ConfigError", "Module", "Quantization", "build", "model_type", "read_quantization"]
