"""Phi-4-mini-flash against a float64 reference that was written apart; its caches and its config."""
import json

import numpy as np
import pytest
import reference_sambay as reference
from checkpoints import check_against
from reference_f64 import NUMBERS, draw

import diffattn
from diffattn import cli, models, runtime
from diffattn.errors import DiffAttnError
from diffattn.models import ConfigError

#: Two Mamba layers and two windows, memory and shared keys, and one gated memory unit with a layer that reads both.
TINY = {"model_type": "phi4flash", "vocab_size": 80, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 5, "mamba_d_state": 4, "eos_token_id": None}
CASES = {
    "plain": TINY,
    "own_keys_and_biases": TINY | {"num_key_value_heads": 4, "mamba_proj_bias": True, "tie_word_embeddings": False, "mamba_dt_rank": 3,
                                   "mamba_d_conv": 2, "mamba_expand": 3, "sliding_window": 1},
    "three_pairs": TINY | {"num_hidden_layers": 12, "mamba_conv_bias": False, "sliding_window": 64, "layer_norm_eps": 1e-2},
    "no_second_half": TINY | {"num_hidden_layers": 4, "sliding_window": [None, 3, None, None]},
}
FULL = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32, "num_attention_heads": 40, "num_key_value_heads": 20,
        "vocab_size": 200064, "sliding_window": 512, "mb_per_layer": 2, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
        "mamba_dt_rank": 160, "mamba_conv_bias": True, "mamba_proj_bias": False, "layer_norm_eps": 1e-5, "tie_word_embeddings": True}


def random_model(checkpoint, config, dtype="f32", width=0.2, **options):
    weights = draw(reference.shapes(config), 5, NUMBERS[dtype], width)
    return diffattn.load(checkpoint(config, weights), dtype=dtype, **options), weights


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_equals_reference(case, checkpoint):
    config = CASES[case]
    expected = config | {"sliding_window": 3} if case == "no_second_half" else config
    model, weights = random_model(checkpoint, config)
    check_against(model, lambda ids: reference.logits(expected, weights, ids), 80, 2e-5)
    tokens = [5, 6, 7]
    for _ in range(8):
        tokens.append(int(reference.logits(expected, weights, tokens)[-1].argmax()))
    assert list(model.generate([5, 6, 7], 8)) == tokens[3:]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype, bound", [("bf16", 4e-2), ("f16", 5e-3)])
def test_short_types_stay_near(dtype, bound, checkpoint):
    # Eight layers of wide weights make of one rounding as much as the bound.
    model, weights = random_model(checkpoint, TINY, dtype, width=0.1)
    check_against(model, lambda ids: reference.logits(TINY, weights, ids), 80, bound)


@pytest.fixture
def tiny(checkpoint):
    return random_model(checkpoint, TINY, threads=1, batch_invariant=True)[0]


def test_caches_hold_windows_and_states_not_the_whole_length(tiny):
    caches = tiny.new_caches(3, 50)
    assert [cache.shape for cache in caches] == [(1, 3, 50, 2, 8), (1, 3, 50, 1, 16), (2, 3, 5, 2, 8), (2, 3, 5, 1, 16),
                                                 (3, 3, 3, 64), (3, 3, 4, 64)]
    assert all(cache.dtype == np.float32 for cache in caches)


def test_a_sequence_begins_anew_whatever_the_caches_hold(tiny):
    ids, lengths = np.arange(18).reshape(2, 9), np.array([9, 6])
    fresh, *_ = tiny.executable.call("prefill", ids, lengths, *tiny.new_caches(2, 9))
    used = tiny.new_caches(2, 9)
    for cache in used:
        cache[:] = np.nan
    again, *_ = tiny.executable.call("prefill", ids, lengths, *used)
    assert fresh.tobytes() == again.tobytes()
    for cache in used:
        cache[:] = np.nan
    again, *_ = tiny.executable.call("extend", ids, lengths, np.zeros(2, np.int64), *used)
    np.testing.assert_allclose(again, fresh, atol=1e-5)


def test_a_step_computes_one_token(tiny):
    """The products of a step and of a prefill's second half are of one row a sequence; a step makes no memory and copies no cache."""
    caches = tiny.new_caches(2, 40)
    lengths, token = np.array([9, 4]), np.array([5, 6])
    _, *caches = tiny.executable.call("prefill", np.ones((2, 9), np.int64), lengths, *caches)
    tiny.executable.call("decode", token, lengths, *caches)
    stored = [cache.copy() for cache in caches]
    runtime.reset_counters()
    _, *results = tiny.executable.call("decode", token, lengths + 1, *caches)
    counters = runtime.counters()
    assert counters.arena_grows == 0 and counters.packs == 0
    assert all(a is b for a, b in zip(results, caches))
    # Three Mamba layers of six products, four with attention and one gated memory unit of four, and the logits.
    assert counters.gemm_calls == 3 * 6 + 5 * 4 + 1
    for old, new, slots in zip(stored, caches, [lengths + 1, lengths + 1, (lengths + 1) % 5, (lengths + 1) % 5]):
        for row, slot in enumerate(slots):
            changed = (old[:, row] != new[:, row]).reshape(len(old), old.shape[2], -1).any((0, 2))
            assert np.flatnonzero(changed).tolist() == [slot]


