"""The `diff_v1` decoder in plain PyTorch.

It is the model that `train.py` trains and the oracle that the compiled model is tested against, so it is written
from the definition and does everything the slow way: two softmax maps, their difference, one product with the values.

One block is pre-RMSNorm attention and pre-RMSNorm SwiGLU, both with a residual. Attention has H differential heads of
map width d; maps 2j and 2j+1 of the query projection belong to head j, and the value of a head is 2d wide.
"""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


def lambda_init(depth: int) -> float:
    """The constant part of lambda in the layer with 0-based index `depth`."""
    return 0.8 - 0.6 * math.exp(-0.3 * depth)


def rms_norm(x, weight, eps):
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (x.float() * scale).type_as(x) * weight


def rotate_interleaved(x, cos, sin):
    """Rotates the pairs (x[2p], x[2p+1]) of `[B, T, heads, d]` by the angles in `cos` and `sin`, `[B, T, d/2]`."""
    cos, sin = cos[:, :, None], sin[:, :, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
    return rotated.flatten(-2)


class DiffAttention(nn.Module):
    def __init__(self, config, depth):
        super().__init__()
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads", self.heads)
        self.d = config.get("head_dim", config["hidden_size"] // self.heads // 2)
        self.lambda_init = lambda_init(depth)
        hidden = config["hidden_size"]
        self.q_proj = nn.Linear(hidden, 2 * self.heads * self.d, bias=False)
        self.k_proj = nn.Linear(hidden, 2 * self.kv_heads * self.d, bias=False)
        self.v_proj = nn.Linear(hidden, 2 * self.kv_heads * self.d, bias=False)
        self.out_proj = nn.Linear(2 * self.heads * self.d, hidden, bias=False)
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            self.register_parameter(name, nn.Parameter(0.1 * torch.randn(self.d)))
        self.subln = nn.Module()
        self.subln.weight = nn.Parameter(torch.ones(2 * self.d))

    def lambda_full(self):
        first = torch.exp((self.lambda_q1 * self.lambda_k1).sum())
        second = torch.exp((self.lambda_q2 * self.lambda_k2).sum())
        return first - second + self.lambda_init

    def attend(self, q, k, v):
        """The heads' normalized outputs `[B, heads, T, 2d]`, where each token sees itself and those before it.

        Queries are `[B, 2, heads, T, d]`, keys `[B, 2, kv_heads, T, d]`: the map comes before the head. Values are
        `[B, kv_heads, T, 2d]`.
        """
        length, group = q.shape[3], self.heads // self.kv_heads
        k = k.repeat_interleave(group, dim=2)
        v = v.repeat_interleave(group, dim=1)
        scores = q @ k.transpose(-1, -2) * self.d**-0.5
        hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        maps = scores.float().masked_fill(hidden, -math.inf).softmax(-1).type_as(q)
        out = (maps[:, 0] - self.lambda_full().type_as(q) * maps[:, 1]) @ v
        return rms_norm(out, self.subln.weight, 1e-5) * (1 - self.lambda_init)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q = rotate_interleaved(self.q_proj(x).view(batch, length, -1, self.d), cos, sin)
        k = rotate_interleaved(self.k_proj(x).view(batch, length, -1, self.d), cos, sin)
        v = self.v_proj(x).view(batch, length, self.kv_heads, 2 * self.d)
        # [B, T, heads, 2, d] -> [B, 2, heads, T, d]
        q = q.view(batch, length, self.heads, 2, self.d).permute(0, 3, 2, 1, 4)
        k = k.view(batch, length, self.kv_heads, 2, self.d).permute(0, 3, 2, 1, 4)
        out = self.attend(q, k, v.transpose(1, 2))
        return self.out_proj(out.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    def __init__(self, config, depth):
        super().__init__()
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.eps = config["rms_norm_eps"]
        self.input_layernorm = nn.Module()
        self.input_layernorm.weight = nn.Parameter(torch.ones(hidden))
        self.self_attn = DiffAttention(config, depth)
        self.post_attention_layernorm = nn.Module()
        self.post_attention_layernorm.weight = nn.Parameter(torch.ones(hidden))
        self.mlp = nn.Module()
        self.mlp.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.mlp.up_proj = nn.Linear(hidden, inner, bias=False)
        self.mlp.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(rms_norm(x, self.input_layernorm.weight, self.eps), cos, sin)
        y = rms_norm(x, self.post_attention_layernorm.weight, self.eps)
        return x + self.mlp.down_proj(F.silu(self.mlp.gate_proj(y)) * self.mlp.up_proj(y))


class DiffV1(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.model.layers = nn.ModuleList(Block(config, i) for i in range(config["num_hidden_layers"]))
        self.model.norm = nn.Module()
        self.model.norm.weight = nn.Parameter(torch.ones(config["hidden_size"]))
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        for name, parameter in self.named_parameters():
            if name.endswith(("out_proj.weight", "down_proj.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config["num_hidden_layers"]))
        if config.get("tie_word_embeddings", False):
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, ids, positions=None):
        """Logits `[B, T, vocab]` of the token ids `[B, T]`, at positions 0, 1, ... unless given as `[B, T]`."""
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        d = self.model.layers[0].self_attn.d
        pairs = torch.arange(d // 2, device=ids.device, dtype=torch.float32)
        frequencies = self.config["rope_theta"] ** (-2 * pairs / d)
        angles = positions[..., None].float() * frequencies
        cos, sin = angles.cos(), angles.sin()
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos.type_as(x), sin.type_as(x))
        return self.lm_head(rms_norm(x, self.model.norm.weight, self.config["rms_norm_eps"]))


def load(directory) -> DiffV1:
    """The model in `directory`, its weights widened to f32."""
    from safetensors.torch import load_file

    directory = Path(directory)
    model = DiffV1(json.loads((directory / "config.json").read_text()))
    state = {name: tensor.float() for name, tensor in load_file(directory / "model.safetensors").items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = {"lm_head.weight"} if model.config.get("tie_word_embeddings", False) else set()
    if unexpected or set(missing) - tied:
        raise ValueError(f"expected the weights of diff_v1, but got missing {missing} and unexpected {unexpected}")
    return model.eval()


@torch.no_grad()
def bits_per_character(model, tokens, characters, window, bos):
    """How many bits the model needs for a character of the text that became `tokens`.

    The text is cut into pieces of half a window. Each piece is predicted with `bos` and up to half a window of text
    before it in view, so that every token is scored exactly once.
    """
    half, nats = window // 2, 0.0
    for start in range(0, len(tokens), half):
        first = max(0, start - (window - half - 1))
        ids = torch.tensor([[bos, *tokens[first : start + half]]])
        log_p = model(ids[:, :-1]).log_softmax(-1)[0]
        scored = ids[0, 1 + start - first :]
        nats -= log_p[start - first :].gather(1, scored[:, None]).double().sum().item()
    return nats / math.log(2) / characters
