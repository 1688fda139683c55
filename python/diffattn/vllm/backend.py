"""Differential attention as a backend of vLLM: keys and values in pages, one call of the operator for all requests of a step.

A page of S tokens is memory of the layer's own:

    keys      [pages, key heads, S, width]: those of map 1, then those of map 2; or keys that both maps share
    values    [pages, key-value heads, S, value width]

both in the bytes that vLLM has for a page of `num_kv_heads` heads of keys and of values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.attention import Attention
from vllm.utils.torch_utils import _encode_layer_name
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder, AttentionType, CommonAttentionMetadata, MultipleOf
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheLayout

from .._attention import attention
from ..errors import UsageError
from ..sequence_tables import PageTable

#: The backend's name in vLLM.
NAME = "DIFFATTN"
#: Types of caches that hold what projections give, unchanged.
_CACHE_TYPES = ("auto", "float16", "bfloat16", "float32")


@dataclass
class Metadata:
    """Facts of a step that all layers share: the page and row where each token's keys and values go [tokens], and which pages requests have."""

    tokens: int
    pages: torch.Tensor
    rows: torch.Tensor
    #: Whether each request has one query, so that they are a batch.
    is_decode: bool
    #: Where requests begin among the queries [N + 1], how many keys they have [N], and their pages [N, M].
    query_starts: torch.Tensor
    lengths: torch.Tensor
    block_table: torch.Tensor
    _arguments: dict[str, Any] | None = None

    def attention_arguments(self, pages: int, rows: int) -> dict[str, Any]:
        """The last three as arguments of `attention`. In memory of the host the first layer of a step checks them: that there are so many pages,
        with so many rows each. On a device they are used where they lie, unchecked."""
        if self._arguments is None:
            starts = {} if self.is_decode else {"cu_seqlens_q": self.query_starts}
            device = self.block_table.device
            if device.type == "cpu":
                starts.update({} if self.is_decode else {"queries": self.tokens})
                self._arguments = {"block_table": PageTable(self.block_table, self.lengths, pages=pages, rows=rows, **starts)}
            else:
                self._arguments = {"block_table": self.block_table, "kv_len": self.lengths.long(), **starts, "target": f"{device.type}@{device.index or 0}"}
        return self._arguments


class MetadataBuilder(AttentionMetadataBuilder[Metadata]):
    """Makes `Metadata` of what vLLM's runner knows of a step."""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        if type(kv_cache_spec) is not FullAttentionSpec:
            raise UsageError(f"kv_cache_spec: expected FullAttentionSpec, because the pages of differential attention hold every key, but got "
                             f"{type(kv_cache_spec).__name__}")

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False) -> Metadata:
        common, rows = common_attn_metadata, self.kv_cache_spec.block_size
        if common.causal is not True:
            raise UsageError("causal: expected True, because queries of requests see the keys before them, which those of trees of drafts and of "
                             f"encoders do not, but got {'False' if common.causal is False else 'a mask'}")
        slots = common.slot_mapping[:common.num_actual_tokens].long()
        return Metadata(common.num_actual_tokens, slots // rows, slots % rows, common.max_query_len == 1 and common.num_actual_tokens == common.num_reqs,
                        common.query_start_loc[:common.num_reqs + 1], common.seq_lens[:common.num_reqs], common.block_table_tensor[:common.num_reqs])


class Backend(AttentionBackend):
    """Told to layers by their models; no option chooses it."""

    forward_includes_kv_cache_update = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = list(_CACHE_TYPES)

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type[Impl]:
        return Impl

    @staticmethod
    def get_builder_cls() -> type[MetadataBuilder]:
        return MetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None) -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        # A layer's pages are dense, one behind the other.
        return (KVCacheLayout.LBHNC,)


if NAME not in AttentionBackendEnum.__members__:
    register_backend(NAME, f"{__name__}.Backend")


