"""Motif, also with groups of heads, against a float64 reference that was written apart; and its config."""
import json

import numpy as np
import pytest
import reference_motif as reference
from checkpoints import check_against
from reference_f64 import NUMBERS, draw, poly_norm

import diffattn
from diffattn import cli, models
from diffattn.models import ConfigError
from diffattn.models.mlir_text import Module
from diffattn.models.mlp import poly_norm_gated
from diffattn.runtime import Executable

TINY = {"model_type": "motif", "vocab_size": 80, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 4, "rope_theta": 500.0, "eos_token_id": None}
GROUPED = TINY | {"num_attention_heads": 10, "num_noise_heads": 2, "num_key_value_heads": 4, "head_dim": 8}
CASES = {
    "plain": TINY,
    "shared_keys_tied": TINY | {"num_attention_heads": 8, "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
    "grouped": GROUPED,
    "grouped_shared_keys_and_biases": GROUPED | {"num_attention_heads": 12, "num_noise_heads": 4, "use_bias": True,
                                                 "attn_rms_norm_eps": 1e-2},
}
FULL = {
    "Motif-2.6B": ({"hidden_size": 2048, "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 16,
                    "intermediate_size": 8192, "vocab_size": 219520, "tie_word_embeddings": True}, 2_597_046_400),
    "Motif-2-12.7B": ({"hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 40, "num_noise_heads": 8,
                       "num_key_value_heads": 16, "k_ratio": 1, "head_dim": 128, "intermediate_size": 16384, "vocab_size": 219520},
                      12_704_000_000),
}


def random_model(checkpoint, config, dtype="f32", **options):
    weights = draw(reference.shapes(config), 3, NUMBERS[dtype])
    return diffattn.load(checkpoint(config, weights), dtype=dtype, **options), weights


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_equals_reference(case, checkpoint):
    config = CASES[case]
    model, weights = random_model(checkpoint, config)
    check_against(model, lambda ids: reference.logits(config, weights, ids), 80, 2e-5)
    tokens = [5, 6, 7]
    for _ in range(8):
        tokens.append(int(reference.logits(config, weights, tokens)[-1].argmax()))
    assert list(model.generate([5, 6, 7], 8)) == tokens[3:]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype, bound", [("bf16", 4e-2), ("f16", 5e-3)])
def test_short_types_stay_near(dtype, bound, checkpoint):
    model, weights = random_model(checkpoint, GROUPED, dtype)
    check_against(model, lambda ids: reference.logits(GROUPED, weights, ids), 80, bound)


def test_poly_norm():
    m = Module()
    f = m.function("forward")
    gate, up = (f.argument(name, "f32", [None, 3]) for name in ("gate", "up"))
    weight, bias = f.argument("weight", "f32", [3]), f.argument("bias", "f32", [1])
    f.ret(poly_norm_gated(f, gate, up, weight, bias, "f32"))
    weight, bias = np.array([0.2, 0.3, 0.5], np.float32), np.array([0.125], np.float32)
    rows = np.array([[-1.5, -0.5, 0], [0.5, 1, 2]], np.float32)
    golden = [[-0.52631912, -0.10430044, 0.125], [0.35080094, 0.67172026, 1.72779923]]
    np.testing.assert_allclose(poly_norm(rows.astype(np.float64), weight, bias), golden, atol=2e-8)
    ones, twos = np.ones_like(rows), np.full_like(rows, 2)
    executable = Executable(str(m))
    np.testing.assert_allclose(executable.call("forward", rows, ones, weight, bias)[0], golden, atol=3e-7)
    np.testing.assert_allclose(executable.call("forward", rows, twos, weight, bias)[0], 2 * np.array(golden), atol=6e-7)


@pytest.mark.parametrize("change, message", [
    ({"rope_theta": None}, "expected 'rope_theta' to be a finite number above 1, but it is missing"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "expected 'max_position_embeddings' to be an integer .* but it is missing"),
    ({"hidden_act": "silu"}, "expected 'hidden_act' to be one of poly_norm, but got 'silu'"),
    ({"k_ratio": 2}, "expected 'k_ratio' to be 1, but got 2"),
    ({"use_sliding_window": True}, "expected 'use_sliding_window' to be false, but got True"),
    ({"attention_dropout": 0.1}, "expected 'attention_dropout' to be 0, but got 0.1"),
    ({"partial_rotary_factor": 0.5}, "expected 'partial_rotary_factor' to be 1, but got 0.5"),
    ({"is_causal": False}, "expected 'is_causal' to be true, but got False"),
    ({"num_attention_heads": 5}, "expected 'num_attention_heads' to be even, as two maps make a head, but got 5"),
    ({"num_key_value_heads": 1}, "expected 'num_key_value_heads' to be even, as two maps make a head, but got 1"),
    ({"num_key_value_heads": 6, "num_attention_heads": 8}, "expected 'num_key_value_heads' to be twice a divisor of the 4 noise heads"),
    ({"num_noise_heads": 3}, "expected 'num_noise_heads' to be below num_attention_heads = 4 and a divisor of it, but got 3"),
    ({"num_noise_heads": 4}, "expected 'num_noise_heads' to be below num_attention_heads = 4 and a divisor of it, but got 4"),
    ({"num_noise_heads": 0}, "expected 'num_noise_heads' to be an integer from 1"),
    ({"attn_rms_norm_eps": 0}, "expected 'attn_rms_norm_eps' to be a finite number above 0, but got 0"),
    ({"kv_lora_rank": 512}, "expected 'kv_lora_rank' to be absent, because Motif-3 .* is not supported, but got 512"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "expected weights that are not quantized, or by 'diffattn', but got 'gptq'"),
    ({"quantization_config": {}}, "expected weights that are not quantized, or by 'diffattn', but got quantization_config = {}"),
])
def test_config_errors(change, message):
    with pytest.raises(ConfigError, match=message):
        models.build(TINY | change)


@pytest.mark.parametrize("name", FULL)
def test_full_size_without_weights(name, tmp_path, capsys):
    config, parameters = FULL[name]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "motif", "rope_theta": 500000.0, **config}))
    assert cli.main(["info", str(tmp_path), "--dtype", "bf16", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["model"] == "motif" and info["weights"] == "none"
    assert abs(int(info["parameters"].replace(",", "")) / parameters - 1) < 2e-3
