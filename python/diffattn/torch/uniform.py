"""Numbers in a graph as PyTorch has them: floats of their tensor's type, and tensors of one number that are made of numbers alone, which
torch-mlir folds as unsigned here and there, or compares the wrong way round."""

from __future__ import annotations

import math

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .empty import is_empty
from .source import call_before

aten, prims = torch.ops.aten, torch.ops.prims
#: Ops that make such a tensor, with the place of the number among their operands.
FILLED = {aten.full.default: 1, aten.full_like.default: 1, aten.new_full.default: 2, aten.scalar_tensor.default: 0}
#: Ops that show the elements of their first operand.
SHOWN = (aten.alias.default, aten.clone.default, aten.detach.default, aten.expand.default, aten.permute.default,
         aten.select.int, aten.slice.Tensor, aten.squeeze.dim, aten.squeeze.dims, aten.t.default, aten.transpose.int, aten.unsqueeze.default,
         aten.view.default, aten._unsafe_view.default)
COMPARISONS = (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge)
_WITH_NUMBERS = [packet.Scalar for packet in COMPARISONS]
#: Ops that convert elements.
CONVERTED = (aten._to_copy.default, prims.convert_element_type.default)


def round_numbers(graph: torch.fx.Graph) -> None:
    """Makes numbers that fill tensors of floats, or that these are compared with, what their type holds, in place: torch-mlir goes on with
    the numbers themselves."""
    for node in graph.nodes:
        place = 1 if node.target in _WITH_NUMBERS else FILLED.get(node.target)
        number = None if place is None else node.args[place]
        dtype = (node if node.target in FILLED else node.args[0]).meta["val"].dtype if isinstance(number, (int, float)) else torch.bool
        if dtype.is_floating_point:
            with unset_fake_temporarily():
                nearest = torch.tensor(number, dtype=dtype).item()
            if nearest != number and math.isfinite(nearest):
                node.update_arg(place, nearest)


def fold(graph: torch.fx.Graph, add_constant) -> None:
    """Replaces, in place, each element-wise op on such tensors of known sizes. `add_constant(node, value)` gives a new input of the graph
    that is always `value`."""
    known: dict[torch.fx.Node, torch.Tensor] = {}
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.Tensor) or not _is_plain(value):
            continue
        number = _number(node, known)
        if number is None or number.dtype != value.dtype:
            continue
        known[node] = number
        if node.target not in SHOWN and (node.target not in FILLED or value.dtype == torch.uint8):
            with unset_fake_temporarily():
                # torch-mlir lowers no aten.full of uint8.
                made = add_constant(node, number.expand(value.shape).clone()) if number.dtype == torch.uint8 else call_before(
                    node, aten.full.default, (list(value.shape), number.item()), {"dtype": value.dtype, "device": value.device, "pin_memory": False})
            node.replace_all_uses_with(made)
            graph.erase_node(node)
            known[made] = known.pop(node)


def _is_plain(value) -> bool:
    return value.layout == torch.strided and not value.is_complex() and not is_empty(value) and all(isinstance(n, int) for n in value.shape)


def _number(node, known) -> torch.Tensor | None:
    """The number as a tensor without axes; None: there is none."""
    if node.target in FILLED:
        number = node.args[FILLED[node.target]]
        with unset_fake_temporarily():
            return torch.tensor(number, dtype=node.meta["val"].dtype) if isinstance(number, (bool, int, float)) else None
    if node.target in SHOWN:
        return known.get(node.args[0])
    is_elementwise = node.target in CONVERTED or torch.Tag.pointwise in getattr(node.target, "tags", ())
    operands = node.all_input_nodes
    if not is_elementwise or not operands or any(one not in known for one in operands):
        return None
    with unset_fake_temporarily(), torch.no_grad():
        # With as many axes as there are, by which types follow.
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda one: known[one].reshape([1] * one.meta["val"].dim()))
        kwargs = {name: value for name, value in kwargs.items() if name not in ("layout", "pin_memory", "memory_format")}
        made = node.target(*args, **kwargs)
        return made.reshape([]) if isinstance(made, torch.Tensor) and made.numel() == 1 else None
