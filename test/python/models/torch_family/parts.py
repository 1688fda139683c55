"""Parts shared by the models: decoders, norms, MLPs, and rotations by position."""
import math

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 96


def lambda_start(depth):
    """The part of lambda that is not learned, by the number of the layer, which V1 counts from 0."""
    return 0.8 - 0.6 * math.exp(-0.3 * depth)


class RMSNorm(nn.Module):
    """Normalises in f32 and rounds before the weight, as Llama and unilm do."""

    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x) * self.weight


class SwiGLU(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LambdaVectors(nn.Module):
    """V1's lambda of a layer: exp(q1·k1) − exp(q2·k2) + its start."""

    def __init__(self, width, start):
        super().__init__()
        self.start = start
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            setattr(self, name, nn.Parameter(torch.randn(width) * 0.3))

    def forward(self, like):
        first = torch.exp(torch.sum(self.lambda_q1 * self.lambda_k1, dim=-1).float()).type_as(like)
        second = torch.exp(torch.sum(self.lambda_q2 * self.lambda_k2, dim=-1).float()).type_as(like)
        return first - second + self.start


class Rotary(nn.Module):
    """Cosines and sines [T, width/2] of all positions up to a length."""

    def __init__(self, width, base=10000.0):
        super().__init__()
        self.register_buffer("inv_freq", base ** -(torch.arange(0, width, 2).float() / width), persistent=False)

    def forward(self, length, like):
        angles = torch.outer(torch.arange(length, device=like.device).float(), self.inv_freq.float())
        return angles.cos().type_as(like), angles.sin().type_as(like)


def rotate_pairs(x, cos, sin):
    """Neighbouring elements [..., 2i] and [..., 2i + 1] of `x` [B, T, heads, width] rotate together."""
    cos, sin = cos[:, None, :], sin[:, None, :]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def rotate_half(x, cos, sin):
    """Element i of `x` [B, heads, T, width] rotates with element i + width/2."""
    cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2:]
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def repeat_kv(x, times):
    """Heads of [B, heads, T, width] that serve `times` queries each."""
    batch, heads, length, width = x.shape
    if times == 1:
        return x
    return x[:, :, None, :, :].expand(batch, heads, times, length, width).reshape(batch, heads * times, length, width)


class Block(nn.Module):
    def __init__(self, mixer, mlp, width, norm=RMSNorm):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norm(width), norm(width)
        self.mixer, self.mlp = mixer, mlp

    def forward(self, x, *context):
        x = x + self.mixer(self.input_layernorm(x), *context)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Ids [B, T] to logits [B, T, V]. `mixer(depth)` and `mlp()` make the parts of a layer; mixers take x, then cosines and sines, then
    the context (a mask, another sequence) if there is one."""

    def __init__(self, width, mixer, mlp=None, rotary=None, layers=2, norm=RMSNorm):
        super().__init__()
        mlp = mlp or (lambda: SwiGLU(width, 2 * width))
        self.embed_tokens = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Block(mixer(depth), mlp(), width, norm) for depth in range(layers))
        self.norm, self.lm_head = norm(width), nn.Linear(width, VOCABULARY, bias=False)
        self.rotary = Rotary(rotary) if rotary else None

    def forward(self, ids, context=None):
        x = self.embed_tokens(ids)
        given = [] if self.rotary is None else [self.rotary(ids.shape[1], x)]
        if context is not None:
            given.append(context)
        for layer in self.layers:
            x = layer(x, *given)
        return self.lm_head(self.norm(x))
