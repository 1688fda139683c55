"""timm's differential attention, and its block that computes attention and MLP beside each other."""

from __future__ import annotations

import timm
import torch
from timm.layers import RmsNorm
from timm.layers.diff_attention import DiffAttention
from timm.models.vision_transformer import DiffParallelScalingBlock

from ...errors import UsageError


#: The parameters of both classes' forwards.
_FORMS = (("x", "attn_mask", "is_causal"),)


def _check(module: torch.nn.Module, name: str) -> None:
    if not isinstance(module.sub_norm, RmsNorm):
        raise UsageError(f"model: expected {name!r} to have a sub_norm of timm's RmsNorm, but got {module.sub_norm}")


def _attend(module, q, k, v, attn_mask, is_causal) -> torch.Tensor:
    """Computes attention from projections [B, T, width] to the normed heads side by side: even heads of q and k are map 1, odd ones map 2."""
    if module.training and module.attn_drop_p > 0:
        raise UsageError("attn_drop: expected 0 in a patched model in training, because the op keeps no maps to drop parts of, but got "
                         f"{module.attn_drop_p}")
    batch, length, width = v.shape
    q, k = (x.reshape(batch, length, 2 * module.num_heads, module.head_dim).transpose(1, 2) for x in (q, k))
    v = v.reshape(batch, length, module.num_heads, 2 * module.head_dim).transpose(1, 2)
    # Under autocast, projections are rounded to another type than norms.
    q, k = module.q_norm(q).to(v.dtype), module.k_norm(k).to(v.dtype)
    out = torch.ops.diffattn.attention(
        q[:, ::2], k[:, ::2], q[:, 1::2], k[:, 1::2], v, module._compute_lambda().type_as(q), attn_mask=attn_mask,
        is_causal=is_causal, scale=module.scale, norm="rms", norm_weight=module.sub_norm.weight, norm_eps=module.sub_norm.eps,
        out_scale=1 - module.lambda_init)
    return out.transpose(1, 2).reshape(batch, length, width)


class FusedDiffAttention(DiffAttention):
    """`DiffAttention`, computed by the op."""

    unfused, version, forms, check = DiffAttention, timm.__version__, _FORMS, staticmethod(_check)

    def forward(self, x, attn_mask=None, is_causal=False):
        """Computes as the class that it replaces."""
        out = _attend(self, *self.qkv(x).chunk(3, dim=2), attn_mask, is_causal)
        return self.proj_drop(self.proj(self.norm(out)))


class FusedDiffParallelScalingBlock(DiffParallelScalingBlock):
    """`DiffParallelScalingBlock`, its attention computed by the op."""

    unfused, version, forms, check = DiffParallelScalingBlock, timm.__version__, _FORMS, staticmethod(_check)

    def forward(self, x, attn_mask=None, is_causal=False):
        """Computes as the class that it replaces."""
        mlp, *qkv = self.in_proj(self.in_norm(x)).split(self.in_split, dim=-1)
        if self.mlp_bias is not None:
            mlp = mlp + self.mlp_bias
        both = torch.cat((_attend(self, *qkv, attn_mask, is_causal), self.mlp_drop(self.mlp_act(mlp))), dim=-1)
        return x + self.drop_path(self.ls(self.out_proj(both)))
