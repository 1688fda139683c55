"""Differential attention as a backend of vLLM: keys and values in pages, one call of the operator for all requests of a step.

A page of S tokens is memory of the layer's own:

    keys      [pages, key heads, S, width]: those of map 1, then those of map 2; or keys that both maps share
    values    [pages, key-value heads, S, value width]

both in the bytes that vLLM has for a page of `num_kv_heads` heads of keys and of values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from vllm.config import CompilationMode, get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.attention.attention import get_attention_context
from vllm.platforms import current_platform
from vllm.utils.torch_utils import _encode_layer_name
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder, AttentionType, CommonAttentionMetadata, MultipleOf
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheLayout

from .._attention import attention
from ..calls import CompiledCode
from ..errors import UsageError
from .step_call import Layout, StepCall, find_layout, keep_layout

#: The backend's name in vLLM.
NAME = "DIFFATTN"
#: Types of caches that hold what projections give, unchanged.
_CACHE_TYPES = ("auto", "float16", "bfloat16", "float32")
#: Steps of at least so many tokens store keys and values by PyTorch, where it has at least so many threads: compiled code stores them on one.
MANY_TOKENS, MANY_THREADS = 512, 5
#: Kinds of layers, so that equal ones are one object.
_kinds: dict[tuple, tuple] = {}


@dataclass
class Metadata:
    """Facts of a step that all layers share: the slot where each token's keys and values go [tokens], row `slot % S` of page `slot / S`, or none
    below 0; and which pages requests have."""

    tokens: int
    slots: torch.Tensor
    #: Whether each request has one query, so that they are a batch.
    is_decode: bool
    #: Where requests begin among the queries [N + 1], how many keys they have [N], and their pages [N, M].
    query_starts: torch.Tensor
    lengths: torch.Tensor
    block_table: torch.Tensor
    #: The arguments of the step's calls on a CPU, with what the layer before had of its own.
    call: StepCall | None = field(init=False, default=None)
    _output: torch.Tensor | None = field(init=False, default=None)
    _arguments: dict[str, Any] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.is_on_host = self.block_table.device.type == "cpu"

    def new_output(self, like: torch.Tensor, columns: int) -> torch.Tensor:
        """Memory of a layer's result, a row for each of `like` and of its type. Layers of a step have it in turns: each projects its result before
        the next one begins."""
        output = self._output
        if output is None or output.size(0) != like.size(0) or output.size(1) != columns or output.dtype is not like.dtype:
            output = self._output = like.new_empty(like.size(0), columns)
        return output

    def tables(self) -> dict[str, np.ndarray]:
        """The last three and the slots, in memory of the host, by the names that compiled code has for them. It checks them in each call."""
        packed = {} if self.is_decode else {"cu_seqlens_q": self.query_starts.numpy()}
        return {"kv_len": self.lengths.numpy().astype(np.int64), "block_table": self.block_table.numpy(), "slots": self.slots.numpy(), **packed}

    def arguments_on_device(self) -> dict[str, Any]:
        """The last three as arguments of `attention`, where they lie on a device, unchecked. The first layer of a step makes them."""
        if self._arguments is None:
            device, packed = self.block_table.device, {} if self.is_decode else {"cu_seqlens_q": self.query_starts}
            self._arguments = {"block_table": self.block_table, "kv_len": self.lengths.long(), **packed, "target": f"{device.type}@{device.index or 0}"}
        return self._arguments


class MetadataBuilder(AttentionMetadataBuilder[Metadata]):
    """Makes `Metadata` of what vLLM's runner knows of a step."""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        if type(kv_cache_spec) is not FullAttentionSpec:
            raise UsageError(f"kv_cache_spec: expected FullAttentionSpec, because the pages of differential attention hold every key, but got "
                             f"{type(kv_cache_spec).__name__}")

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False) -> Metadata:
        common = common_attn_metadata
        if common.causal is not True:
            raise UsageError("causal: expected True, because queries of requests see the keys before them, which those of trees of drafts and of "
                             f"encoders do not, but got {'False' if common.causal is False else 'a mask'}")
        return Metadata(common.num_actual_tokens, common.slot_mapping[:common.num_actual_tokens].long(),
                        common.max_query_len == 1 and common.num_actual_tokens == common.num_reqs,
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
        self._cache, self._views, self._kind, self._addresses = None, None, None, (0, 0, 0)
        #: Code of calls on a CPU by the form of their layout.
        self._codes: dict[int, CompiledCode] = {}

    def forward(self, layer, query, key, value, kv_cache, attn_metadata: Metadata | None, output, output_scale=None, output_block_scale=None):
        """Rows of queries [tokens, (signals + noises) x width], keys [tokens, key heads x width] and values [tokens, key-value heads x value width],
        dense but for the step from one to the next, go into `output` [tokens, signals x value width]. `output_scale` is lambda's logits
        [tokens, signals] f32 where `lam` is None: vLLM's op has no other argument that would carry them, and none of these layers scales its
        output."""
        data = attn_metadata
        if data is None or not data.tokens:  # while vLLM warms up
            return output.zero_()
        if kv_cache is not self._cache:
            self._keep_views(kv_cache)
        lam = self.lam if output_scale is None else output_scale
        if not data.is_on_host:
            self._store(key, value, data)
            attention(**self._operands(query, lam, output, data), **data.arguments_on_device(), **self.options)
            return output
        strides = query.stride(), key.stride(), value.stride(), lam.stride(), output.stride()
        call = data.call
        if call is None or call.kind is not self._kind or call.strides != strides:
            call = data.call = self._new_call(query, key, value, lam, output, data, strides)
        code = self._codes.get(call.form)
        if code is None:
            code = self._codes[call.form] = call.layout.compile(self._plain_options)
        if not call.stores:
            self._store(key, value, data)
        weight = self.norm_weight
        call(code, self._addresses, query.data_ptr(), key.data_ptr(), value.data_ptr(), lam.data_ptr(), weight if weight is None else weight.data_ptr(),
             output.data_ptr())
        return output

    def _new_call(self, query, key, value, lam, output, data: Metadata, strides: tuple) -> StepCall:
        """Arguments of a step's calls, for the first layer and those like it."""
        tables = data.tables()
        stores = data.tokens < MANY_TOKENS or torch.get_num_threads() < MANY_THREADS
        rows = query, key, value, lam, output
        facts = (self._kind, strides, data.is_decode, data.tokens, stores, *[part.shape for part in rows], *[part.dtype for part in rows],
                 *[(array.dtype, array.shape, array.strides) for array in tables.values()])
        layout = find_layout(facts)
        if layout is None:
            layout = self._new_layout(facts, query, key, value, lam, output, data, tables, stores)
        return StepCall(self._kind, strides, layout, tables, stores, self.signals * self.head_size * query.element_size())

    def _new_layout(self, facts: tuple, query, key, value, lam, output, data: Metadata, tables: dict[str, np.ndarray], stores: bool) -> Layout:
        """The layout of calls with these facts, whose rows and tables are checked."""
        for name, rows, columns in (("query", query, (self.signals + self.noises) * self.head_size), ("key", key, self.num_kv_heads * self.head_size),
                                    ("value", value, self.key_value_heads * self.value_size), ("output", output, self.signals * self.value_size)):
            if rows.dim() != 2 or len(rows) < data.tokens or rows.shape[1] != columns or rows.stride(1) != 1:
                raise UsageError(f"{name}: expected dense rows [{data.tokens}, {columns}], but got shape {list(rows.shape)} with strides "
                                 f"{list(rows.stride())}")
        operands = self._operands(query, lam, output, data) | tables
        operands["lambda"], operands["init"] = operands.pop("lam"), operands.pop("out")
        if self.norm_weight is not None:
            operands["norm_weight"] = self.norm_weight
        new = operands.pop("slots"), self._heads(key, data, self.head_size), self._heads(value, data, self.value_size)
        if not stores:
            new = tuple(part[:0] for part in new)
        layout = Layout(operands, self.maps == 1, new, self._plain_options)
        keep_layout(facts, layout)
        return layout

    def _heads(self, rows: torch.Tensor, data: Metadata, width: int) -> torch.Tensor:
        """Rows of the step's tokens, [tokens, heads, width]."""
        return rows[:data.tokens].unflatten(1, (-1, width))

    def _operands(self, query, lam, output, data: Metadata) -> dict[str, torch.Tensor]:
        """The operands of `attention` that have no tables, and `out`."""
        query, output = self._heads(query, data, self.head_size), self._heads(output, data, self.value_size)
        lam = lam[:data.tokens] if lam.dim() else lam
        if data.is_decode:
            query, output = query[:, :, None], output[:, :, None]
            lam = lam[:, None] if lam.dim() else lam
        else:
            query, output = query.transpose(0, 1)[None], output.transpose(0, 1)[None]
            lam = lam[None] if lam.dim() else lam
        _, _, keys1, keys2, values = self._views
        return {"q1": query[:, :self.signals], "k1": keys1, "q2": query[:, self.signals:], "k2": keys2, "v": values, "lam": lam, "out": output}

    def _store(self, key: torch.Tensor, value: torch.Tensor, data: Metadata) -> None:
        key_slots, value_slots, *_ = self._views
        # vLLM gives page 0 to no request.
        rows, slots = key_slots.shape[1], data.slots.clamp(min=0)
        places = slots // rows, slots % rows
        key_slots[places] = self._heads(key, data, self.head_size)
        value_slots[places] = self._heads(value, data, self.value_size)

    def _keep_views(self, cache: torch.Tensor) -> None:
        """Keeps the views of a cache that calls need, so that a layer makes them once: slots of keys and values [pages, S, heads, width], keys of
        map 1 and of map 2, and values."""
        keys, values = self._pages(cache)
        heads = self.key_value_heads
        self._views = keys.transpose(1, 2), values.transpose(1, 2), keys[:, :heads], keys[:, -heads:], values
        self._addresses = tuple(view.data_ptr() for view in self._views[2:])
        self.norm_weight = self.options.get("norm_weight")
        self._plain_options = {name: value for name, value in self.options.items() if name != "norm_weight"}
        weight = None if self.norm_weight is None else (self.norm_weight.dtype, self.norm_weight.shape, self.norm_weight.stride())
        kind = (tuple(cache.shape), cache.stride(), cache.dtype, self.signals, self.noises, self.maps, weight)
        self._kind = _kinds.setdefault(kind, kind)
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
        config = get_current_vllm_config()
        # Without graphs and transfers, for which vLLM's op is there, a layer needs none: its dispatch takes as long as the layer's own Python.
        self._is_called_directly = (current_platform.is_cpu() and config.compilation_config.mode == CompilationMode.NONE
                                    and config.kv_transfer_config is None)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        super().process_weights_after_loading(act_dtype)
        if self._lambda is not None:
            self.impl.lam = self._lambda()

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Rows of the three projections, [tokens, heads x width], and lambda's logits [tokens, signals] or None; gives rows of the result."""
        impl = self.impl
        if not self._is_called_directly:
            output = query.new_empty(query.shape[0], impl.signals * impl.value_size)
            torch.ops.vllm.unified_attention_with_output(query, key, value, output, _encode_layer_name(self.layer_name), output_scale=logits)
            return output
        steps = get_forward_context().attn_metadata
        data = steps[self.layer_name] if type(steps) is dict else get_attention_context(self.layer_name)[0]
        output = query.new_empty(query.shape[0], impl.signals * impl.value_size) if data is None else data.new_output(query, impl.signals * impl.value_size)
        impl.forward(self, query, key, value, self.kv_cache, data, output, output_scale=logits)
        return output
