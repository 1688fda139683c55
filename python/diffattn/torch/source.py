"""Where a node of an FX graph comes from in the user's code, and what it gives."""

from __future__ import annotations

import os
import re
import types

import torch

from ..errors import CompileError, DiffAttnError

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def is_of_torch(file: str) -> bool:
    return file.startswith(_TORCH)


def line_of(trace: str) -> str:
    """"file.py:12" of the innermost line of a traceback that is outside of PyTorch; empty: it is not known."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', trace)
    own = [frame for frame in frames if not is_of_torch(frame[0])] or frames
    return ":".join(own[-1]) if own else ""


def describe(node: torch.fx.Node) -> str:
    """The line as the beginning of a message."""
    line = line_of(node.meta.get("stack_trace") or "")
    return line and f"{line}: "


#: The name, in a node's `meta`, of the node of a graph that it was made for.
ORIGIN = "diffattn_origin"


def refusal(node: torch.fx.Node, message: str) -> CompileError:
    """An error that a graph with this node is not compiled. Its `node` is the name of the node in the graph that PyTorch gave, its `trace`
    what PyTorch knows of where that comes from."""
    error = CompileError(f"{describe(node)}{message}")
    error.node, error.trace = node.meta.get(ORIGIN, node.name), node.meta.get("stack_trace")
    return error


def call_before(node: torch.fx.Node, target, args: tuple, kwargs: dict | None = None, *, like: torch.fx.Node | None = None, value=None) -> torch.fx.Node:
    """A new node before `node`, which comes from where `like`, or else `node`, does, and gives `value`, or else what that does."""
    with node.graph.inserting_before(node):
        made = node.graph.call_function(target, args, kwargs)
    made.meta = dict((like or node).meta)
    if value is not None:
        made.meta["val"] = value
        made.meta.pop("tensor_meta", None)
    return made


def sizes_of(node: torch.fx.Node) -> list[tuple[int | None, torch.SymInt]]:
    """The sizes of the tensor that a node gives which are symbolic, with their axes; of such a number itself, with None."""
    value = node.meta.get("val")
    sizes = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]
    return [(axis, size) for axis, size in sizes if isinstance(size, torch.SymInt)]


def op_name(target) -> str:
    """An op by its name, and a function of sizes as Python finds it: `torch.sym_float`, `round`."""
    if not isinstance(target, (types.FunctionType, types.BuiltinFunctionType)):
        return str(target)
    module = {"builtins": "", "_operator": "operator."}.get(target.__module__, f"{target.__module__}.")
    return f"{module}{target.__name__}, arithmetic on sizes"


def dynamo_frame():
    """Dynamo's state of the outermost function that it traces in this thread; None outside of its tracing."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        return InstructionTranslator.current_tx().output.root_tx
    except AttributeError:
        return None


def plain(error: DiffAttnError) -> DiffAttnError:
    """An error of ours that came through PyTorch's tracing, which adds a traceback of the user's code to its message: as one line that
    begins with the place in that code."""
    message, separator, trace = str(error).partition("\n\nWhile executing ")
    line = separator and line_of(trace)
    return type(error)(f"{line}: {message}" if line else message)


def tensors_of(*nodes: torch.fx.Node) -> list[torch.Tensor]:
    """The tensors that nodes give, those of several results one by one."""
    values = [node.meta.get("val") for node in nodes]
    return [one for value in values for one in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(one, torch.Tensor)]