class Impl(AttentionImpl[Metadata]):
    """The attention of one layer on one rank: `signals` heads of the result, `noises` heads of map 2; `shares_keys`: both maps have the same."""

    def __init__(self, num_heads, head_size, scale, num_kv_heads, alibi_slopes=None, sliding_window=None, kv_cache_dtype="auto",
                 logits_soft_cap=None, attn_type=AttentionType.DECODER, kv_sharing_target_layer_name=None, *, signals: int, noises: int,
                 shares_keys: bool, options: dict[str, Any]):
        # vLLM's own reports read these.
        self.num_heads, self.head_size, self.scale, self.num_kv_heads = num_heads, head_size, scale, num_kv_heads
        self.kv_cache_dtype, self.sliding_window = kv_cache_dtype, -1
        for name, value in (("alibi_slopes", alibi_slopes), ("sliding_window", sliding_window), ("logits_soft_cap", logits_soft_cap),
                            ("kv_sharing_target_layer_name", kv_sharing_target_layer_name)):
            if value:
                raise UsageError(f"{name}: expected none, because no differential model has it, but got {value}")
        if kv_cache_dtype not in _CACHE_TYPES:
            raise UsageError(f"kv_cache_dtype: expected one of {', '.join(_CACHE_TYPES)}, because the kernels read keys and values as they are, "
                             f"but got {kv_cache_dtype}")
        if attn_type != AttentionType.DECODER:
            raise UsageError(f"attn_type: expected {AttentionType.DECODER.value}, because queries see the keys before them, but got "
                             f"{getattr(attn_type, 'value', attn_type)}")
        for name, size in (("decode_context_parallel_size", self.dcp_world_size), ("prefill_context_parallel_size", self.pcp_world_size)):
            if size > 1:
                raise UsageError(f"{name}: expected 1, because a rank has all keys of its heads, but got {size}")
        self.signals, self.noises, self.maps = signals, noises, 1 if shares_keys else 2
        self.key_value_heads = num_kv_heads // self.maps
        self.value_size = self.maps * head_size
        self.options = {"scale": scale, "is_causal": True, **options}
        #: [] f32, of the whole layer; None: each call has its own.
        self.lam: torch.Tensor | None = None
        self._cache, self._views = None, None

    def forward(self, layer, query, key, value, kv_cache, attn_metadata: Metadata | None, output, output_scale=None, output_block_scale=None):
        """query [tokens, signals + noises, width], key [tokens, key heads, width] and value [tokens, key-value heads, value width] go into
        `output` [tokens, signals, value width]. `output_scale` is lambda's logits [tokens, signals] f32 where `lam` is None: vLLM's op has no
        other argument that would carry them, and none of these layers scales its output."""
        if attn_metadata is None:  # while vLLM warms up
            return output.zero_()
        data, count = attn_metadata, attn_metadata.tokens
        if kv_cache is not self._cache:
            self._keep_views(kv_cache)
        key_slots, value_slots, keys1, keys2, values = self._views
        key_slots[data.pages, data.rows] = key[:count]
        value_slots[data.pages, data.rows] = value[:count]
        query, output = query[:count], output[:count]
        lam = self.lam if output_scale is None else output_scale[:count]
        if data.is_decode:
            query, output = query[:, :, None], output[:, :, None]
            lam = lam[:, None] if lam.dim() else lam
        else:
            query, output = query.transpose(0, 1)[None], output.transpose(0, 1)[None]
            lam = lam[None] if lam.dim() else lam
        attention(query[:, :self.signals], keys1, query[:, self.signals:], keys2, values, lam, out=output,
                  **data.attention_arguments(values.shape[0], values.shape[2]), **self.options)
        return output

    def _keep_views(self, cache: torch.Tensor) -> None:
        """Keeps the views of a cache that calls need, so that a layer makes them once: slots of keys and values [pages, S, heads, width], keys of
        map 1 and of map 2, and values."""
        keys, values = self._pages(cache)
        heads = self.key_value_heads
        self._views = keys.transpose(1, 2), values.transpose(1, 2), keys[:, :heads], keys[:, -heads:], values
        self._cache = cache

    def _pages(self, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all pages where `cache` has them: [pages, num_kv_heads, S, 2 width] by vLLM's count."""
        pages, heads, rows, columns = cache.shape
        size = heads * rows * columns
        if (heads, columns) != (self.num_kv_heads, 2 * self.head_size) or cache[0].stride() != (rows * columns, columns, 1):
            raise UsageError(f"kv_cache: expected dense pages [{self.num_kv_heads}, rows, {2 * self.head_size}], but got shape "
                             f"{list(cache.shape)} with strides {list(cache.stride())}")
        flat = cache.as_strided((pages, size), (cache.stride(0), 1))
        keys, values = flat.split(size // 2, dim=1)
        return keys.unflatten(1, (heads, rows, self.head_size)), values.unflatten(1, (self.key_value_heads, rows, self.value_size))


class DifferentialAttention(Attention):
    """vLLM's layer of attention around `Impl`; its result has `signals` heads of `value width`. `lam` gives lambda of the layer, once its
    weights are there; None: it comes with each call."""

    def __init__(self, *, heads: int, width: int, kv_heads: int, signals: int, shares_keys: bool, options: dict[str, Any],
                 lam: Callable[[], torch.Tensor] | None, cache_config, prefix: str):
        # vLLM wants a multiple of the key heads for the query heads, which groups of signal heads need not be; ours are signals and noises.
        super().__init__(kv_heads, width, options.pop("scale", width**-0.5), num_kv_heads=kv_heads, cache_config=cache_config, prefix=prefix,
                         attn_backend=Backend, signals=signals, noises=heads - signals, shares_keys=shares_keys, options=options)
        self._lambda = lam

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        super().process_weights_after_loading(act_dtype)
        if self._lambda is not None:
            self.impl.lam = self._lambda()

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Rows of the three projections, [tokens, heads x width], and lambda's logits [tokens, signals] or None; gives rows of the result."""
        impl, tokens = self.impl, query.shape[0]
        output = query.new_empty(tokens, impl.signals, impl.value_size)
        torch.ops.vllm.unified_attention_with_output(
            query.view(tokens, -1, impl.head_size), key.view(tokens, -1, impl.head_size), value.view(tokens, -1, impl.value_size), output,
            _encode_layer_name(self.layer_name), output_scale=logits)
        return output.view(tokens, -1)
