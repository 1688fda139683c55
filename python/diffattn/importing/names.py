"""Names of weights as MLIR, safetensors files and the runtime take them."""

from __future__ import annotations

from collections.abc import Iterable

from ..text import printable_name


def weight_names(names: Iterable[str]) -> list[str]:
    """A name that a weight can have for each of `names`: the same if it can, and no two alike. `{}` would stand for a layer's number, and
    text holds no characters that cannot be printed."""
    taken, result = set(), []
    for name in names:
        own = printable_name(name).replace("\t", " ").replace("{}", "{ }").replace("\\", "/").replace('"', "'") or "weight"
        unique, count = own, 1
        while unique in taken:
            count += 1
            unique = f"{own}.{count}"
        taken.add(unique)
        result.append(unique)
    return result
