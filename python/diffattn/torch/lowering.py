"""Lowering of an FX graph of ATen ops to MLIR's upstream dialects, as text: torch-mlir's importer and pipelines, and its errors as ours."""

from __future__ import annotations

import collections
import contextlib
import re
from collections.abc import Collection, Mapping

import torch

from ..errors import CompileError
from ..importing.contract import mark_arguments
from ..importing.torch_backend import left_over, to_linalg
from ..text import shown
from .builtins import make_calls
from .source import op_name, refusal, sizes_of

#: The pipeline that `torch_mlir.fx` runs on an imported graph.
_TO_BACKEND = "builtin.module(func.func(torch-match-quantized-custom-ops), torchdynamo-export-to-torch-backend-pipeline{extra-library=})"


def lower(module: torch.fx.GraphModule, weights: Mapping[int, str], written: Collection[int] = ()) -> str:
    """The text of a module whose function `main` is the graph of `module`: its inputs are arguments, its outputs results. Arguments whose
    numbers are in `weights` are marked as weights of these names, those in `written` as memory that may be written to, and sizes of one
    symbol as equal (importing/contract.py).

    Raises CompileError that names the ATen op that torch-mlir does not lower, and the line of the user's module.
    """
    from torch_mlir import ir
    from torch_mlir.dialects import torch as torch_dialect
    from torch_mlir.extras.fx_importer import FxImporter
    from torch_mlir.passmanager import PassManager

    context = ir.Context()
    torch_dialect.register_dialect(context)
    importer = FxImporter(context=context)
    try:
        with _named_by_location(module.graph):
            importer.import_stateless_graph(module.graph, func_name="main")
        operation = importer.module.operation
        make_calls(importer.module)
        for pipeline in (_TO_BACKEND, to_linalg(context)):
            with context:
                PassManager.parse(pipeline).run(operation)
    except Exception as error:  # the importer raises many classes
        raise _refused(module.graph, str(error)) from None
    for place in left_over(operation):
        raise _refused(module.graph, place)
    with context:
        main = next(op for op in importer.module.body if op.attributes["sym_name"].value == "main")
        mark_arguments(ir, main, weights, written, _named_sizes(module.graph))
    return str(importer.module)


def _named_sizes(graph: torch.fx.Graph) -> dict[int, str | list[str | int | None]]:
    """Names of the sizes of inputs that have one symbol, by the inputs' numbers: the same in graphs that differ in the symbols' own names
    alone, which share one text in the cache."""
    places = graph.find_nodes(op="placeholder")
    seen = collections.Counter(size.node.expr for place in places for _, size in sizes_of(place))
    names = {expression: f"s{number}" for number, expression in enumerate(one for one, count in seen.items() if count > 1)}

    def name(size):
        return names.get(size.node.expr) if isinstance(size, torch.SymInt) else None

    named = {number: [name(size) for size in value.shape] if isinstance(value, torch.Tensor) else name(value)
             for number, value in enumerate(place.meta["val"] for place in places)}
    return {number: sizes for number, sizes in named.items() if sizes and (isinstance(sizes, str) or any(sizes))}


@contextlib.contextmanager
def _named_by_location(graph):
    """The importer makes locations of stack traces; meanwhile these have the nodes' names, so that messages lead back to them."""
    traces = [(node, node.meta.get("stack_trace")) for node in graph.nodes]
    try:
        for node, _ in traces:
            node.meta["stack_trace"] = f'File "node:{node.name}", line 1, in forward'
        yield
    finally:
        for node, trace in traces:
            node.meta["stack_trace"] = trace


def _refused(graph, message: str) -> CompileError:
    """The error for torch-mlir's message, with the op of the graph and its place."""
    nodes = {node.name: node for node in graph.nodes}
    named = [nodes.get(name) for name in re.findall(r"\bnode:(\w+)", message)]
    # For arithmetic on sizes, the importer names the function and not the node.
    named += [node for function in re.findall(r"<built-in function (\w+)>", message) for node in graph.nodes
              if getattr(node.target, "__name__", None) == function]
    for node in named:
        if node is not None and node.op == "call_function":
            return refusal(node, f"expected ops that torch-mlir lowers to upstream dialects, but got {op_name(node.target)}; "
                                 "fallback='eager' runs this graph in PyTorch")
    return CompileError(f"expected a graph that torch-mlir lowers, but got: {shown(message, 400)}; fallback='eager' runs it in PyTorch")
