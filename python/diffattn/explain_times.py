"""Explanations with times: each product and attention of what a call runs, beside what this machine reaches.

    print(timed(lambda: f(x)))     of all compiled code that it runs: of torch.compile's graphs too
"""

from __future__ import annotations

import io
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import checks, roof, tracing
from .errors import RunError
from .explain import Explanation, Row, explain
from .importing.requirements import require
from .runtime import Executable, threads_by_default

#: Runs that count at least and at most, and the seconds after which there are no more of them.
_LEAST, _MOST, _SECONDS = 3, 20, 1.0


def timed(call: Callable[[], object]) -> Explanation:
    """Runs `call` some times, for about a second, and gives a row for each product and attention of compiled code that it runs, with the
    least time of them. Code that was made without spans is compiled once more, with them. Raises RunError where no code for a CPU is run,
    and UsageError within a trace."""
    checks.callback("call", call)
    with tracing.record():
        call()  # compiles, and packs weights
    runs: list[dict[Executable, list[dict[str, Any]]]] = []
    begin = time.perf_counter()
    while len(runs) < _LEAST or (len(runs) < _MOST and time.perf_counter() - begin < _SECONDS):
        with tracing.record() as events:
            call()
        runs.append(_by_code(events, tracing.programs()))
    codes = list(dict.fromkeys(code for run in runs for code in run))
    if not codes:
        raise RunError("expected a call that runs code that was compiled in this process, but it runs none")
    reached = roof.measure(codes[0].threads or threads_by_default())
    rows: list[Row] = []
    for code in codes:
        text = code.text if isinstance(code.text, str) else ""
        rows += explain(code, text, name=code.name, runs=[run[code] for run in runs if code in run], roof=reached).rows
    return Explanation(tuple(rows), reached)


def explain_function(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Explanation:
    """The result of the method `explain` of a compiled function: with times if it is given arguments."""
    return timed(lambda: function(*arguments, **named)) if arguments or named else explain(function)


def _by_code(events: Iterable[dict[str, Any]], programs: dict[str, Any]) -> dict[Executable, list[dict[str, Any]]]:
    """The spans of each code: those in its calls, on the threads that call it."""
    spans: dict[Executable, list[dict[str, Any]]] = defaultdict(list)
    inside: dict[int, tuple[float, Any]] = {}  # of each thread: where its last call of compiled code ends, and the code
    for event in events:  # of a thread in the order of their beginnings
        thread = event["tid"]
        if event["cat"] == "python" and event["name"] in programs:
            inside[thread] = event["ts"] + event["dur"], programs[event["name"]]
        elif thread in inside and event["ts"] <= inside[thread][0] and isinstance(inside[thread][1], Executable):
            spans[inside[thread][1]].append(event)
    return spans


def png(explanation: Explanation) -> bytes:
    """A roofline: what each op reaches by the operations that it does for a byte. Raises LibraryError without matplotlib."""
    require("viz", {"matplotlib": ("3.",)})
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    reached = explanation.roof
    shown = [row for row in explanation.rows if row.time and row.time.gflops and row.time.gbs]
    if reached is None or not shown:
        raise RunError("expected an explanation with times of ops that are counted, but got one without")
    figure = Figure(figsize=(9, 6), layout="constrained")
    axis = figure.subplots()
    intensities = [row.time.gflops / row.time.gbs for row in shown]
    ridge = reached.gflops / reached.gbs
    line = sorted({min(*intensities, ridge) / 2, ridge, max(*intensities, ridge) * 2})
    axis.plot(line, [min(reached.gflops, reached.gbs * x) for x in line], color="black", lw=1,
              label=f"{reached.threads} threads: {reached.gflops:.0f} GFLOP/s (f32), {reached.gbs:.0f} GB/s")
    for kind, mark in (("attention", "o"), ("product", "s")):
        points = [(x, row) for x, row in zip(intensities, shown) if row.op == kind]
        if points:
            axis.scatter([x for x, _ in points], [row.time.gflops for _, row in points], marker=mark, label=kind,
                         s=[20 + 10 * row.time.ms ** 0.5 for _, row in points], alpha=0.7)
        for x, row in points:
            axis.annotate(row.place.rsplit(":", 2)[-2] if row.place.count(":") > 1 else row.place, (x, row.time.gflops), fontsize=7)
    axis.set(xscale="log", yscale="log", xlabel="operations for a byte", ylabel="GFLOP/s", title="Products and attentions, by their lines")
    axis.legend()
    axis.grid(alpha=0.3)
    out = io.BytesIO()
    FigureCanvasAgg(figure).print_png(out)
    return out.getvalue()
