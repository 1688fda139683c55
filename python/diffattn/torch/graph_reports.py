"""Records of the graphs that `torch.compile(backend="diffattn")` compiled: Dynamo gives no handle to them."""

from __future__ import annotations

import collections
import datetime
import inspect
import re
import types
from dataclasses import dataclass, field

import torch

from ..runtime import Diagnostic
from .source import dynamo_frame, is_of_torch

#: The number of records that are kept: a process that recompiles without end must not fill memory with them.
LIMIT = 1000
#: How Dynamo names what of a function follows a graph break.
_RESUMED = r"torch_dynamo_resume_in_(.+)_at_\d+", r"\1"
_records: collections.deque[Report] = collections.deque(maxlen=LIMIT)


@dataclass(frozen=True)
class Report:
    """One graph that Dynamo gave to the backend, as text alone: neither its code nor its weights are kept alive.

    name         the function or class of the module that Dynamo traced: "DiffAttention.forward"
    place        "/home/me/model.py:12-31": the lines of that function that are in the graph; empty if they are not known
    compile_id   as PyTorch's logs have it, "1/2": the second function, compiled the third time
    time         when it was compiled
    applied      as of `diffattn.runtime.Executable`: what was fused
    diagnostics  why attention was not fused or is no kernel
    uncompiled   the ops that run in PyTorch, with their lines
    parts        how many parts of the graph are compiled: 1 where it is compiled whole, 0 where it runs in PyTorch
    """

    name: str
    place: str
    compile_id: str
    time: datetime.datetime
    applied: list[Diagnostic] = field(repr=False)
    diagnostics: list[Diagnostic] = field(repr=False)
    uncompiled: list[str] = field(default_factory=list, repr=False)
    parts: int = field(default=1, repr=False)

    def __str__(self) -> str:
        what = f"{self.name} ({self.place})" if self.place else self.name
        lines = [f"  {one}" for one in (*self.applied, *self.diagnostics)] + [f"  in PyTorch: {one}" for one in self.uncompiled]
        return "\n".join([f"[{self.compile_id}] {what}", *(lines or ["  nothing to say: no attention was found"])])


def record(graph: torch.fx.Graph, program) -> None:
    """Keeps a report of a graph of Dynamo that was compiled to `program`, of partition.py."""
    compile_id, (name, code) = torch._guards.CompileContext.current_compile_id(), _origin(graph)
    _records.append(Report(name, _place(graph, code) if code is not None else "", str(compile_id or ""),
                           datetime.datetime.now().astimezone(), list(program.applied), list(program.diagnostics), list(program.uncompiled),
                           getattr(program, "num_parts", 1)))


def _origin(graph: torch.fx.Graph) -> tuple[str, types.CodeType | None]:
    """The function that was traced, with its code: the forward of a module that is called by code of PyTorch or through a decorator."""
    tracing = dynamo_frame()
    if tracing is None:
        return "a graph", None
    code, owner = tracing.f_code, tracing.f_locals.get("self")
    name = re.sub(*_RESUMED, getattr(code, "co_qualname", code.co_name))
    kind = type(owner) if isinstance(owner, torch.nn.Module) else None
    if is_of_torch(code.co_filename) and kind is None:
        stacks = (list((node.meta.get("nn_module_stack") or {}).values()) for node in graph.nodes)
        kind = next((stack[0][1] for stack in stacks if stack), None)
    if kind is not None and (is_of_torch(code.co_filename) or "<locals>" in name):
        return f"{kind.__qualname__}.forward", getattr(inspect.unwrap(kind.forward), "__code__", None)
    return name, code


def _place(graph: torch.fx.Graph, code: types.CodeType) -> str:
    """The lines of the function itself in tracebacks, which leave code of PyTorch out."""
    traces = (node.meta.get("stack_trace") or "" for node in graph.nodes)
    name = re.escape(re.sub(*_RESUMED, code.co_name))
    of_function = rf'File "{re.escape(code.co_filename)}", line (\d+), in (?:torch_dynamo_resume_in_)?{name}(?:_at_\d+)?\n'
    frames = (re.search(of_function, trace) for trace in traces)
    lines = {int(match[1]) for match in frames if match} or {code.co_firstlineno}
    return f"{code.co_filename}:{'-'.join(map(str, sorted({min(lines), max(lines)})))}"


def reports() -> list[Report]:
    """The graphs that `torch.compile(backend="diffattn")` compiled in this process, oldest first: the last 1000. A graph that Dynamo
    compiles anew, for other sizes say, is another one; torch._dynamo.reset() leaves the records as they are."""
    return list(_records)
