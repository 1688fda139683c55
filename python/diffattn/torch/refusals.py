"""Ops that stay PyTorch: those that torch-mlir lowers to other numbers than PyTorch's, or at which it ends the process or does not come back,
and those that compiled code does not take, which are listed here, and those that torch-mlir does not lower at all, by the table that
scripts/lowered_ops.py has written (lowered_ops.json)."""

from __future__ import annotations

import functools
import json
import operator
import pathlib

import torch
from torch._prims_common import is_contiguous_or_false
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true
from torch.utils._pytree import tree_leaves

from . import scattering  # noqa: F401 - it registers a node
from .complex_numbers import AS_COMPLEX, AS_REAL
from .elementwise import type_of_integers
from .empty import is_empty
from .source import refusal, tensors_of
from .tensors import CODE_OF
from .uniform import COMPARISONS, CONVERTED, FILLED, SHOWN
from .views import VIEWS

aten = torch.ops.aten

#: Always.
_ALWAYS = frozenset({
    aten.signbit.default, aten.copysign.Tensor,  # zeros have no sign
    aten._embedding_bag.default, aten._embedding_bag_forward_only.default,  # without weights
    aten.adaptive_max_pool2d.default,  # windows of several sizes
    aten.diagonal_scatter.default, aten.cumprod.default, aten.searchsorted.Scalar, aten.searchsorted.Tensor, aten.bucketize.Tensor})
#: Ops that move elements, or convert them, whatever they are.
_MOVES = frozenset({*SHOWN, *CONVERTED, aten.index_select.default, aten.index.Tensor, aten.gather.default, aten.embedding.default, aten.flip.default,
                    aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, aten.slice_scatter.default, aten.roll.default,
                    aten.squeeze.default, torch.ops.prims.squeeze.default, aten._assert_tensor_metadata.default,
                    torch.ops.diffattn._write_rows.default, operator.getitem})
_OF_AXES = (aten._softmax.default, aten._log_softmax.default, aten.logsumexp.default, aten.var.correction)
_POWERS = (aten.pow.Scalar, aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor)


def why_not(node: torch.fx.Node) -> str | None:
    """Why no graph with this node of decomposed ops is compiled; None: it may be, unless torch-mlir refuses it."""
    reason = _expected(node) if node.op == "call_function" else None
    return reason and f"expected {reason}fallback='eager' runs this graph in PyTorch"


def _expected(node) -> str | None:
    target, tags, value = node.target, getattr(node.target, "tags", ()), node.meta.get("val")
    tensors = tensors_of(node, *node.all_input_nodes)
    if target not in (AS_REAL, AS_COMPLEX) and any(one.is_complex() for one in tensors):
        return f"an op that is compiled for complex numbers, but got {target}; write it with real ones, or "
    if unknown := [one.dtype for one in tensors if one.dtype not in CODE_OF and not one.is_complex()]:
        return f"elements of {', '.join(map(str, CODE_OF))}, but got {unknown[0]} at {target}; "
    if _is_wrong(node, tensors):
        return f"ops that torch-mlir lowers to what PyTorch computes, but got {target}; "
    if torch.Tag.nondeterministic_seeded in tags and node.users:
        return (f"a graph without random numbers, but got {target}; call eval() on the module first, so that its dropout does nothing, and pass "
                "no dropout_p; ")
    if target in VIEWS and is_empty(value):  # torch-mlir divides by their sizes, and does not return
        sizes = " as ".join(str(list(one.meta["val"].shape)) for one in (node.args[0], node))
        return (f"a view of elements, but got {target} of {sizes}, without any; a size that may be 0 (torch.export.Dim(name, min=0) in "
                "dynamic_shapes) is compiled, and ")
    if torch.Tag.dynamic_output_shape in tags and free_unbacked_symbols(value):  # torch-mlir does not return from a mask as an index either
        is_mask = target is aten.index.Tensor
        what, instead = ("a mask as an index", "torch.where(mask, x, 0) keeps the size, and ") if is_mask else (target, "")
        return f"results whose sizes follow from those of the inputs, but got {what}, which has as many elements as values say; {instead}"
    return None


def _is_wrong(node, tensors) -> bool:
    if node.target in _ALWAYS:
        return True
    if node.target in _POWERS:  # powers of integers
        base = node.args[0].meta["val"] if isinstance(node.args[0], torch.fx.Node) else tensors[0]
        return not (base.dtype.is_floating_point and tensors[0].dtype.is_floating_point)
    if node.target is aten.as_strided.default:  # tensors with holes
        return not is_contiguous_or_false(node.args[0].meta["val"])
    if node.target is aten.roll.default:  # a shift by more than the size
        x, shifts, dims = (*torch.fx.node.map_arg(node.args, lambda one: one.meta["val"]), ())[:3]
        return not dims or not all(statically_known_true(abs(shift) <= x.size(dim)) for shift, dim in zip(shifts, dims))
    if node.target is aten.arange.start_step:  # ranges of 8 bits
        return tensors[0].dtype == torch.uint8
    if node.target in _OF_AXES:  # tensors without axes
        return tensors[-1].dim() == 0
    if node.target is aten.max_pool3d_with_indices.default:  # integers, which end the process
        return not tensors[0].dtype.is_floating_point
    if node.target is aten.max_pool2d_with_indices.default and any(user.target is operator.getitem and user.args[1] == 1 for user in node.users):
        return True  # places, beside NaN
    if getattr(node.target, "overloadpacket", None) in COMPARISONS and _exceeds_int32(node):
        return True
    if node.target in _MOVES:
        return False
    # Numbers beside integers of 8 and 16 bits do not wrap around, and bytes that decompositions have left have signs.
    of_bytes = node.target not in FILLED and any(one.dtype == torch.uint8 for one in tensors_of(*node.all_input_nodes))
    return of_bytes or any(one.dtype in (torch.int8, torch.int16) for one in tensors)


def _exceeds_int32(node) -> bool:
    """Whether int32 is compared with a number that it does not hold, or a tensor of one number of int64: these do not wrap around to int32."""
    operands = tree_leaves(torch.fx.node.map_arg((node.args, node.kwargs), _number_or_tensor))
    limits = torch.iinfo(torch.int32)
    return type_of_integers(operands) == torch.int32 and any(
        one.dtype == torch.int64 if isinstance(one, torch.Tensor) else type(one) is int and not limits.min <= one <= limits.max for one in operands)


def _number_or_tensor(node):
    """The operand that a node is."""
    number = node.args[FILLED[node.target]] if node.target in FILLED and node.meta["val"].dim() == 0 else None
    return number if isinstance(number, (int, float)) else node.meta["val"]


_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i64", torch.bool: "i1"}


@functools.lru_cache(maxsize=None)
def _lowered() -> dict[str, list[str]]:
    return json.loads(pathlib.Path(__file__).with_name("lowered_ops.json").read_text())["ops"]


def is_lowered(node: torch.fx.Node) -> bool:
    """Whether torch-mlir lowers the op of a node for the type of its first operand, or may: what the table does not know is to be tried."""
    tried, *lowered = _lowered().get(str(node.target), ("", "", ""))
    name = next((_NAMES.get(one.dtype) for one in tensors_of(*node.all_input_nodes, node)), None)
    return name not in tried.split() or any(name in one.split() for one in lowered)


def refuse(graph: torch.fx.Graph) -> None:
    """Raises CompileError for the first node of a graph of which it is known that it is not compiled."""
    for node in graph.nodes:
        if reason := why_not(node):
            raise refusal(node, reason)
