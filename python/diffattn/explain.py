"""Explanation of what each attention of a module was compiled to: `applied` and `diagnostics` by place, as a table or as JSON.

    print(explain(compiled))     of what diffattn.compile, onnx.load, jax.compile or runtime.Executable gave
    print(timed(lambda: f(x)))   with times, and with products (explain_times.py)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from . import runtime

if TYPE_CHECKING:
    from .roof import Roof


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


@dataclass(frozen=True)
class Row:
    """One attention, or what could be one; with times also one product, or all else that a program does.

    place      "model.mlir:3:8"; empty if it is not known
    function   of the module; empty if the module's text is not known
    is_raised  whether it was found in other ops; else it was written as diffattn.attention, or is none
    kernels    that it became, the first that takes a call computes it; none: it is no kernel
    messages   reasons why it is not fused or no kernel, and other messages of the compiler about it
    op         "attention", "product" or "other"
    sizes      "gemm ?x256 by 768x256 f32": the op with the sizes that its code is made for; empty without times
    time       None: it was not timed, or did not run
    """

    place: str
    function: str
    is_raised: bool
    kernels: tuple[Kernel, ...]
    messages: tuple[str, ...]
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
        facts = {"rows": [asdict(row) for row in self.rows], "roof": self.roof and asdict(self.roof)}
        return runtime.explanation_table(json.dumps(facts)).rstrip("\n")


def explain(compiled: Any, text: str | None = None, *, name: str = "", runs: Sequence[list[dict[str, Any]]] = (),
            roof: Roof | None = None) -> Explanation:
    """Explains anything with `applied` and `diagnostics`; `text` is the module that it was compiled from, by default its `mlir`. With `runs`,
    spans of each run as events of Chrome's JSON, times too, beside `roof`; `name` is what the module is called in places."""
    diagnostics = [{"kind": one.kind, "category": one.category, "name": one.name, "message": one.message, "place": one.location}
                   for one in (*compiled.applied, *compiled.diagnostics)]
    facts = {"name": name, "module": getattr(compiled, "mlir", "") if text is None else text, "diagnostics": diagnostics, "runs": list(runs),
             "roof": roof and asdict(roof)}
    return Explanation(tuple(_row(**row) for row in json.loads(runtime.explain(json.dumps(facts)))), roof)


def _row(kernels: list[dict[str, str]], messages: list[str], time: dict[str, Any] | None, **others: Any) -> Row:
    """A row of JSON."""
    return Row(kernels=tuple(Kernel(**kernel) for kernel in kernels), messages=tuple(messages), time=time and Times(**time), **others)
