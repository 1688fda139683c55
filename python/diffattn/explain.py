"""Explanation of what each attention of a module was compiled to: `applied` and `diagnostics` by place, as a table or as JSON.

    print(explain(compiled))     of what diffattn.compile, onnx.load, jax.compile or runtime.Executable gave
    print(timed(lambda: f(x)))   with times, and with products (explain_times.py)
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from .text import printable_name

if TYPE_CHECKING:
    from .roof import Roof

_KERNEL = re.compile(r"is one kernel: \[(.*)\]", re.S)
_FUNCTION = re.compile(r"\bfunc\.func (?:private |public )?@(?:\"([^\"]+)\"|([\w$.-]+))")
_OP = "diffattn.attention"
#: The parts of a program that runs partly in PyTorch are joined by this: lines are counted in each of them.
_NEXT_PART = "// -----"


@dataclass(frozen=True)
class Kernel:
    """name   of the schedule (docs/spec.md#schedules): "cpu_prefill"
    when      what calls it is for: "max_queries = 8, min_keys = 9"; empty: for those that none before it takes
    options   how it is cut, as the schedule has it
    """

    name: str
    when: str
    options: str


@dataclass(frozen=True)
class Times:
    """How long an op takes in a call of what is explained.

    calls    how often it runs
    ms       of all of them together
    gflops   10^9 operations a second; None where they are not counted (docs/seeing.md says what is)
    gbs      10^9 bytes a second of what it reads and writes; None likewise
    share    of the time, what the roof that is nearer takes; above 1 where caches hold what it reads; None where there is no roof for it
    bound    which roof that is: "compute" or "memory"; empty: none
    """

    calls: int
    ms: float
    gflops: float | None
    gbs: float | None
    share: float | None
    bound: str

    def __add__(self, other: Times) -> Times:
        """Times of both ops, at one place: sums, and rates weighted by time."""
        ms = self.ms + other.ms

        def rate(one: float | None, two: float | None) -> float | None:
            return None if one is None or two is None or not ms else (one * self.ms + two * other.ms) / ms

        return Times(self.calls + other.calls, ms, rate(self.gflops, other.gflops), rate(self.gbs, other.gbs), rate(self.share, other.share),
                     self.bound if self.ms >= other.ms else other.bound)


@dataclass(frozen=True)
class Row:
    """One attention, or what could be one; with times also one product, or all else that a program does.

    place      "model.mlir:3:8"; empty if it is not known
    function   of the module; empty if the module's text is not known
    is_raised  whether it was found in other ops; else it was written as diffattn.attention, or is none
    kernels    that it became, the first that takes a call computes it; none: it is no kernel
    said       why it is not fused or no kernel, and what else the compiler said
    op         "attention", "product" or "other"
    sizes      "gemm ?x256 by 768x256 f32": the op with the sizes that its code is made for; empty without times
    time       None: it was not timed, or did not run
    """

    place: str
    function: str
    is_raised: bool
    kernels: tuple[Kernel, ...]
    said: tuple[str, ...]
    op: str = "attention"
    sizes: str = ""
    time: Times | None = None


@dataclass(frozen=True)
class Explanation:
    """`rows` in the order of the module, and with times the roof that they are beside. `str()` is a table."""

    rows: tuple[Row, ...]
    roof: Roof | None = None

    def json(self) -> str:
        """A list with an object for each row, with the names of its fields."""
        return json.dumps([asdict(row) for row in self.rows], indent=2)

    def __str__(self) -> str:
        if not self.rows:
            return "no attention was found"
        lines = [("place", "function", *(_TIMES if self.roof else ()), "attention", "kernels")]
        lines += [(row.place or "?" * (row.op != "other"), row.function, *(_words(row) if self.roof else ()), *_became(row)) for row in self.rows]
        widths = [max(map(len, column)) for column in zip(*lines)]
        out = []
        for line, row in zip(lines, (None, *self.rows)):
            out.append("  ".join([*(word.ljust(width) for word, width in zip(line[:-1], widths)), line[-1]]).rstrip())
            out += [f"    {said}" for said in (row.said if row else ())]
        if self.roof:
            out.append(f"roof of {self.roof.threads} thread{'s' * (self.roof.threads > 1)}: {self.roof.gflops:.1f} GFLOP/s of f32, "
                       f"{self.roof.gbs:.1f} GB/s of memory")
        return "\n".join(printable_name(line) for line in out)


_TIMES = ("op", "calls", "ms", "GFLOP/s", "GB/s", "of roof")


def _words(row: Row) -> tuple[str, ...]:
    """The texts of a row in the columns of times."""
    if row.time is None:
        return (row.sizes or row.op, "", "", "", "", "")

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.1f}"

    share = "" if row.time.share is None else f"{row.time.share:.0%} of {row.time.bound}"
    return (row.sizes or row.op, str(row.time.calls), f"{row.time.ms:.3f}", number(row.time.gflops), number(row.time.gbs), share)


def _became(row: Row) -> tuple[str, str]:
    if row.op != "attention":
        return "", ""
    return ("raised" if row.is_raised else "written" if row.kernels else "not fused",
            "; ".join(kernel.name + (f" ({kernel.when})" if kernel.when else "") for kernel in row.kernels) or "none")


#: A timed op: "attention" or "product", its sizes, place and function, and how long it takes.
Span = tuple[str, str, str, str, Times]


def explain(compiled: Any, text: str | None = None, spans: Iterable[Span] = ()) -> Explanation:
    """The explanation of anything with `applied` and `diagnostics`; `text` is the module that it was compiled from, by default its `mlir`.
    `spans` are timed ops."""
    text = getattr(compiled, "mlir", "") if text is None else text
    lines = [] if _NEXT_PART in text else text.splitlines()
    functions = _functions(lines)
    found: dict[str, list] = {}
    for one in (*compiled.applied, *compiled.diagnostics):
        if one.category != "diffattn-cache":
            found.setdefault(one.location, []).append(one)
    rows, times = [], {}
    for op, sizes, place, function, time in spans:
        if op == "product":
            rows.append(Row(place, function, False, (), (), op, sizes, time))
        else:
            found.setdefault(place, [])
            times[place] = (sizes, times[place][1] + time) if place in times else (sizes, time)
    for place, said in found.items():
        kernels = [kernel for one in said if one.name == "SelectSchedule" and one.kind == "passed" for kernel in _kernels(one.message)]
        # An attention that was raised has the place of what it took the place of, or of an op that then was joined with it.
        is_raised = any(one.name == "Raised" for one in said) or bool(kernels and lines and _OP not in _text_at(lines, place))
        others = [one.message for one in said if not (one.kind == "passed" and one.name in ("SelectSchedule", "Raised"))]
        # A place whose code is compiled for several sizes may repeat a message.
        rows.append(Row(place, _function_at(functions, place), is_raised, tuple(dict.fromkeys(kernels)), tuple(dict.fromkeys(others)), "attention",
                        *times.get(place, ("", None))))
    return Explanation(tuple(_joined(sorted(rows, key=lambda row: _numbers(row.place)))))


def _joined(rows: list[Row]) -> list[Row]:
    """With one row for an attention whose raising and whose kernels were said of two places: the next of its function."""
    joined: list[Row] = []
    for row in rows:
        before = joined[-1] if joined else None
        if before and before.function and before.function == row.function and before.is_raised and row.is_raised and not before.kernels and row.kernels:
            joined[-1] = replace(before, kernels=row.kernels, said=(*before.said, *row.said), sizes=row.sizes, time=row.time)
        else:
            joined.append(row)
    return joined


def _text_at(lines: list[str], place: str) -> str:
    number, _ = _numbers(place)
    return lines[number - 1] if 0 < number <= len(lines) else ""


def _numbers(place: str) -> tuple[int, int]:
    """The line and the column; zeros if there are none."""
    found = re.search(r":(\d+):(\d+)$", place)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _functions(lines: list[str]) -> list[tuple[int, str]]:
    """Where functions begin, and their names."""
    found = ((number, _FUNCTION.search(line)) for number, line in enumerate(lines, 1) if "func.func" in line)
    return [(number, match[1] or match[2]) for number, match in found if match]


def _function_at(functions: list[tuple[int, str]], place: str) -> str:
    number, _ = _numbers(place)
    at = bisect.bisect_right(functions, (number, "\U0010ffff")) - 1
    return functions[at][1] if at >= 0 and number else ""


def _kernels(message: str) -> list[Kernel]:
    """The schedules of a remark, as MLIR prints a list of attributes."""
    listed = _KERNEL.search(message)
    return [_kernel(part) for part in _split(listed[1])] if listed else []


def _split(text: str) -> list[str]:
    """At commas that no bracket holds."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<[(") - (letter in ">])")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _kernel(text: str) -> Kernel:
    when = ""
    if text.startswith("#diffattn.when<"):
        when, _, text = text[len("#diffattn.when<") : -1].partition(" : ")
    name, _, options = text.removeprefix("#diffattn.").partition("<")
    return Kernel(name, when, options.removesuffix(">"))
