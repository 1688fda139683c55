"""Tensors without elements in a graph, as of an empty batch: their sizes are all that there is of them.

torch-mlir divides by such sizes, or does not lower what makes such a tensor. So none is computed: what has elements is made without
those that have none, and an output that has none is made when the graph is called.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

aten = torch.ops.aten


def is_empty(value) -> bool:
    """Whether `value` is a tensor that never has elements: one of its sizes is known to be 0."""
    return isinstance(value, torch.Tensor) and any(isinstance(size, int) and size == 0 for size in value.shape)


def leave_out(graph: torch.fx.Graph, add_constant) -> dict:
    """Makes, in place, each tensor that has elements without those that have none. `add_constant(node, value)` gives a new input of the
    graph that is always `value`. The result: which nodes were replaced, with what stands for them."""
    replaced = {}
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.Tensor) or is_empty(value):
            continue
        empty = [one for one in node.all_input_nodes if is_empty(one.meta.get("val"))]
        if not empty:
            continue
        with graph.inserting_before(node):
            made = _without(graph, node)
        if made is not None:
            replaced[node] = made
            _replace(graph, node, made)
            continue
        for one in empty:
            if one.op == "call_function" and _is_known(one.meta["val"]):
                with unset_fake_temporarily():
                    constant = _like(one.meta["val"])
                node.replace_input_with(one, add_constant(one, constant))
    return replaced


def _without(graph, node):
    """A node that stands for `node`, whose operands without elements do not count; None: there is none."""
    return _joined(graph, node) if node.target is aten.cat.default else _number(graph, node)


def _joined(graph, node):
    """The elements of the others, which one without any may have made another type."""
    joined, kept = node.meta["val"], []
    for one in [one for one in node.args[0] if not is_empty(one.meta["val"])]:
        value = one.meta["val"]
        kept.append(one if value.dtype == joined.dtype else
                    _call(graph, node, aten._to_copy.default, (one,), {"dtype": joined.dtype}, joined.new_empty(value.shape)))
    return kept[0] if len(kept) == 1 else _call(graph, node, node.target, (kept, *node.args[1:]), node.kwargs, joined)


def _number(graph, node):
    """Of operands that all have no elements PyTorch makes one number, in all places: sums are 0, means no number."""
    operands = [one.meta.get("val") for one in node.all_input_nodes]
    if node.target.namespace not in ("aten", "prims") or not all(_is_known(one) and is_empty(one) for one in operands):
        return None
    with unset_fake_temporarily():
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda one: _like(one.meta["val"]))
        made = node.target(*args, **kwargs)
        first = made.flatten()[0]
        if not (torch.equal(made, first.expand(made.shape)) or made.isnan().all()):
            return None
        number = first.item()
    options = {"dtype": made.dtype, "device": made.device, "pin_memory": False}
    return _call(graph, node, aten.full.default, (list(made.shape), number), options, node.meta["val"])


def _is_known(value) -> bool:
    return isinstance(value, torch.Tensor) and all(isinstance(size, int) for size in value.shape)


def _like(value) -> torch.Tensor:
    return torch.empty(value.shape, dtype=value.dtype)


def _replace(graph, node, by) -> None:
    """Outputs are tensors of their own."""
    node.replace_all_uses_with(by, delete_user_cb=lambda user: user.op != "output")
    if node.users:
        with graph.inserting_before(node):
            copy = _call(graph, node, aten.clone.default, (by,), {}, node.meta["val"])
        node.replace_all_uses_with(copy)
    graph.erase_node(node)


def _call(graph, like, target, args, kwargs, value):
    made = graph.call_function(target, args, kwargs)
    made.meta = {"val": value, "stack_trace": like.meta.get("stack_trace")}
    return made
