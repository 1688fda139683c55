"""DiffLlama's attention of transformers."""

from __future__ import annotations

import torch
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention, apply_rotary_pos_emb

from ...errors import UsageError

#: Those whose masks are tensors that the op takes, and no other kernels' own.
_IMPLEMENTATIONS = ("eager", "sdpa")


class FusedDiffLlamaAttention(DiffLlamaAttention):
    """The module as the op computes it: the first half of the heads is map 1, the second map 2; a value is two of its."""

    unfused = DiffLlamaAttention

    @staticmethod
    def check(module: DiffLlamaAttention, name: str) -> None:
        if not isinstance(module.groupnorm, torch.nn.RMSNorm) or module.groupnorm.eps is None:
            raise UsageError(f"model: expected {name!r} to have a groupnorm of torch.nn.RMSNorm with eps, but got {module.groupnorm}")

    def forward(self, hidden_states, position_embeddings, attention_mask=None, past_key_values=None, **kwargs):
        """As the class that it replaces, but None for the weights."""
        implementation = self.config._attn_implementation
        if implementation not in _IMPLEMENTATIONS:
            raise UsageError(f"attn_implementation: expected {' or '.join(_IMPLEMENTATIONS)} in a patched model, but got "
                             f"{implementation!r}")
        if kwargs.get("output_attentions"):
            raise UsageError("output_attentions: expected False in a patched model, because the op keeps no attention weights")
        shape = hidden_states.shape[:-1]
        q, k, v = (projection(hidden_states).view(*shape, -1, self.head_dim).transpose(1, 2)
                   for projection in (self.q_proj, self.k_proj, self.v_proj))
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        # Under autocast, projections are rounded to another type than the rotary embedding.
        (q1, q2), (k1, k2) = q.to(v.dtype).chunk(2, dim=1), k.to(v.dtype).chunk(2, dim=1)
        # Without a mask, the first query is at the first key, and a single one sees all keys: as transformers calls SDPA.
        is_causal = attention_mask is None and implementation == "sdpa" and q.shape[2] > 1
        out = torch.ops.diffattn.attention(
            q1, k1, q2, k2, torch.cat(v.chunk(2, dim=1), dim=-1), self._lambda(q.dtype), scale=self.scaling, attn_mask=attention_mask,
            is_causal=is_causal, q_offset=torch.zeros((), dtype=torch.int64, device="cpu") if is_causal else None, norm="rms",
            norm_weight=self.groupnorm.weight, norm_eps=self.groupnorm.eps, out_scale=1 - self.lambda_init)
        return self.o_proj(out.transpose(1, 2).reshape(*shape, -1)), None

    def _lambda(self, dtype: torch.dtype) -> torch.Tensor:
        one, two = (torch.exp((q * k).sum(-1, dtype=torch.float32)).to(dtype)
                    for q, k in ((self.lambda_q1, self.lambda_k1), (self.lambda_q2, self.lambda_k2)))
        return one - two + self.lambda_init