@pytest.mark.parametrize("entry, arguments, message", [
    ("prefill", [np.ones((1, 9), np.int64), np.array([9])], "the length of ids to be at most the capacity"),
    ("prefill", [np.ones((1, 4), np.int64), np.array([5])], "every length to be at least 1 and at most the length of ids"),
    ("prefill", [np.full((1, 4), 80), np.array([4])], "every token id to be at least 0 and below 80"),
    ("prefill", [np.ones((2, 4), np.int64), np.array([4, 4])], "batches|sizes"),
    ("extend", [np.ones((1, 4), np.int64), np.array([4]), np.array([5])], "positions and the length of ids to end within the capacity"),
    ("extend", [np.ones((1, 4), np.int64), np.array([0]), np.array([0])], "every length to be at least 1"),
    ("extend", [np.ones((1, 4), np.int64), np.array([4]), np.array([-1])], "every position to be at least 0"),
    ("decode", [np.array([3]), np.array([8])], "every position to be at least 0 and below the capacity"),
    ("decode", [np.array([-3]), np.array([2])], "every token id to be at least 0 and below 80"),
])
def test_wrong_arguments_write_no_cache(entry, arguments, message, tiny):
    caches = tiny.new_caches(1, 8)
    for cache in caches:
        cache[:] = 7
    with pytest.raises(DiffAttnError, match=message):
        tiny.executable.call(entry, *arguments, *caches)
    assert all((cache == 7).all() for cache in caches)


@pytest.mark.parametrize("change, message", [
    ({"num_hidden_layers": 6}, "expected 'num_hidden_layers' to be a multiple of 4, but got 6"),
    ({"sliding_window": None}, "expected 'sliding_window' to be an integer from 1 to .*, but it is missing"),
    ({"sliding_window": 0}, "expected 'sliding_window' to be an integer from 1 to .*, but got 0"),
    ({"sliding_window": [5] * 8}, "expected 'sliding_window' to be a number, or a list of it for odd layers below 4 of 8 and null"),
    ({"sliding_window": [None, 5, None, 6, None, None, None, None]}, "expected 'sliding_window' to be a number, or a list"),
    ({"mb_per_layer": 1}, "expected 'mb_per_layer' to be 2, but got 1"),
    ({"num_attention_heads": 3}, "expected 'num_attention_heads' to be even, as two maps make a head, but got 3"),
    ({"num_key_value_heads": 1}, "expected 'num_key_value_heads' to be even, as two maps make a head, but got 1"),
    ({"num_attention_heads": 8, "num_key_value_heads": 6}, "expected 'num_key_value_heads' to be a divisor of num_attention_heads = 8"),
    ({"hidden_size": 34}, "expected 'num_attention_heads' to be a divisor of hidden_size = 34, but got 4"),
    ({"mamba_dt_rank": "half"}, "expected 'mamba_dt_rank' to be an integer from 1 to .*, but got 'half'"),
    ({"mamba_d_conv": 1}, "expected 'mamba_d_conv' to be an integer from 2 to 64, but got 1"),
    ({"mamba_expand": 1 << 20}, "expected 'mamba_expand' to be at most 1048576 when multiplied by hidden_size = 32"),
    ({"mamba_proj_bias": 1}, "expected 'mamba_proj_bias' to be true or false, but got 1"),
    ({"lm_head_bias": True}, "expected 'lm_head_bias' to be false, but got True"),
    ({"mlp_bias": True}, "expected 'mlp_bias' to be false, but got True"),
    ({"attention_dropout": 0.1}, "expected 'attention_dropout' to be 0, but got 0.1"),
    ({"hidden_act": "laplace"}, "expected 'hidden_act' to be one of silu"),
    ({"layer_norm_eps": -1}, "expected 'layer_norm_eps' to be a finite number above 0, but got -1"),
])
def test_config_errors(change, message):
    with pytest.raises(ConfigError, match=message):
        models.build(TINY | change)


def test_full_size_without_weights(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "phi4flash", **FULL}))
    assert cli.main(["info", str(tmp_path), "--dtype", "bf16", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["model"] == "phi4flash" and info["weights"] == "none"
    assert abs(int(info["parameters"].replace(",", "")) / 3.852e9 - 1) < 1e-3
    # A shared layer for the whole length; eight windows of 512 and nine states of 16 + 3 for each channel whatever it is.
    kept = 8 * 512 * 2 * 1280 + 9 * 19 * 5120
    assert info["cache"] == f"2,560 numbers a token and {kept:,} a sequence, 1 layer"
