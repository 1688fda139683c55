"""Reads the keys of a config.json; every wrong one becomes an error that says what was expected and what came."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigError
from ..text import shown

_MISSING = object()
# Larger sizes than any model has, but far from overflow in a product of three of them.
LARGEST = 1 << 20
MOST_LAYERS = 4096
# Numbers become float32 in a graph: its largest, and its smallest that keeps all digits.
LARGEST_FLOAT, SMALLEST_FLOAT = 3.4028234663852886e38, 1.1754943508222875e-38


class Config:
    """A mapping whose values are checked as they are read."""

    def __init__(self, values: Mapping[str, Any], source: str = "config.json") -> None:
        if not isinstance(values, Mapping):
            raise ConfigError(f"{source}: expected an object, but got {type(values).__name__}")
        self.values, self.source = values, source

    def fail(self, key: str, expected: str, got: Any) -> ConfigError:
        return ConfigError(f"{self.source}: expected '{key}' to be {expected}, but got {shown(got)}")

    def _read(self, key: str, default: Any, expected: str) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is _MISSING:
                raise ConfigError(f"{self.source}: expected '{key}' to be {expected}, but it is missing")
            return default
        return value

    def integer(self, key: str, default: Any = _MISSING, minimum: int = 1, maximum: int = LARGEST) -> int:
        expected = f"an integer from {minimum} to {maximum}"
        value = self._read(key, default, expected)
        if value is default and default is not _MISSING:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.fail(key, expected, value)
        return value

    def depth(self, key: str, default: Any = _MISSING) -> int:
        """A number of layers."""
        return self.integer(key, default, maximum=MOST_LAYERS)

    def number(self, key: str, default: Any = _MISSING, above: float = -math.inf, at_most: float = LARGEST_FLOAT) -> float:
        """A number that float32 holds."""
        expected = "a finite number" + (f" above {above:g}" if above > -math.inf else "")
        expected += f" and at most {at_most}" if at_most < LARGEST_FLOAT else ""
        value = self._read(key, default, expected)
        if value is default and default is not _MISSING:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(key, expected, value)
        try:
            number = float(value)
        except OverflowError:
            raise self.fail(key, expected, value) from None
        if not math.isfinite(number) or not above < number <= at_most:
            raise self.fail(key, expected, value)
        if number and not SMALLEST_FLOAT <= abs(number) <= LARGEST_FLOAT:
            raise self.fail(key, expected + " that float32 holds", value)
        return number

    def flag(self, key: str, default: bool) -> bool:
        value = self._read(key, default, "true or false")
        if not isinstance(value, bool):
            raise self.fail(key, "true or false", value)
        return value

    def choice(self, key: str, choices: Sequence[str], default: Any = _MISSING) -> str:
        expected = "one of " + ", ".join(choices)
        value = self._read(key, default, expected)
        if not isinstance(value, str) or value not in choices:
            raise self.fail(key, expected, value)
        return value

    def section(self, key: str) -> Config | None:
        """An object inside of the config, or None where it is absent or null."""
        value = self.values.get(key)
        return None if value is None else Config(value, f"{self.source}: {key}")

    def divides(self, key: str, divisor: int, of: str, number: int) -> None:
        if number % divisor:
            raise self.fail(key, f"a divisor of {of} = {number}", divisor)
