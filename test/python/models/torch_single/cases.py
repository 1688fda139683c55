"""The modules that the tests compile: what each is called with, and what becomes of its attentions."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from . import fused, pretrained, spelled
from .parts import WIDTH


def rows(batch, length):
    return (torch.randn(batch, length, WIDTH),)


def kept_tokens(batch, length):
    kept = torch.rand(batch, length) > 0.3
    kept[:, 0] = True
    return *rows(batch, length), kept


def hidden_tokens(batch, length):
    x, kept = kept_tokens(batch, length)
    return x, ~kept


def seen_pairs(batch, length):
    """Query 1 sees no key."""
    seen = torch.rand(batch, length, length) > 0.3
    seen[:, :, 0], seen[:, 1] = True, False
    return *rows(batch, length), seen


def added(batch, length):
    return *rows(batch, length), torch.randn(batch, 1, length, length)


def edges(batch, length):
    kinds = torch.randint(0, 4, (batch, length, length))
    return *rows(batch, length), kinds + torch.eye(length, dtype=torch.int64) * (kinds == 0)


def dropping(batch, length):
    return *rows(batch, length), (torch.rand(batch, 4, length, length) > 0.3).float()


def context(batch, length):
    kept = torch.rand(batch, 7) > 0.4
    kept[:, 2] = True
    return *rows(batch, length), torch.randn(batch, 7, 24), kept


def memory(batch, length):
    return *rows(batch, length), torch.randn(batch, 7, WIDTH)


def windows(batch, _):
    return (torch.randn(batch * 4, 16, WIDTH),)


def grid(batch, length):
    return (torch.randn(batch, 3, length, WIDTH),)


def cached(batch, length):
    return torch.randn(batch, 1, WIDTH), *(torch.randn(batch, 4, length, 8) for _ in range(2))


@dataclass
class Case:
    """`make` gives the module; `arguments(batch, length)` what it is called with. `single`: how many maps are raised alone; `pairs`: how
    many differences. What is `kept` is told by one diagnostic that has these words."""

    name: str
    make: Callable
    arguments: Callable = rows
    single: int = 1
    pairs: int = 0
    kept: str | None = None
    dtype: torch.dtype = torch.float32


def stays(name, make, why, arguments=rows):
    return Case(name, make, arguments, 0, 0, why)


CASES = [
    Case("vit", spelled.Vit), Case("nano-gpt", spelled.NanoGpt), Case("gpt2", spelled.Gpt2), Case("bert", spelled.Bert, kept_tokens),
    Case("padded", spelled.Padded, kept_tokens), Case("t5", spelled.T5), Case("alibi", spelled.Alibi), Case("swin", spelled.Swin, windows),
    Case("swin-v2", spelled.SwinV2), Case("whisper", spelled.Whisper), Case("transformer-xl", spelled.TransformerXl), Case("llama", spelled.Llama),
    Case("gemma2", spelled.Gemma2), Case("window", spelled.Window), Case("qwen3", spelled.Qwen3), Case("cross", spelled.Cross, context),
    Case("perceiver", spelled.Perceiver), Case("pooling", spelled.Pooling), Case("one-key-head", spelled.OneKeyHead), Case("einsum", spelled.Einsum),
    Case("grouped-einsum", spelled.GroupedEinsum), Case("linformer", spelled.Linformer), Case("latent", spelled.Latent),
    Case("axial", spelled.Axial, grid, single=2), Case("decoding", spelled.Decoding, cached), Case("gated", spelled.Gated), Case("normed", spelled.Normed),
    Case("edges", spelled.Edges, edges), Case("guarded", spelled.Guarded, seen_pairs), Case("llama-bf16", spelled.Llama, dtype=torch.bfloat16),
    Case("hybrid", spelled.Hybrid, single=2, pairs=1), Case("codec", fused.Codec, single=0, pairs=1),
    Case("sdpa", fused.Plain), Case("sdpa-causal", fused.Causal), Case("sdpa-few-queries", fused.FewQueries), Case("sdpa-grouped", fused.Grouped),
    Case("sdpa-bool", fused.BoolMask, seen_pairs), Case("sdpa-float", fused.FloatMask, added), Case("sdpa-bf16", fused.Causal, dtype=torch.bfloat16),
    Case("sdpa-f16", fused.Grouped, dtype=torch.float16), Case("flex", fused.Flex), Case("multihead", fused.Multihead, hidden_tokens),
    Case("encoder", fused.encoder, single=2), Case("decoder", fused.Decoder, memory, single=2),
    Case("clip-text", lambda: pretrained.clip_text("sdpa"), pretrained.token_ids, 2), Case("clip-vision", lambda: pretrained.clip_vision("eager"), pretrained.image, 2),
    Case("vit-hub", lambda: pretrained.vit("sdpa"), pretrained.image, 2), Case("bert-hub", lambda: pretrained.bert("sdpa"), pretrained.padded_ids, 2),
    Case("gpt2-hub", lambda: pretrained.gpt2("eager"), pretrained.token_ids, 2), Case("t5-hub", lambda: pretrained.t5_encoder(None), pretrained.token_ids, 2),
    Case("whisper-hub", lambda: pretrained.whisper_encoder("sdpa"), pretrained.sound, 2), Case("llama-hub", lambda: pretrained.llama("sdpa"), pretrained.token_ids, 2),
    Case("sinks", spelled.Sinks), Case("gpt-oss-hub", pretrained.GptOss), stays("weights", spelled.Weights, "also used by"),
    stays("multihead-weights", fused.MultiheadWeights, "also used by", hidden_tokens),
    stays("dropped", spelled.Dropped, "a value that depends on query and key", dropping),
    stays("two-scores", spelled.TwoScores, "a difference of scores"), stays("refused-pair", spelled.RefusedPair, "different values"),
]
