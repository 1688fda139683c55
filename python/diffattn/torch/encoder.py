"""PyTorch's fast path of transformer encoders: a layer that is one op in Dynamo's graph."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.functional import gelu, layer_norm, linear, multi_head_attention_forward, relu

#: `mask_type` of a mask of the keys of each sequence, [batch, keys]; 0 is one of all pairs, [queries, keys], 2 [batch, heads, queries, keys].
_OF_KEYS = 1


def encoder_layer(src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps, norm_weight_1,
                  norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2, mask=None, mask_type=None):
    """aten._transformer_encoder_layer_fwd. As the kernel has it, a mask hides pairs where it is not 0, also one of floats, and a query all of
    whose keys are hidden becomes NaN."""
    masks = {}
    if mask is not None:
        nothing = torch.zeros((), dtype=src.dtype, device=src.device)
        added = torch.where(mask.to(torch.bool), nothing - torch.inf, nothing)
        masks = {"key_padding_mask": added} if mask_type == _OF_KEYS else {"attn_mask": added if added.dim() == 2 else added.flatten(0, 1)}

    def attend(x):
        x = x.transpose(0, 1)
        return multi_head_attention_forward(x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, None, None, False, 0.0, proj_weight, proj_bias,
                                            training=False, **masks)[0].transpose(0, 1)

    first_norm, second_norm = (partial(layer_norm, normalized_shape=[embed_dim], weight=weight, bias=bias, eps=eps)
                               for weight, bias in ((norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)))

    def feed_forward(x):
        return linear((gelu if use_gelu else relu)(linear(x, ffn_weight_1, ffn_bias_1)), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attend(first_norm(src))
        return x + feed_forward(second_norm(x))
    x = first_norm(src + attend(src))
    return second_norm(x + feed_forward(x))
