"""Differential decoders of vLLM's parallel layers: DiffLlama, Microsoft's two, and Motif. What differs is in `Attention` and `Mlp`; the
frame of layers is vLLM's of Llama."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group, get_tensor_model_parallel_world_size, tensor_model_parallel_all_reduce
from vllm.model_executor.layers.activation import get_act_and_mul_fn
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import ColumnParallelLinear, MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.interfaces import SupportsPP
from vllm.model_executor.models.llama import LlamaModel
from vllm.model_executor.models.utils import AutoWeightsLoader, PPMissingLayer, extract_layer_index, maybe_prefix

from ..errors import UsageError
from ..models.diff_v1 import HEAD_EPS, LAMBDA
from ..models.layers import lambda_init
from ..models.mlp import POLY_NORM, POLY_NORM_EPS
from . import heads
from .backend import DifferentialAttention

#: Kinds of rotary positions whose angles follow from positions alone.
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def has(config, key: str | None) -> bool:
    """Whether a config says yes to a key of its own."""
    return key is not None and bool(getattr(config, key, False))


class PolyNormAndMul(nn.Module):
    """`PolyNorm(gate) * up` of rows [tokens, 2 x inner / ranks]; norms are over all of a row's columns, so ranks add up their sums."""

    def __init__(self, inner: int):
        super().__init__()
        self.inner = inner
        self.weight, self.bias = nn.Parameter(torch.ones(3) / 3), nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.float().chunk(2, dim=-1)
        powers = (gate**3, gate**2, gate)
        sums = torch.stack([power.square().sum(-1) for power in powers])
        if get_tensor_model_parallel_world_size() > 1:
            sums = tensor_model_parallel_all_reduce(sums)
        factors = self.weight.float()[:, None] * torch.rsqrt(sums / self.inner + POLY_NORM_EPS)
        result = self.bias.float() + sum(factor[:, None] * power for factor, power in zip(factors, powers))
        return (result * up).to(x.dtype)


class Mlp(nn.Module):
    """The gated feed-forward."""

    def __init__(self, config, bias: bool, prefix: str):
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(config.hidden_size, [config.intermediate_size] * 2, bias=bias, prefix=f"{prefix}.gate_up_proj")
        self.down_proj = RowParallelLinear(config.intermediate_size, config.hidden_size, bias=bias, prefix=f"{prefix}.down_proj")
        is_poly = config.hidden_act == POLY_NORM
        self.act_fn = PolyNormAndMul(config.intermediate_size) if is_poly else get_act_and_mul_fn(config.hidden_act)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_up_proj(x)[0]))[0]


