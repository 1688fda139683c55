"""`torch.nn.attention.flex_attention` in graphs that are compiled: products, a softmax, and the functions of scores and masks on all pairs at
once, as eager PyTorch computes it, where raising reads the maps and their masks."""

from __future__ import annotations

import math

import torch

from .graph import in_order_of

aten = torch.ops.aten
_FLEX = torch.ops.higher_order.flex_attention
#: How torch.export writes `x[index, ..]` in a function of the module: a call by the name of what is called.
_FLAT_APPLY, _INDEX = torch.ops.higher_order.flat_apply, "torch._dynamo._trace_wrapped_higher_order_op.ModIndex"


def spell_flex(module: torch.fx.GraphModule) -> None:
    """Puts what can be traced in place of the op, in the graph of `module`."""
    graph = module.graph
    for node in [node for node in graph.nodes if node.target is _FLEX]:
        query, key, value, score, mask, scale, _, *buffers = node.args
        functions = [module.get_submodule(one.target) for one in (score, mask[-1])]
        for function in functions:
            _spell_indices(function.graph)
            function.recompile()
        node.target = _of_functions(*functions)
        node.args = (query, key, value, scale, *buffers)
        for one in (score, mask[-1]):
            if not one.users:
                graph.erase_node(one)


def _spell_indices(graph) -> None:
    for node in graph.nodes:
        if node.target is _FLAT_APPLY and node.args[2] == _INDEX:
            _, _, _, x, *indices = node.args
            node.target, node.args = aten.index.Tensor, (x, indices)


def _of_functions(score_of, is_visible):
    """The op with these functions, which no node holds: torch.export takes modules that a function is given for parameters."""

    def flex_attention(query, key, value, scale, score_buffers=(), mask_buffers=()):
        return _attention(query, key, value, scale, lambda *args: score_of(*args, *score_buffers), lambda *args: is_visible(*args, *mask_buffers))

    return flex_attention


def _attention(query, key, value, scale, score_of, is_visible):
    """The result, the logarithms of its sums and its greatest scores, both to the base of 2. The blocks of a mask follow from its function:
    they are not read."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    batch, heads, shared = query.size(0), query.size(1), key.size(1)
    key, value = (_repeated(one, batch, heads // shared) for one in (key, value))
    scores = torch.matmul(query.to(wide), key.to(wide).transpose(-2, -1)) * scale
    places = [torch.arange(size, device=query.device) for size in scores.shape]
    scores = _of_pairs(score_of, (0,))(scores, *places)
    hidden = torch.full((), -math.inf, dtype=wide, device=query.device)
    scores = torch.where(_of_pairs(is_visible, ())(*places), scores, hidden)
    weights = aten._safe_softmax.default(scores, -1)
    result = in_order_of(torch.matmul(weights.to(query.dtype), value), query)
    return result, scores.logsumexp(-1) / math.log(2), scores.amax(-1) / math.log(2)


def _repeated(x, batch, times):
    if times != 1:
        x = x.unsqueeze(2).expand(-1, -1, times, -1, -1).reshape(x.size(0), -1, *x.shape[2:])
    return x.expand(batch, -1, -1, -1)


def _of_pairs(function, first):
    """`function` of one pair of a query and a key, in one head of one sequence, as a function of all of them."""
    for axis in (3, 2, 1, 0):
        function = torch.vmap(function, (*first, *(0 if axis == other else None for other in range(4))))
    return function
