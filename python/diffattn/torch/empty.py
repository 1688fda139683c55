"""Tensors without elements in a graph, as of an empty batch: PyTorch computes what has to do with them (partition.py), since torch-mlir
divides by such sizes, or does not lower what makes such a tensor. But what is joined with them is joined without: a cache that has no
keys yet does not part the keys from their attention."""

from __future__ import annotations

import torch

from .source import call_before, tensors_of

aten = torch.ops.aten


def is_empty(value) -> bool:
    """Whether `value` is a tensor that never has elements: one of its sizes is known to be 0."""
    return isinstance(value, torch.Tensor) and any(isinstance(size, int) and size == 0 for size in value.shape)


def touches_empty(node: torch.fx.Node) -> bool:
    """Whether a node makes or reads such a tensor."""
    return any(map(is_empty, tensors_of(node, *node.all_input_nodes)))


def join_others(graph: torch.fx.Graph) -> None:
    """Takes, in place, tensors without elements out of what is joined."""
    for node in graph.find_nodes(op="call_function", target=aten.cat.default):
        joined = node.meta["val"]
        kept = [one for one in node.args[0] if not is_empty(one.meta["val"])]
        if is_empty(joined) or len(kept) == len(node.args[0]):
            continue
        # One without elements may have made the others another type.
        kept = [one if one.meta["val"].dtype == joined.dtype else
                call_before(node, aten._to_copy.default, (one,), {"dtype": joined.dtype}, value=joined.new_empty(one.meta["val"].shape)) for one in kept]
        made = kept[0] if len(kept) == 1 else call_before(node, node.target, (kept, *node.args[1:]))
        if len(kept) == 1 and any(user.op == "output" for user in node.users):  # outputs are tensors of their own
            made = call_before(node, aten.clone.default, (made,))
        node.replace_all_uses_with(made)
        graph.erase_node(node)
