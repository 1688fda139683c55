"""The graphs that the tests compile: a module, a type, what it is called with, and how many attentions are to be found in it."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from . import dragon, motif, others, pretrained, sambay, unilm
from .parts import VOCABULARY

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def ids(batch, length):
    return (torch.randint(0, VOCABULARY, (batch, length)),)


def ids_and_mask(batch, length):
    """The mask hides what is ahead, and at random some of what is not."""
    hidden = torch.rand(length, length).lt(0.2).fill_diagonal_(False) | torch.ones(length, length, dtype=torch.bool).triu(1)
    return *ids(batch, length), torch.zeros(length, length).masked_fill(hidden, float("-inf"))


def ids_and_context(batch, length):
    return *ids(batch, length), torch.randn(batch, 11, 24)


def image(batch, _):
    return (torch.randn(batch, 3, 16, 16),)


def growing_cache(batch, past):
    return *ids(batch, 1), [tuple(torch.randn(batch, 2, past, 8) for _ in range(2)) for _ in range(2)]


def own_cache(batch, past):
    return *ids(batch, 3), [torch.randn(batch, past, 2, 8) for _ in range(2)]


def place_in_cache(batch, place):
    return *ids(batch, 1), None, torch.tensor([place])


#: Names of the sizes of each argument that differ from call to call, for `dynamic_shapes`.
IDS = ({0: "batch", 1: "length"},)
MASKED = (*IDS, {0: "length", 1: "length"})
CONTEXT = (*IDS, {0: "batch", 1: "context"})
#: torch.export makes a comparison of the cache's strides that it cannot prove for named sizes.
ANY = torch.export.Dim.DYNAMIC
PAST = ({0: ANY}, [({0: ANY, 2: ANY},) * 2] * 2)
OWN_CACHE = ({0: ANY}, [{0: ANY, 1: ANY}] * 2)


@dataclass
class Case:
    """`make` gives the module; `arguments(batch, length)` what it is called with; `dynamic` which sizes differ, of which `calls` has
    some, beside the example. `attentions`: how many are raised; those that are `kept` stay, each with a diagnostic that has these
    words. `dynamo`: also compiled by torch.compile. `reference`: the type in which PyTorch computes what is expected."""

    name: str
    make: Callable[[], torch.nn.Module]
    dtype: torch.dtype = F32
    arguments: Callable = ids
    dynamic: tuple | None = None
    example: tuple = (2, 12)
    attentions: int = 2
    kept: str | None = None
    dynamo: bool = False
    reference: torch.dtype = torch.float64

    @property
    def shapes(self):
        """For torch.export: one size for one name."""
        dims = {name: torch.export.Dim(name, min=2 if name != "batch" else 1, max=40) for name in ("batch", "length", "context")}
        return pytree.tree_map(lambda name: dims[name] if isinstance(name, str) else name, self.dynamic)

    @property
    def calls(self):
        """A batch of 1 only where it has a name: other sizes are 2 or more."""
        return [self.example, *([(2 if self.dynamic in (PAST, OWN_CACHE) else 1, 3), (3, 17)] if self.dynamic else [])]


def of(make, *given, **options):
    return lambda: make(*given, **options)


#: Narrow types and masks of a model have one layer, since another case of it has two.
CASES = [
    Case("v1_eager", of(unilm.decoder, unilm.V1Eager), dynamo=True),
    Case("v1_eager_dynamic", of(unilm.decoder, unilm.V1Eager), dynamic=IDS),
    Case("v1_eager_gqa_f16", of(unilm.decoder, unilm.V1Eager, key_heads=1, layers=1), F16, attentions=1),
    Case("v1_eager_bf16_dynamic", of(unilm.decoder, unilm.V1Eager, layers=1), BF16, dynamic=IDS, attentions=1),
    Case("v1_eager_mask_dynamic", of(unilm.decoder, unilm.V1Eager, layers=1), arguments=ids_and_mask, dynamic=MASKED, attentions=1),
    Case("v1_flash", of(unilm.decoder, unilm.V1Flash)),
    Case("v1_flash_gqa_dynamic", of(unilm.decoder, unilm.V1Flash, key_heads=1), dynamic=IDS, dynamo=True),
    Case("v1_flash_gqa_f16", of(unilm.decoder, unilm.V1Flash, key_heads=1, layers=1), F16, attentions=1),
    Case("v1_halves", of(unilm.decoder, unilm.V1FlashHalves)),
    Case("v1_halves_gqa_bf16_dynamic", of(unilm.decoder, unilm.V1FlashHalves, key_heads=1, layers=1), BF16, dynamic=IDS, attentions=1),
    Case("v2", of(unilm.decoder, unilm.V2)),
    Case("v2_f16_dynamic", of(unilm.decoder, unilm.V2, layers=1), F16, dynamic=IDS, attentions=1),
    Case("v2_bf16", of(unilm.decoder, unilm.V2, layers=1), BF16, dynamo=True, attentions=1),
    Case("v2_own_cache", unilm.V2Step, arguments=own_cache, dynamic=OWN_CACHE, attentions=1),
    Case("diffllama_eager", of(pretrained.diffllama, "eager"), dynamo=True),
    Case("diffllama_eager_f16_dynamic", of(pretrained.diffllama, "eager", layers=1), F16, dynamic=IDS, attentions=1),
    Case("diffllama_eager_bf16_dynamic", of(pretrained.diffllama, "eager", layers=1), BF16, dynamic=IDS, attentions=1),
    Case("diffllama_sdpa_dynamic", of(pretrained.diffllama, "sdpa"), dynamic=IDS),
    Case("diffllama_sdpa_f16_dynamic", of(pretrained.diffllama, "sdpa", layers=1), F16, dynamic=IDS, attentions=1),
    Case("diffllama_sdpa_bf16", of(pretrained.diffllama, "sdpa", layers=1), BF16, attentions=1),
    Case("diffllama_growing_cache_eager", of(pretrained.GrowingCacheStep, "eager"), arguments=growing_cache, dynamic=PAST),
    Case("diffllama_growing_cache_sdpa", of(pretrained.GrowingCacheStep, "sdpa"), arguments=growing_cache, dynamic=PAST),
    Case("diffllama_static_cache_eager", of(pretrained.static_cache_step, "eager"), arguments=place_in_cache, example=(1, 5), reference=F32),
    Case("diffllama_static_cache_sdpa", of(pretrained.static_cache_step, "sdpa"), arguments=place_in_cache, example=(1, 5), reference=F32),
    Case("timm_dwee", lambda: pretrained.vision("vit_dwee_patch16_reg1_gap_256", fused=True), arguments=image),
    Case("timm_dwee_eager_bf16", lambda: pretrained.vision("vit_dwee_patch16_reg1_gap_256", fused=False), BF16, arguments=image),
    Case("timm_dpwee_dynamic", lambda: pretrained.vision("vit_dpwee_patch16_reg1_gap_256", fused=True), arguments=image, dynamic=({0: "batch"},)),
    Case("motif_eager_dynamic", of(motif.decoder, motif.Motif), dynamic=IDS),
    Case("motif_sdpa", of(motif.decoder, motif.Motif, fused=True), dynamo=True),
    Case("motif_sdpa_bf16_dynamic", of(motif.decoder, motif.Motif, fused=True, layers=1), BF16, dynamic=IDS, attentions=1),
    Case("gda", of(motif.decoder, motif.GroupedMotif)),
    Case("gda_f16_dynamic", of(motif.decoder, motif.GroupedMotif, layers=1), F16, dynamic=IDS, attentions=1),
    Case("gdla", of(motif.decoder, motif.LatentMotif, rotary=4)),
    Case("gdla_bf16_dynamic", of(motif.decoder, motif.LatentMotif, rotary=4, layers=1), BF16, dynamic=IDS, attentions=1),
    Case("sambay", sambay.SambaY, example=(2, 7), attentions=4),
    Case("sambay_bf16", of(sambay.SambaY, fused=True), BF16, example=(2, 7), attentions=4),
    Case("dragon_dynamic", of(dragon.decoder, dragon.Dragon), dynamic=IDS),
    Case("dragon_rich", of(dragon.decoder, dragon.RichDragon)),
    Case("dragon_rich_bf16_dynamic", of(dragon.decoder, dragon.RichDragon, layers=1), BF16, dynamic=IDS, attentions=1),
    Case("dragon_factored_dynamic", of(dragon.decoder, dragon.FactoredDragon), dynamic=IDS),
    Case("nanowell_dynamic", of(others.decoder, others.Nanowell), dynamic=IDS),
    Case("cross_attention_dynamic", of(others.decoder, others.CrossAttention), arguments=ids_and_context, dynamic=CONTEXT),
    Case("edifice_dynamic", of(others.decoder, others.Edifice), dynamic=IDS),
    Case("dint", of(others.decoder, others.Nanowell, integral=True), attentions=0,
         kept="not a sum of products of one map with the values"),  # a term is the first map's mean over its queries
]
