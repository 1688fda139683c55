"""How a folder's matrices are stored as integers: `quantization_config` of config.json (docs/models.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..text import shown
from .config import Config, ConfigError

METHOD = "diffattn"
#: The types that `quantize` takes, and the bits of their integers.
BITS = {"int8": 8, "int4": 4}
#: Groups have a multiple of so many numbers.
GROUP_UNIT = 8
MOST_GROUP = 1 << 20


@dataclass(frozen=True)
class Quantization:
    """Integers of `bits`, of which `group` neighbours in a row share a scale; `dtype` is the element type of what is multiplied
    with them, and of the matrices that are no integers."""

    bits: int
    group: int
    dtype: str

    def values(self) -> dict[str, object]:
        """The value of `quantization_config`."""
        return {"quant_method": METHOD, "bits": self.bits, "group_size": self.group, "dtype": self.dtype}


def scale_name(name: str) -> str:
    """The scales of the matrix `name`."""
    return name + "_scale"


def read_quantization(config: Config) -> Quantization | None:
    """The quantization of a config, or None where the weights are not quantized."""
    given = config.values.get("quantization_config")
    if given is None:
        return None
    method = given.get("quant_method") if isinstance(given, Mapping) else None
    if method != METHOD:
        got = f"quantization_config = {shown(given)}" if method is None else f"{shown(method)} in quantization_config"
        raise ConfigError(f"{config.source}: expected weights that are not quantized, or by {METHOD!r}, but got {got}")
    section = Config(given, f"{config.source}: quantization_config")
    bits = section.integer("bits")
    if bits not in BITS.values():
        raise section.fail("bits", " or ".join(map(str, sorted(BITS.values()))), bits)
    group = section.integer("group_size", minimum=GROUP_UNIT, maximum=MOST_GROUP)
    if group % GROUP_UNIT:
        raise section.fail("group_size", f"a multiple of {GROUP_UNIT}", group)
    return Quantization(bits, group, section.choice("dtype", ("f32", "f16", "bf16")))
