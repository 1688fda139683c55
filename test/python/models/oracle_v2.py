"""The second differential transformer in plain PyTorch, written from its definition."""
import reference
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, config, depth):
        super().__init__()
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.d = config.get("head_dim", config["hidden_size"] // self.heads)
        hidden = config["hidden_size"]
        self.q_proj = nn.Linear(hidden, 2 * self.heads * self.d, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.d, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.d, bias=False)
        self.lambda_proj = nn.Linear(hidden, self.heads, bias=False)
        self.o_proj = nn.Linear(self.heads * self.d, hidden, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        split = lambda rows: rows.view(batch, length, -1, self.d)
        q = reference.rotate_interleaved(split(self.q_proj(x)), cos, sin).transpose(1, 2)
        k = reference.rotate_interleaved(split(self.k_proj(x)), cos, sin).transpose(1, 2)
        v = split(self.v_proj(x)).transpose(1, 2)
        group = 2 * self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        lam = torch.sigmoid(self.lambda_proj(x)).transpose(1, 2)[..., None]
        out = out[:, 0::2] - lam * out[:, 1::2]
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class DiffV2(reference.DiffV1):
    """The frame is that of the first one; only the attention is another."""

    def __init__(self, config):
        super().__init__(config | {"head_dim": config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])})
        for depth, layer in enumerate(self.model.layers):
            layer.self_attn = Attention(config, depth)
