"""Keys of the cache of lowered graphs: two graphs with one key are lowered to one text."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import pathlib
import types

import torch

from ..importing import contract, torch_backend
from . import builtins, lowering


class _Unknown(Exception):
    """Something whose meaning cannot be written down."""


def graph_key(module: torch.fx.GraphModule, weights: dict[int, str], written: set[int]) -> str | None:
    """The key of a prepared graph whose inputs with the numbers in `weights` are marked as weights of these names, and whose inputs with the
    numbers in `written` may be written to. It holds each node's op,
    arguments, types, sizes and strides, symbols with their ranges, constants to the last bit, and the versions of all that takes part
    in lowering. The values of inputs do not count, which for weights and for constants that are tensors come with the call. None: the
    graph has something that is not known here, so it is not kept."""
    lowered_by = _lowered_by()
    if lowered_by is None:
        return None
    numbers = {node: number for number, node in enumerate(module.graph.nodes)}
    symbols: dict[str, str] = {}
    try:
        nodes = [[node.op, _target(node), _value(node.args, numbers, symbols), _value(node.kwargs, numbers, symbols),
                  _value(node.meta.get("val"), numbers, symbols), _value(node.meta.get("tensor_meta"), numbers, symbols)]
                 for node in module.graph.nodes]
    except _Unknown:
        return None
    text = json.dumps([lowered_by, nodes, sorted(symbols.items()), sorted(weights.items()), sorted(written)])
    return hashlib.sha256(text.encode()).hexdigest()


@functools.lru_cache(maxsize=None)
def _lowered_by() -> list[str] | None:
    """PyTorch, torch-mlir (by its list of files, which has a hash of each) and our own code that writes texts. The library that reads
    them is added by the cache itself."""
    try:
        files = importlib.metadata.distribution("torch-mlir").read_text("RECORD")
    except importlib.metadata.PackageNotFoundError:
        files = None
    if not files:
        return None  # a build that is worked on
    sources = [pathlib.Path(module.__file__).read_bytes() for module in (builtins, contract, lowering, torch_backend)]
    return [torch.__version__, str(torch.version.git_version), *(hashlib.sha256(data).hexdigest() for data in (files.encode(), *sources))]


def _target(node) -> str:
    target = node.target
    if node.op in ("placeholder", "output"):
        return ""
    if node.op == "call_function" and isinstance(target, torch._ops.OpOverload):
        return f"{target} {target._schema}"
    if node.op == "call_function" and isinstance(target, (types.BuiltinFunctionType, types.FunctionType)):
        return f"{target.__module__}.{target.__qualname__}"  # functions on symbols: operator.mul, torch.sym_max
    raise _Unknown(target)


def _value(value, numbers, symbols):
    """The value as JSON, which tells types apart that Python takes for equal."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return ["float", value.hex()]
    if isinstance(value, torch.fx.Node):
        return ["node", numbers[value]]
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return [type(value).__name__, _expression(value.node, symbols)]
    if isinstance(value, torch.Tensor):
        return ["tensor", str(value.dtype), str(value.device), str(value.layout), value.is_quantized,
                *(_value(tuple(part), numbers, symbols) for part in (value.shape, value.stride()))]
    if isinstance(value, (tuple, list)):
        return ["list", *(_value(item, numbers, symbols) for item in value)]
    if isinstance(value, dict) and all(type(name) is str for name in value):
        return ["dict", *([name, _value(item, numbers, symbols)] for name, item in sorted(value.items()))]
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return [type(value).__name__, str(value)]
    if isinstance(value, slice):
        return ["slice", *(_value(part, numbers, symbols) for part in (value.start, value.stop, value.step))]
    raise _Unknown(value)


def _expression(node, symbols) -> str:
    """A symbolic number; the ranges of its symbols go into `symbols`."""
    for symbol in node.expr.free_symbols:
        limits = node.shape_env.var_to_range.get(symbol)
        symbols[str(symbol)] = "any" if limits is None else f"{limits.lower} {limits.upper}"
    return str(node.expr)
