"""Models of the graph builders in vLLM against `diffattn.load`: every greedy token, in f32."""
import json

import numpy as np
import pytest
import safetensors.numpy
from conftest import engine, prompts

import diffattn
from diffattn import models

SIZES = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "max_position_embeddings": 512, "rope_theta": 10000.0}
MODELS = {
    "diff_v1": {"model_type": "diff_v1", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True},
    "diff_v2": {"model_type": "diff_v2", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "gelu_pytorch_tanh"},
    "motif": {"model_type": "motif", "architectures": ["MotifForCausalLM"], "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
              "use_bias": True, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
    "motif_groups": {"model_type": "motif", "architectures": ["MotifForCausalLM"], "num_attention_heads": 10, "num_noise_heads": 2,
                     "num_key_value_heads": 4, "head_dim": 16},
}


def save(folder, config):
    """A checkpoint with random weights."""
    rng = np.random.default_rng(0)
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file({name: rng.normal("norm" in name or "subln" in name, 0.3 if len(shape) == 1 else 0.2, shape).astype(np.float32)
                                 for name, (shape, _) in models.build(config).file_types().items()}, folder / "model.safetensors")


@pytest.mark.parametrize("name", MODELS)
def test_tokens(name, tmp_path):
    save(tmp_path, SIZES | MODELS[name])
    texts = prompts(20, 77, 3, 16, 1)
    if name == "diff_v2":
        texts += prompts(53, 130, 17, 64, 5, 2, 31, 32, 33, 11, 47, 48, 8, 95, 4, 27, 15, 9, 72, seed=6)
    model = diffattn.load(tmp_path, dtype="f32")
    expected = [list(model.generate(text, max_new_tokens=12)) for text in texts]
    assert all(len(tokens) == 12 for tokens in expected)
    with engine(tmp_path) as served:
        assert served.tokens(texts[:1], 12) == expected[:1]
        assert served.tokens(texts, 12) == expected
