"""PyTorch's fast path of transformer encoders: a layer, or its attention, that is one op in Dynamo's graph, and tokens that a padding mask
hides.

In eager PyTorch, `nn.TransformerEncoder` leaves padding out of its layers (nested tensors) and puts zeros in its place. Under tracing it
does not, so that its result has other numbers there. `zero_padding` and `padding_zeroed` compute the zeros, under the conditions of
`nn.TransformerEncoder.forward`: the mask is the only one, and in no sequence does a visible token follow a hidden one.
"""

from __future__ import annotations

import ast
import contextlib
import re

import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm, linear, relu

from ..errors import CompileError
from .source import describe, dynamo_frame

aten = torch.ops.aten

_LAYER = (torch._transformer_encoder_layer_fwd, aten._transformer_encoder_layer_fwd.default)
_PLACES = {argument.name: place for place, argument in enumerate(aten._transformer_encoder_layer_fwd.default._schema.arguments)}
#: `mask_type` of a mask of the keys of each sequence, [batch, keys]; 0 is one of all pairs, [queries, keys], 2 [batch, heads, queries, keys].
_OF_KEYS = 1


def rules() -> dict:
    return {aten._transformer_encoder_layer_fwd.default: encoder_layer, aten._native_multi_head_attention.default: multi_head_attention}


