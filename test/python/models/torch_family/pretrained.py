"""Models of transformers and timm, as their libraries make them, and steps of decoding with their caches."""
from torch import nn

from .parts import VOCABULARY


def diffllama(attention, key_heads=2, layers=2):
    from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

    config = DiffLlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
                             num_key_value_heads=key_heads, max_position_embeddings=64, attn_implementation=attention, use_cache=False)
    return DiffLlamaForCausalLM(config)


class GrowingCacheStep(nn.Module):
    """Ids behind keys and values [B, heads, past, width] of each layer: logits, and the keys and values with the new ones."""

    def __init__(self, attention):
        super().__init__()
        self.model = diffllama(attention)

    def forward(self, ids, past):
        from transformers import DynamicCache

        cache = DynamicCache(past)
        logits = self.model(ids, past_key_values=cache, use_cache=True).logits
        return logits, [(layer.keys, layer.values) for layer in cache.layers]


def static_cache_step(attention):
    """transformers' own module for export: ids and their places, and a cache of 16 places that it holds."""
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

    model = diffllama(attention)
    model.generation_config.cache_implementation = "static"
    model.generation_config.cache_config = {"batch_size": 1, "max_cache_len": 16}
    model.generation_config.use_cache = True
    model.config.use_cache = True
    return TorchExportableModuleWithStaticCache(model)


def vision(name, fused):
    """A vision transformer of timm, small, with its own attention of the kind `name`."""
    import timm
    from timm.layers import set_fused_attn

    set_fused_attn(fused)
    try:
        return timm.create_model(name, img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=2, num_classes=10)
    finally:
        set_fused_attn(True)
