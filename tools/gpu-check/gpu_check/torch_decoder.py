"""DiffLlama in plain PyTorch, the peer of the timed decoder: what someone would write who wants it to be fast without a kernel of
their own. Two calls of scaled_dot_product_attention for the two maps, joined projections, caches that are written in place.

The model is that of `"model_type": "diffllama"` (docs/models.md), with its names of weights; caches are laid out as there.
"""
import copy
import math

import torch
from torch.nn.functional import linear, scaled_dot_product_attention, silu


def _norm(x, weight, eps):
    """RMS over the last axis, in f32, rounded to the type of `x`."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide if weight is None else wide * weight).to(x.dtype)


def _rotate(x, cos, sin):
    """`x` [B,T,heads,width]; `cos` and `sin` [T,1,width/2] in f32. Halves are turned, not pairs side by side."""
    low, high = x.float().chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(x.dtype)


class Layer:
    """The weights of a layer, as its functions take them."""

    def __init__(self, weights, number, dtype):
        def get(name):
            return weights[f"model.layers.{number}.{name}"]

        self.joined = torch.cat([get(f"self_attn.{name}_proj.weight") for name in "qkv"]).to(dtype)
        self.out = get("self_attn.o_proj.weight").to(dtype)
        self.gated = torch.cat([get(f"mlp.{name}_proj.weight") for name in ("gate", "up")]).to(dtype)
        self.down = get("mlp.down_proj.weight").to(dtype)
        self.norms = [get(f"{name}_layernorm.weight").float() for name in ("input", "post_attention")]
        first, second = (torch.exp(torch.dot(get(f"self_attn.lambda_q{i}").float(), get(f"self_attn.lambda_k{i}").float()))
                         for i in (1, 2))
        init = 0.8 - 0.6 * math.exp(-0.3 * number)
        self.mixing = first - second + init
        # A tensor, since torch.compile would compile once more for each number.
        self.keep = torch.tensor(1 - init, device=self.out.device)


class TorchDecoder:
    """`weights`: tensors by their names in the file. `element`: of matrices, caches and activations."""

    def __init__(self, config, weights, element):
        self.maps = config["num_attention_heads"]
        if config["num_key_value_heads"] != self.maps:
            raise ValueError(f"expected {self.maps} key-value heads, as this peer has no groups, but got {config['num_key_value_heads']}")
        self.hidden, self.eps = config["hidden_size"], config["rms_norm_eps"]
        self.width = self.hidden // self.maps
        self.layers = [Layer(weights, number, element) for number in range(config["num_hidden_layers"])]
        self.embedding = weights["model.embed_tokens.weight"].to(element)
        self.norm = weights["model.norm.weight"].float()
        powers = torch.arange(0, self.width, 2, device=self.embedding.device).float() / self.width
        self.frequencies = config["rope_theta"] ** -powers
        self.before, self.after = self._before, self._after

    def compiled(self, backend):
        """This model with the ops before and after the attention by torch.compile, on the same weights."""
        other = copy.copy(self)
        other.before = torch.compile(self._before, dynamic=False, backend=backend)
        other.after = torch.compile(self._after, dynamic=False, backend=backend)
        return other

    def _before(self, x, weight, joined, cos, sin):
        """Rotated queries and keys and the joined values of a layer: [B,T,maps,width] twice, [B,T,maps/2,2 width]."""
        batch, length, _ = x.shape
        q, k, v = linear(_norm(x, weight, self.eps), joined).view(batch, length, 3, self.maps, self.width).unbind(2)
        return _rotate(q, cos, sin), _rotate(k, cos, sin), torch.cat(v.chunk(2, 2), -1)

    def _after(self, x, first, second, mixing, keep, out, weight, gated, down):
        """Ops after the two maps `[B,heads,T,2 width]`: their difference, the norm of each head, projection and MLP."""
        mixed = _norm(first - mixing.to(first.dtype) * second, None, self.eps) * keep
        x = x + linear(mixed.transpose(1, 2).flatten(2), out)
        gate, up = linear(_norm(x, weight, self.eps), gated).chunk(2, -1)
        return x + linear(silu(gate) * up, down)

    @torch.no_grad()
    def step(self, ids, position, kcache, vcache):
        """Logits `[B,V]` in f32 of the last of `ids` [B,T], which stand at `position`, a number, and after. Caches are
        `[layers,B,capacity,maps,width]` and `[layers,B,capacity,maps/2,2 width]`."""
        length, half = ids.shape[1], self.maps // 2
        end = position + length
        angles = torch.arange(position, end, device=ids.device).float()[:, None, None] * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        x = self.embedding[ids]
        for number, layer in enumerate(self.layers):
            q, k, v = self.before(x, layer.norms[0], layer.joined, cos, sin)
            kcache[number, :, position:end] = k
            vcache[number, :, position:end] = v
            keys, values = kcache[number, :, :end].transpose(1, 2), vcache[number, :, :end].transpose(1, 2)
            q = q.transpose(1, 2)
            first, second = (scaled_dot_product_attention(q[:, part], keys[:, part], values, is_causal=length > 1)
                             for part in (slice(None, half), slice(half, None)))
            x = self.after(x, first, second, layer.mixing, layer.keep, layer.out, layer.norms[1], layer.gated, layer.down)
        return linear(_norm(x[:, -1], self.norm, self.eps), self.embedding).float()