def encoder_layer(src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps, norm_weight_1,
                  norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2, mask=None, mask_type=None):
    def first_norm(x):
        return layer_norm(x, [embed_dim], norm_weight_1, norm_bias_1, eps)

    def second_norm(x):
        return layer_norm(x, [embed_dim], norm_weight_2, norm_bias_2, eps)

    def attend(x):
        return multi_head_attention(x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type)[0]

    def feed_forward(x):
        return linear((gelu if use_gelu else relu)(linear(x, ffn_weight_1, ffn_bias_1)), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attend(first_norm(src))
        return x + feed_forward(second_norm(x))
    x = first_norm(src + attend(src))
    return second_norm(x + feed_forward(x))


def multi_head_attention(query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask=None, need_weights=True,
                         average_attn_weights=True, mask_type=None):
    """The result and the weights of its maps. As the kernel has it, a mask hides pairs where it is not 0, also one of floats, and a query
    all of whose keys are hidden becomes NaN."""
    width = embed_dim // num_head

    def heads(x, parts):
        """[parts, batch, heads, tokens, width]"""
        return x.view(x.size(0), x.size(1), parts, num_head, width).permute(2, 0, 3, 1, 4)

    if query is key and key is value:
        q, k, v = heads(linear(query, qkv_weight, qkv_bias), 3).unbind(0)
    else:
        weights, biases = qkv_weight.view(3, embed_dim, -1), qkv_bias.view(3, embed_dim)
        q, k, v = (heads(linear(one, weights[part], biases[part]), 1)[0] for part, one in enumerate((query, key, value)))
    scores = torch.matmul(q * width ** -0.5, k.transpose(-2, -1))
    if mask is not None:
        hidden = mask.to(torch.bool)
        if mask_type == _OF_KEYS:
            hidden = hidden.view(hidden.size(0), 1, 1, hidden.size(1))
        scores = torch.where(hidden, torch.full((), -torch.inf, dtype=scores.dtype, device=scores.device), scores)
    maps = torch.softmax(scores, -1)
    result = torch.matmul(maps, v).transpose(1, 2).reshape(query.size(0), query.size(1), embed_dim)
    result = linear(result, proj_weight, proj_bias)
    if not need_weights:
        return result, None
    return result, maps.mean(1) if average_attn_weights else maps


def zero_padding(module: torch.fx.GraphModule) -> None:
    """Puts zeros in place of padding behind the last layer of each encoder in a graph of Dynamo."""
    graph = module.graph
    layers = {node: _encoder_of(node) for node in graph.nodes if node.target in _LAYER}
    for node, encoder in layers.items():
        if encoder is None or all(layers.get(user) == encoder and _argument(user, "src") is node for user in node.users):
            continue
        if not _module_of(node, encoder[1]).use_nested_tensor:
            continue
        with graph.inserting_after(node):
            zeroed = graph.call_function(without_padding, (node, _argument(node, "mask")))
        zeroed.meta = {name: value for name, value in node.meta.items() if name in ("stack_trace", "nn_module_stack", "example_value")}
        node.replace_all_uses_with(zeroed, delete_user_cb=lambda user: user is not zeroed and layers.get(user) != encoder)
    module.recompile()


def without_padding(x, mask):
    """The result of an encoder's layers, [batch, tokens, width], with zeros where the mask of keys is not 0."""
    hidden = mask.to(torch.bool)
    visible = torch.logical_not(hidden).to(torch.int64).sum(1, keepdim=True)
    behind = torch.arange(hidden.size(1), device=x.device) >= visible
    hidden = hidden & torch.logical_not(torch.logical_xor(hidden, behind).any())
    return torch.where(hidden.unsqueeze(-1), torch.zeros((), dtype=x.dtype, device=x.device), x)


@contextlib.contextmanager
def padding_zeroed(module: nn.Module):
    """A context in which encoders in `module` that are called put zeros in place of padding, for torch.export, which runs them."""
    masks: dict[nn.Module, torch.Tensor | None] = {}

    def before_first(encoder, args, kwargs):
        masks[encoder] = _padding_mask(encoder, args, kwargs)

    def behind_last(encoder, result):
        mask = masks.pop(encoder, None)
        return result if mask is None else without_padding(result, mask)

    handles = []
    try:
        for encoder in module.modules():
            if isinstance(encoder, nn.TransformerEncoder) and len(encoder.layers):
                handles += [
                    encoder.layers[0].register_forward_pre_hook(
                        lambda _, args, kwargs, encoder=encoder: before_first(encoder, args, kwargs), with_kwargs=True),
                    encoder.layers[-1].register_forward_hook(lambda _, __, result, encoder=encoder: behind_last(encoder, result))]
        yield
    finally:
        for handle in handles:
            handle.remove()


#: What nn.TransformerEncoder.forward gives its layers by name: a subclass may call its layers by itself, without nested tensors.
_GIVEN = {"src_mask", "is_causal", "src_key_padding_mask"}


def _padding_mask(encoder, args, kwargs):
    """The mask in a call of an encoder's first layer, if eager PyTorch leaves padding out for it."""
    leaves_out = (set(kwargs) == _GIVEN and encoder.use_nested_tensor and torch.backends.mha.get_fastpath_enabled()
                  and not encoder.layers[0].training and args[0].dim() == 3 and kwargs["src_mask"] is None
                  and not torch.is_autocast_enabled())
    return kwargs["src_key_padding_mask"] if leaves_out else None


def _argument(node, name):
    place = _PLACES[name]
    return node.args[place] if place < len(node.args) else node.kwargs.get(name)


def _encoder_of(node) -> tuple[str, str] | None:
    """The key of a call of an encoder that gave this layer its mask of keys alone, and the expression for the encoder in Dynamo's frame;
    None: there is none."""
    frame, mask = dynamo_frame(), _argument(node, "mask")
    if _argument(node, "mask_type") != _OF_KEYS or frame is None:
        return None
    called = _calls(node)[:-1]
    # The function that is traced is no call: it may be an encoder's forward, or what of it follows a graph break.
    call, (expression, kind) = called[-1] if called else ("", ("L['self']", type(frame.f_locals.get("self"))))
    if not issubclass(kind, nn.TransformerEncoder):
        return None
    # A subclass may call its layers by itself: these then make floats of the mask, and not the encoder.
    made_by = [key for key, _ in _calls(mask)][-1:]
    is_own = kind.forward is nn.TransformerEncoder.forward or mask.op != "placeholder" and made_by == ([call] if call else [])
    return (call, expression) if is_own else None


def _calls(node) -> list[tuple[str, tuple[str, type]]]:
    """The modules whose calls a node is of, the outermost first: a key for each call, and the module's expression and class."""
    return list((node.meta.get("nn_module_stack") or {}).items())


def _module_of(node, expression: str) -> nn.Module:
    """The module that Dynamo names by `expression`: "L['self'].encoder", of the variables of the frame."""
    frame = dynamo_frame()
    try:
        value = {"L": frame.f_locals, "G": frame.f_globals}[expression[0]]
        for name, index in re.findall(r"\.(\w+)|\[([^\]]+)\]", expression[1:]):
            value = value[ast.literal_eval(index)] if index else getattr(value, "_modules", {}).get(name) or getattr(value, name)
        if isinstance(value, nn.TransformerEncoder):
            return value
    except (AttributeError, LookupError, TypeError, ValueError, SyntaxError):
        pass
    raise CompileError(f"{describe(node)}expected an encoder that can be found from the function that is compiled, because its "
                       f"enable_nested_tensor decides what padding becomes, but got {expression}; "
                       "torch.backends.mha.set_fastpath_enabled(False) keeps what the layers give, and fallback='eager' runs this graph in PyTorch")
