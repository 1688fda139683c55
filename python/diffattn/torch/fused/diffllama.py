"""DiffLlama's attention of transformers."""

from __future__ import annotations

import torch
import transformers
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention, apply_rotary_pos_emb

from ...errors import UsageError
from . import releases

#: Implementations whose masks are tensors that the op takes, not other kernels' own; and the keywords by which a layer changes what
#: they compute, beside `is_causal` of sdpa. All ignore all others, in the tried releases. Continuous batching has the last one for eager.
_CHANGING = {"eager": (), "sdpa": ("position_bias", "softcap"), "paged|eager": ()}
#: Keywords without effect that trainers and layers hand over. In a release that was not tried, others are refused.
_NEUTRAL = frozenset(("position_ids", "use_cache", "cache_position", "num_items_in_batch", "return_dict", "output_attentions",
                      "output_hidden_states", "output_router_logits", "logits_to_keep", "labels", "cu_seq_lens_q", "cu_seq_lens_k",
                      "max_length_q", "max_length_k", "read_index", "write_index", "logits_indices", "logits_processor_args"))
#: Whether callers of the attention hand over `cache`, which they do since 5.24.
_TELLS_CACHE = "cache" in releases.parameters(DiffLlamaAttention.forward)


class FusedDiffLlamaAttention(DiffLlamaAttention):
    """The module as the op computes it: the first half of the heads is map 1, the second map 2; a value is two of its."""

    unfused, version = DiffLlamaAttention, transformers.__version__
    forms = tuple(("hidden_states", "position_embeddings", "attention_mask", cache, "**kwargs") for cache in ("past_key_values", "cache"))

    @staticmethod
    def check(module: DiffLlamaAttention, name: str) -> None:
        if not isinstance(module.groupnorm, torch.nn.RMSNorm) or module.groupnorm.eps is None:
            raise UsageError(f"model: expected {name!r} to have a groupnorm of torch.nn.RMSNorm with eps, but got {module.groupnorm}")

    def forward(self, hidden_states, position_embeddings, attention_mask=None, cache=None, **kwargs):
        """Computes as the class that it replaces, but the weights are None or, with `output_attentions`, those of the difference of both maps,
        `[B, heads, Tq, Tk]`. `cache` is also taken by its name before 5.24, past_key_values."""
        if self.training and self.attention_dropout > 0:
            raise UsageError(f"attention_dropout: expected 0 in a patched model in training, because the op keeps no maps to drop parts of, but "
                             f"got {self.attention_dropout}")
        implementation = self.config._attn_implementation
        if implementation not in _CHANGING:
            raise UsageError(f"attn_implementation: expected {', '.join(_CHANGING)} in a patched model, but got {implementation!r}")
        cache = _one_cache(cache, kwargs.pop("past_key_values", None))
        is_paged = isinstance(cache, PagedAttentionCache)
        if is_paged and kwargs.get("block_table") is not None:
            raise UsageError("block_table: expected none in a patched model, because it is for kernels that write the cache themselves; set "
                             "max_blocks_per_request=0 in the configuration of continuous batching")
        if is_paged and kwargs.get("output_attentions"):
            raise UsageError("output_attentions: expected False under continuous batching, where requests are packed and have no common map")
        if implementation == "paged|eager" and not is_paged:
            raise UsageError("attn_implementation: expected eager or sdpa in a call without the cache of continuous batching, but got 'paged|eager'")
        causal = kwargs.pop("is_causal", None)
        self._check_keywords(kwargs, _CHANGING[implementation])
        shape = hidden_states.shape[:-1]
        q, k, v = (projection(hidden_states).view(*shape, -1, self.head_dim).transpose(1, 2)
                   for projection in (self.q_proj, self.k_proj, self.v_proj))
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx, **({"kwargs": kwargs} if _TELLS_CACHE or is_paged else {}))
        # Under autocast, projections are rounded to another type than the rotary embedding.
        (q1, q2), (k1, k2) = q.to(v.dtype).chunk(2, dim=1), k.to(v.dtype).chunk(2, dim=1)
        # Without a mask, the first query is at the first key, and a single one sees all keys: as transformers calls SDPA.
        is_causal = attention_mask is None and implementation == "sdpa" and q.shape[2] > 1 and (self.is_causal if causal is None else causal)
        if is_paged:
            # Requests follow one another, each with its keys; the mask says the same, of all queries and all keys.
            masks = {"is_causal": True, "cu_seqlens_q": kwargs["cu_seq_lens_q"], "cu_seqlens_k": kwargs["cu_seq_lens_k"]}
        else:
            masks = {"is_causal": is_causal, "attn_mask": attention_mask,
                     "q_offset": torch.zeros((), dtype=torch.int64, device="cpu") if is_causal else None}
        out = torch.ops.diffattn.attention(
            q1, k1, q2, k2, torch.cat(v.chunk(2, dim=1), dim=-1), self._lambda(q.dtype), scale=self.scaling, norm="rms",
            norm_weight=self.groupnorm.weight, norm_eps=self.groupnorm.eps, out_scale=1 - self.lambda_init, **masks)
        weights = None
        if kwargs.get("output_attentions"):
            maps = [_map(q, k, self.scaling, attention_mask, is_causal) for q, k in ((q1, k1), (q2, k2))]
            weights = (maps[0] - self._lambda(q.dtype) * maps[1]).to(q.dtype)
        return self.o_proj(out.transpose(1, 2).reshape(*shape, -1)), weights

    def _lambda(self, dtype: torch.dtype) -> torch.Tensor:
        one, two = (torch.exp((q * k).sum(-1, dtype=torch.float32)).to(dtype)
                    for q, k in ((self.lambda_q1, self.lambda_k1), (self.lambda_q2, self.lambda_k2)))
        return one - two + self.lambda_init

    def _check_keywords(self, keywords: dict, changing: tuple[str, ...]) -> None:
        """Refuses what would change the result of the replaced forward, and in a release that was not tried what may."""
        tried = self.version in releases.TRIED["transformers"]
        for name, value in keywords.items():
            if value is not None and (name in changing or not (tried or name in _NEUTRAL)):
                raise UsageError(f"{name}: expected none in a patched model, because it {'changes' if tried else 'may change'} what "
                                 f"DiffLlamaAttention computes in transformers {self.version}, and the op has no such argument")


def _map(q: torch.Tensor, k: torch.Tensor, scale: float, mask: torch.Tensor | None, is_causal: bool) -> torch.Tensor:
    """The weights of one map `[B, heads, Tq, Tk]` f32, which the op keeps none of: made once more."""
    scores = torch.matmul(q, k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).transpose(2, 3)).float() * scale
    if mask is not None:
        mask = mask[..., : k.shape[2]]
        scores = torch.where(mask, scores, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1), -torch.inf)
    # Rows that see no key are zeros.
    return torch.softmax(scores, dim=-1).nan_to_num(0.0)


def _one_cache(cache, past_key_values):
    if cache is not None and past_key_values is not None and cache is not past_key_values:
        raise UsageError("cache: expected one cache, but got cache and past_key_values")
    return past_key_values if cache is None else cache
