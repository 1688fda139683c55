"""Ops that torch-mlir lowers, but to other numbers than PyTorch's, or at which it ends the process or does not come back: they stay PyTorch.
What it does not lower at all it says itself."""

from __future__ import annotations

import operator

import torch

from . import write_node  # noqa: F401 - it registers a node
from .source import refusal

aten, prims = torch.ops.aten, torch.ops.prims

#: Always.
_ALWAYS = frozenset({
    aten.isclose.default,  # infinities are not close to themselves
    aten.signbit.default, aten.copysign.Tensor,  # zeros have no sign
    aten._embedding_bag.default, aten._embedding_bag_forward_only.default,  # without weights
    aten.adaptive_max_pool1d.default, aten.adaptive_max_pool2d.default,  # windows of several sizes
    aten.cumprod.default, aten.searchsorted.Scalar, aten.searchsorted.Tensor, aten.bucketize.Tensor})
#: Ops that move elements, or convert them, whatever they are.
_MOVES = frozenset({
    aten._to_copy.default, prims.convert_element_type.default, aten.clone.default, aten.alias.default, aten.view.default, aten._unsafe_view.default,
    aten.reshape.default, aten.permute.default, aten.transpose.int, aten.t.default, aten.expand.default, aten.slice.Tensor, aten.select.int,
    aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.index_select.default, aten.index.Tensor, aten.gather.default,
    torch.ops.diffattn._write_rows.default, operator.getitem})
_OF_AXES = (aten._softmax.default, aten._log_softmax.default, aten.logsumexp.default, aten.var.correction)
_POWERS = (aten.pow.Scalar, aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor)
_PRODUCTS = (aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.linear.default, aten.matmul.default)


def is_wrong(node: torch.fx.Node) -> bool:
    """Whether a node of a decomposed graph is one of them."""
    made = [one.meta.get("val") for one in (node, *node.all_input_nodes)]
    tensors = [one for value in made for one in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(one, torch.Tensor)]
    if node.target in _ALWAYS:
        return True
    if node.target in _POWERS:  # of integers
        return not tensors[0].dtype.is_floating_point
    if node.target is aten.arange.start_step:  # in 8 bits
        return tensors[0].dtype == torch.uint8
    if node.target in _OF_AXES:  # of one number
        return tensors[-1].dim() == 0
    if node.target in _PRODUCTS:  # of bytes
        return tensors[0].dtype in (torch.int8, torch.uint8)
    if node.target is aten.max_pool2d_with_indices.default:  # places, beside NaN
        return any(user.target is operator.getitem and user.args[1] == 1 for user in node.users)
    # Numbers beside integers of 8 and 16 bits do not wrap around.
    return node.target not in _MOVES and any(one.dtype in (torch.int8, torch.int16) for one in tensors)


def refuse(graph: torch.fx.Graph) -> None:
    """Raises CompileError for the first one in a graph that must be compiled whole."""
    for node in graph.nodes:
        if node.op == "call_function" and is_wrong(node):
            raise refusal(node, f"expected ops that torch-mlir lowers to what PyTorch computes, but got {node.target}; fallback='eager' runs this "
                                "graph in PyTorch")
