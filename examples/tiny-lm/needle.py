"""A needle in a haystack: a sentence that names a city, another sentence, and the first one once more.

What the needle is worth to a model is how many bits fewer it needs for the name when it comes again, against the same text without the
first mention. This says so for each factor of λ, as a mean over several names, and writes a report of the last one, whose slider and maps
show the same.

    python examples/tiny-lm/needle.py [REPORT.html]
"""
from __future__ import annotations

import pathlib
import sys
import warnings

import numpy as np

from diffattn import maps
from diffattn.output import write_files

HERE = pathlib.Path(__file__).resolve().parent
NEEDLE, HAY = "And the name of the city was", "And the people went out in the morning.\n"
NAMES = ("Hebron", "Gilead", "Ashkelon", "Samaria", "Nineveh", "Damascus", "Bethel", "Shiloh", "Tyre", "Gath", "Ramah", "Babylon")
FACTORS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)


def inspect(text: str, name: str) -> tuple[maps.Maps, np.ndarray]:
    """The maps, and for each factor the bits of the name that the text ends with."""
    inspected, tokens = maps.inspect(HERE, text + name, factors=FACTORS), 1
    while "".join(inspected.tokens[-tokens:]).strip() != name:
        tokens += 1
    return inspected, np.array([run.bits[-tokens:].sum() for run in inspected.runs])


def main(report: str | None) -> None:
    warnings.simplefilter("ignore")
    worth, needed = [], []
    for name in NAMES:
        inspected, bits = inspect(f"{NEEDLE} {name}.\n{HAY}{NEEDLE} ", name)
        needed.append(bits)
        worth.append(inspect(f"{HAY}{NEEDLE} ", name)[1] - bits)
    print("factor of λ   bits for the name   bits that the needle saves")
    for factor, bits, saved in zip(FACTORS, np.mean(needed, axis=0), np.mean(worth, axis=0)):
        print(f"{factor:<11}   {bits:17.2f}   {saved:26.2f}")
    if report:
        write_files([(report, maps.page(inspected))])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
