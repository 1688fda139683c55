"""DiffLlama against transformers' own model, on random checkpoints that it saved."""
import json
import warnings

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from checkpoints import assert_near, cached_logits

import diffattn
from diffattn import models
from diffattn.errors import CheckpointError
from diffattn.models import layers
from diffattn.runtime import Executable

pytestmark = pytest.mark.oracle
TINY = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": None}


def rope(kind, **parameters):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **parameters}}


CASES = {
    "plain": {},
    "grouped": {"num_attention_heads": 8, "num_key_value_heads": 2},
    "wide_heads_and_biases": {"head_dim": 12, "attention_bias": True},
    "tied": {"tie_word_embeddings": True, "hidden_act": "gelu"},
    "linear": rope("linear", factor=2.0),
    "dynamic": rope("dynamic", factor=3.0) | {"max_position_embeddings": 8},
    "llama3": rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=16),
    "yarn": rope("yarn", factor=4.0, original_max_position_embeddings=16),
}


def random_model(directory, dtype=torch.float32, shard="5GB", **changes):
    torch.manual_seed(0)
    config = transformers.DiffLlamaConfig(**(TINY | changes))
    model = transformers.DiffLlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Wide enough that attention is far from uniform; norms that are not all ones.
            parameter.normal_(1 if "norm" in name else 0, 0.3 if parameter.ndim == 1 else 0.2)
    model = model.to(dtype)
    model.save_pretrained(directory, max_shard_size=shard)
    return model


@torch.no_grad()
def greedy(model, prompt, steps):
    """Logits after the prompt and after each greedy token, with transformers' own cache."""
    out = model(torch.tensor([prompt]), use_cache=True)
    result = [out.logits[0, -1]]
    for _ in range(steps):
        token = result[-1].argmax().view(1, 1)
        out = model(token, past_key_values=out.past_key_values, use_cache=True)
        result.append(out.logits[0, -1])
    return torch.stack(result).float().numpy()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES)
def test_equals_transformers(case, tmp_path):
    oracle = random_model(tmp_path, **CASES[case])
    model = diffattn.load(tmp_path)
    ids = np.random.default_rng(0).integers(0, 96, (2, 11))
    with torch.no_grad():
        expected = oracle(torch.tensor(ids)).logits.numpy()
    assert_near(model.forward(ids), expected, 2e-5)
    # Ragged prompts in one batch must each give what they give alone; a fresh oracle, as its dynamic rope has a memory.
    # Dynamic frequencies follow the longest of a batch, so there the prompts are of one length.
    prompts = [ids[0].tolist(), ids[1].tolist() if case == "dynamic" else ids[1, :5].tolist()]
    got = cached_logits(model, prompts, 6)
    for row, prompt in enumerate(prompts):
        fresh = transformers.DiffLlamaForCausalLM.from_pretrained(tmp_path).eval()
        expected = greedy(fresh, prompt, 6)
        assert (got[row].argmax(-1) == expected.argmax(-1)).all()
        assert_near(got[row], expected, 3e-5)


def test_sharded(tmp_path):
    oracle = random_model(tmp_path, shard="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ids = np.arange(7)[None]
    with torch.no_grad():
        expected = oracle(torch.tensor(ids)).logits.numpy()
    assert_near(diffattn.load(tmp_path).forward(ids), expected, 2e-5)


LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
ROPE_KEYS = {
    "older beside newer": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "newer without keys": {"rope_parameters": {}, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "original length at the top": {"rope_parameters": YARN, "original_max_position_embeddings": 8},
    "original length at both": {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 32}, "original_max_position_embeddings": 8},
    "no original length": {"rope_parameters": LLAMA3, "max_position_embeddings": 16},
    "truncate is null": {"rope_parameters": YARN | {"original_max_position_embeddings": 64, "truncate": None}},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", ROPE_KEYS)
def test_rope_keys_as_transformers_reads_them(case, tmp_path):
    random_model(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | ROPE_KEYS[case]))
    ids = np.random.default_rng(0).integers(0, 96, (1, 30))
    with torch.no_grad():
        expected = transformers.DiffLlamaForCausalLM.from_pretrained(tmp_path).eval()(torch.tensor(ids)).logits.numpy()
    assert_near(diffattn.load(tmp_path).forward(ids), expected, 2e-5)


def test_a_tied_head_without_the_embedding(tmp_path):
    """A file may have either of the two names of one matrix."""
    random_model(tmp_path, tie_word_embeddings=True)
    file, ids = tmp_path / "model.safetensors", np.arange(9)[None]
    before, tensors = diffattn.load(tmp_path).forward(ids), safetensors.torch.load_file(file)
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    safetensors.torch.save_file(tensors, file, {"format": "pt"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(diffattn.load(tmp_path).forward(ids), before)
    del tensors["lm_head.weight"]
    safetensors.torch.save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match="'model.embed_tokens.weight' is missing"):
        diffattn.load(tmp_path)


def test_activations_of_transformers():
    x, module = np.linspace(-9, 9, 301, dtype=np.float32)[None], models.Module()
    for kind in layers.ACTIVATIONS:
        function = module.function(kind)
        rows = function.argument("x", "f32", [None, x.shape[1]])
        function.ret(layers.activated(function, kind, rows, function.empty(rows.dims, "f32")))
    compiled = Executable(str(module))
    for kind in layers.ACTIVATIONS:
        expected = transformers.activations.ACT2FN[kind](torch.tensor(x).double())
        np.testing.assert_allclose(compiled.call(kind, x)[0], expected, rtol=2e-5, atol=2e-6, err_msg=kind)


@pytest.mark.parametrize("differs", [True, False])
def test_a_head_beside_an_embedding_that_it_is_tied_to(differs, tmp_path):
    """As in transformers 5 the file's head counts if its numbers are others."""
    random_model(tmp_path)
    file, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tie_word_embeddings": True}))
    if not differs:
        tensors = safetensors.torch.load_file(file)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        safetensors.torch.save_file(tensors, file, {"format": "pt"})
    ids = np.arange(9)[None]
    with torch.no_grad():
        expected = transformers.DiffLlamaForCausalLM.from_pretrained(tmp_path).eval()(torch.tensor(ids)).logits.numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_near(diffattn.load(tmp_path).forward(ids), expected, 2e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype, bound", [("bf16", 4e-2), ("f16", 5e-3)])
def test_short_types_stay_near_f32(dtype, bound, tmp_path):
    random_model(tmp_path, {"bf16": torch.bfloat16, "f16": torch.float16}[dtype], num_key_value_heads=2)
    oracle = transformers.DiffLlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    model = diffattn.load(tmp_path)
    assert model.dtype == dtype
    ids = np.random.default_rng(1).integers(0, 96, (2, 9))
    with torch.no_grad():
        expected = oracle(torch.tensor(ids)).logits.numpy()
    assert_near(model.forward(ids), expected, bound)
    got = cached_logits(model, ids.tolist(), 0)[:, 0]
    assert_near(got, expected[:, -1], bound)
