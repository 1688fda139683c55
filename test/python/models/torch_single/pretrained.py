"""Models of transformers with one map, tiny and with random weights."""
import torch
from torch import nn


class Last(nn.Module):
    """The hidden states behind the last layer, of arguments by name."""

    def __init__(self, inner, *names):
        super().__init__()
        self.inner, self.names = inner, names

    def forward(self, *values):
        return self.inner(**dict(zip(self.names, values)), return_dict=False)[0]


SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
TEXT = dict(SIZES, vocab_size=96, max_position_embeddings=64)
IMAGE = dict(SIZES, image_size=16, patch_size=4)


def clip_text(attention):
    from transformers import CLIPTextConfig, CLIPTextModel

    return Last(CLIPTextModel(CLIPTextConfig(**TEXT, attn_implementation=attention, bos_token_id=94, eos_token_id=95)), "input_ids")


def clip_vision(attention):
    from transformers import CLIPVisionConfig, CLIPVisionModel

    return Last(CLIPVisionModel(CLIPVisionConfig(**IMAGE, attn_implementation=attention)), "pixel_values")


def vit(attention):
    from transformers import ViTConfig, ViTModel

    return Last(ViTModel(ViTConfig(**IMAGE, attn_implementation=attention), add_pooling_layer=False), "pixel_values")


def bert(attention):
    from transformers import BertConfig, BertModel

    return Last(BertModel(BertConfig(**TEXT, attn_implementation=attention), add_pooling_layer=False), "input_ids", "attention_mask")


def gpt2(attention):
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(vocab_size=96, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=94, eos_token_id=95, use_cache=False,
                        attn_implementation=attention)
    return Last(GPT2Model(config), "input_ids")


def t5_encoder(_):
    from transformers import T5Config, T5EncoderModel

    return Last(T5EncoderModel(T5Config(vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)), "input_ids")


def whisper_encoder(attention):
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=48, num_mel_bins=8, max_source_positions=12,
                           attn_implementation=attention)
    return Last(WhisperEncoder(config), "input_features")


def llama(attention):
    from transformers import LlamaConfig, LlamaModel

    return Last(LlamaModel(LlamaConfig(**TEXT, num_key_value_heads=2, attn_implementation=attention, use_cache=False)), "input_ids")


class GptOss(nn.Module):
    """The attention of one layer, causal, with sinks; its experts choose rows by their contents."""

    def __init__(self):
        super().__init__()
        from transformers import GptOssConfig
        from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssRotaryEmbedding

        config = GptOssConfig(hidden_size=32, head_dim=8, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
                              max_position_embeddings=64, vocab_size=96, attn_implementation="eager",
                              rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
        self.rotary, self.attention = GptOssRotaryEmbedding(config), GptOssAttention(config, layer_idx=1)
        nn.init.normal_(self.attention.sinks)

    def forward(self, x):
        places = torch.arange(x.shape[1])
        mask = torch.zeros(1, 1, len(places), len(places), dtype=x.dtype)
        mask = mask.masked_fill(places[None, :] > places[:, None], torch.finfo(x.dtype).min)
        return self.attention(x, self.rotary(x, places[None]), mask)[0]


def token_ids(batch, length):
    return (torch.randint(0, 95, (batch, length)),)


def padded_ids(batch, length):
    kept = torch.ones(batch, length, dtype=torch.int64)
    kept[0, length - 3:] = 0
    return *token_ids(batch, length), kept


def image(batch, _):
    return (torch.randn(batch, 3, 16, 16),)


def sound(batch, _):
    return (torch.randn(batch, 8, 24),)