class Attention(nn.Module):
    """Projections, rotary positions and differential attention of a layer. `style`: the class of the model."""

    def __init__(self, config, style: type[DifferentialForCausalLM], cache_config, prefix: str):
        super().__init__()
        depth = extract_layer_index(prefix)
        ranks = get_tensor_model_parallel_world_size()
        plan = style.heads_of(config.to_dict())
        plan.check_ranks(ranks)
        width, signals, noises = plan.width, len(plan.signals), len(plan.noises)
        key_heads = len(plan.keys1) + len(plan.keys2)
        bias = has(config, style.attention_bias)
        self.sizes = [count // ranks * width for count in (signals + noises, key_heads, len(plan.values))]
        self.qkv_proj = QKVParallelLinear(config.hidden_size, width, signals + noises, key_heads, bias=bias, prefix=f"{prefix}.qkv_proj")
        output = RowParallelLinear(signals * plan.value_width, config.hidden_size, bias=bias, prefix=f"{prefix}.{style.output_name}")
        self.output_name, self.by_token = style.output_name, style.by_token
        self.add_module(style.output_name, output)
        self.rotary_emb = get_rope(width, max_position=config.max_position_embeddings, rope_parameters=config.rope_parameters,
                                   is_neox_style=not style.interleaved)
        self.init = lambda_init(depth + style.depth_offset)
        options = {}
        if style.by_token:
            self.lambda_proj = ColumnParallelLinear(config.hidden_size, signals, bias=False, prefix=f"{prefix}.lambda_proj")
            options = {"lam_activation": "sigmoid"}
        else:
            for name in LAMBDA:
                self.register_parameter(name, nn.Parameter(torch.empty(width, dtype=torch.float32)))
            options = {"norm": "rms", "norm_eps": style.head_eps(config), "out_scale": 1 - self.init}
        if style.has_head_norm:
            self.subln = nn.Module()
            self.subln.weight = nn.Parameter(torch.ones(plan.value_width, dtype=torch.float32))
            options["norm_weight"] = self.subln.weight
        self.attn = DifferentialAttention(heads=(signals + noises) // ranks, width=width, kv_heads=key_heads // ranks, signals=signals // ranks,
                                          shares_keys=not plan.keys2, options=options, lam=None if style.by_token else self.lam,
                                          cache_config=cache_config, prefix=f"{prefix}.attn")

    def lam(self) -> torch.Tensor:
        """Lambda of the layer, [] f32, by its vectors."""
        first, second = (torch.exp((getattr(self, a) * getattr(self, b)).sum()) for a, b in (LAMBDA[:2], LAMBDA[2:]))
        return (first - second + self.init).detach()

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv_proj(hidden_states)[0].split(self.sizes, dim=-1)
        q, k = self.rotary_emb(positions, q, k)
        logits = self.lambda_proj(hidden_states)[0].float() if self.by_token else None
        return getattr(self, self.output_name)(self.attn(q, k, v, logits))[0]


class Layer(nn.Module):
    """A pre-norm block, as vLLM's Llama calls it."""

    style: ClassVar[type[DifferentialForCausalLM]]

    def __init__(self, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.self_attn = Attention(config, self.style, vllm_config.cache_config, f"{prefix}.self_attn")
        self.mlp = Mlp(config, has(config, self.style.mlp_bias), f"{prefix}.mlp")
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None):
        if residual is None:
            residual, hidden_states = hidden_states, self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states, residual = self.post_attention_layernorm(self.self_attn(positions, hidden_states), residual)
        return self.mlp(hidden_states), residual


class DifferentialForCausalLM(nn.Module, SupportsPP):
    """A decoder with differential attention. Subclasses say what is their model's own."""

    #: Which heads of the projections belong together.
    heads_of = staticmethod(heads.diffllama_heads)
    #: Rotary pairs are (0, 1), (2, 3), ... and not halves.
    interleaved: ClassVar[bool] = False
    #: Lambda comes from a projection of each token, without a norm behind it.
    by_token: ClassVar[bool] = False
    #: The norm of each head has a weight.
    has_head_norm: ClassVar[bool] = False
    #: Added to the number of a layer before lambda_init is taken.
    depth_offset: ClassVar[int] = 0
    output_name: ClassVar[str] = "o_proj"
    #: The keys of configs that give biases to the projections of attention and of the feed-forward; None: there are none.
    attention_bias: ClassVar[str | None] = None
    mlp_bias: ClassVar[str | None] = None

    @staticmethod
    def head_eps(config) -> float:
        return config.rms_norm_eps

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__()
        config = self.config = vllm_config.model_config.hf_config
        if vllm_config.quant_config is not None:
            raise UsageError(f"quantization: expected none, because the rows of narrow weights are not put in the order of maps, but got "
                             f"{vllm_config.model_config.quantization}")
        kind = (config.rope_parameters or {}).get("rope_type", "default")
        if kind not in _ROPE_TYPES:
            raise UsageError(f"rope_type: expected one of {', '.join(_ROPE_TYPES)}, whose angles follow from positions alone, but got {kind}")
        layer = type("Layer", (Layer,), {"style": type(self)})
        self.model = LlamaModel(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"), layer_type=layer)
        if get_pp_group().is_last_rank:
            self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "lm_head"))
            if config.tie_word_embeddings:
                self.lm_head = self.lm_head.tie_weights(self.model.embed_tokens)
            self.logits_processor = LogitsProcessor(config.vocab_size)
        else:
            self.lm_head = PPMissingLayer()
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model.embed_input_ids(input_ids)

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        plan, ranks = self.heads_of(self.config.to_dict()), get_tensor_model_parallel_world_size()
        return AutoWeightsLoader(self).load_weights((name, heads.in_order(name, weight, plan, ranks)) for name, weight in weights)


class DiffLlamaForCausalLM(DifferentialForCausalLM):
    """DiffLlama, as transformers has it."""

    attention_bias = "attention_bias"


class DiffV1ForCausalLM(DifferentialForCausalLM):
    """Microsoft's first decoder."""

    heads_of = staticmethod(heads.diff_v1_heads)
    interleaved, has_head_norm, output_name = True, True, "out_proj"

    @staticmethod
    def head_eps(config) -> float:
        return HEAD_EPS


class DiffV2ForCausalLM(DifferentialForCausalLM):
    """Microsoft's second decoder."""

    heads_of = staticmethod(heads.diff_v2_heads)
    interleaved, by_token = True, True


class MotifForCausalLM(DifferentialForCausalLM):
    """Motif-2.6B, and with groups of signal heads Motif-2-12.7B."""

    heads_of = staticmethod(heads.motif_heads)
    has_head_norm, depth_offset, attention_bias, mlp_bias = True, -1, "use_bias", "use_bias"

    @staticmethod
    def head_eps(config) -> float:
        return getattr(config, "attn_rms_norm_eps", None) or HEAD_EPS
