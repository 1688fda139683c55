"""Arguments of an imported function that become weights, globals with an extern value, which the runtime packs once; and arguments that it
may change."""

from __future__ import annotations

import re
from collections.abc import Collection


def with_weights(text: str, weights: dict[int, str], written: Collection[int] = ()) -> str:
    """The module with the arguments of `main` whose numbers are in `weights` as globals of these names. The memory of arguments whose
    numbers are in `written` may be written to."""
    if not weights and not written:
        return text
    begin = text.index("func.func @main(") + len("func.func @main(")
    arguments, end = _split(text, begin)
    globals_, loads, kept = [], [], []
    for number, argument in enumerate(arguments):
        value, kind = (part.strip() for part in argument.split(":", 1))
        if number not in weights:
            kept.append(argument.strip() + (" {bufferization.writable = true}" if number in written else ""))
            continue
        globals_.append(f"ml_program.global private @{weights[number]}(#ml_program.extern<{kind}>) : {kind}\n  ")
        loads.append(f"\n    {value} = ml_program.global_load_const @{weights[number]} : {kind}")
    line_end = text.index("{\n", end) + 1
    start = text.rindex("\n", 0, begin) + 1
    return (text[:start] + "  " + "".join(globals_) + text[start:begin].lstrip() + ", ".join(kept) + text[end:line_end]
            + "".join(loads) + text[line_end:])


def _split(text: str, begin: int) -> tuple[list[str], int]:
    """The parts between commas outside of brackets, and where the closing bracket stands."""
    parts, depth, last = [], 0, begin
    for found in re.compile(r"[<(\[{>)\]},]").finditer(text, begin):
        sign, at = found[0], found.start()
        if sign in "<([{":
            depth += 1
        elif sign == "," and depth == 0:
            parts.append(text[last:at])
            last = at + 1
        elif sign == ")" and depth == 0:
            return parts + ([text[last:at]] if text[last:at].strip() else []), at
        elif sign in ">)]}":
            depth -= 1
    raise ValueError("expected a closing bracket behind the arguments")
