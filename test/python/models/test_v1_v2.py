"""Microsoft's two decoders against PyTorch written from their definitions."""
import numpy as np
import oracle_v2
import pytest
import reference
import torch
from checkpoints import assert_near, cached_logits

import diffattn

pytestmark = pytest.mark.oracle
TINY = {"vocab_size": 80, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 64}
CASES = {
    "plain": {},
    "grouped_tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "one_kv_head_wide": {"num_key_value_heads": 1, "head_dim": 6, "rope_theta": 500.0},
}


def randomized(model):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            vector = parameter.ndim == 1
            mean = 1.0 if vector and "lambda" not in name else 0.0
            parameter.normal_(mean, 0.3 if vector else 0.2, generator=generator)
    return model.eval()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind, oracle", [("diff_v1", reference.DiffV1), ("diff_v2", oracle_v2.DiffV2)])
def test_equals_pytorch(kind, oracle, case, checkpoint):
    config = TINY | CASES[case] | {"model_type": kind}
    oracle = randomized(oracle(config))
    state = oracle.state_dict()
    if config.get("tie_word_embeddings"):
        del state["lm_head.weight"]
    model = diffattn.load(checkpoint(config, state))
    ids = np.random.default_rng(0).integers(0, 80, (3, 10))
    with torch.no_grad():
        expected = oracle(torch.tensor(ids)).numpy()
    assert_near(model.forward(ids), expected, 2e-5)

    prompts = [ids[0].tolist(), ids[1, :4].tolist(), ids[2, :1].tolist()]
    got = cached_logits(model, prompts, 5)
    for row, prompt in enumerate(prompts):
        tokens = list(prompt)
        for step in range(6):
            with torch.no_grad():
                expected = oracle(torch.tensor([tokens]))[0, -1].numpy()
            assert_near(got[row, step], expected, 3e-5)
            tokens.append(int(expected.argmax()))
            assert tokens[-1] == got[row, step].argmax()


def test_a_prompt_does_not_depend_on_its_neighbours(checkpoint):
    config = TINY | {"model_type": "diff_v1"}
    model = diffattn.load(checkpoint(config, randomized(reference.DiffV1(config)).state_dict()))
    short, long = [5, 6, 7], list(range(20))
    together = cached_logits(model, [short, long], 3)
    assert (together[:1] == cached_logits(model, [short], 3)).all() or \
        np.abs(together[:1] - cached_logits(model, [short], 3)).max() < 1e-5


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype, bound", [("bf16", 4e-2), ("f16", 5e-3)])
def test_short_types_stay_near_f32(dtype, bound, checkpoint):
    config = TINY | {"model_type": "diff_v1"}
    directory = checkpoint(config, randomized(reference.DiffV1(config)).state_dict())
    ids = np.arange(24).reshape(2, 12)
    expected = diffattn.load(directory).forward(ids)
    assert_near(diffattn.load(directory, dtype=dtype).forward(ids), expected, bound)
