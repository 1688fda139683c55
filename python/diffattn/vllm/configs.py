"""Configs of the models that transformers does not have, for vLLM: the keys of docs/models.md, with their defaults."""

from __future__ import annotations

from transformers import DiffLlamaConfig


class DiffV1Config(DiffLlamaConfig):
    """Configuration of `"model_type": "diff_v1"`, whose files name no architecture."""

    model_type = "diff_v1"
    architecture, default_heads_in_hidden = "DiffV1ForCausalLM", 2

    def __post_init__(self, **kwargs):
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads // self.default_heads_in_hidden
        super().__post_init__(**kwargs)
        if not self.architectures:
            self.architectures = [self.architecture]


class DiffV2Config(DiffV1Config):
    """Configuration of `"model_type": "diff_v2"`."""

    model_type = "diff_v2"
    architecture, default_heads_in_hidden = "DiffV2ForCausalLM", 1


class MotifConfig(DiffV1Config):
    """Configuration of Motif, also with groups of signal heads and a noise head, without its repository's own code."""

    model_type = "motif"
    architecture, default_heads_in_hidden = "MotifForCausalLM", 1
    hidden_act: str = "poly_norm"
    rms_norm_eps: float = 1e-6
