"""Edifice's model against the whole of it in f64, its options and its sizes."""
import edifice_reference as reference
import numpy as np
import pytest
from checkpoints import assert_near, write_checkpoint

import diffattn
from diffattn.models import edifice

KIND = {"model_type": "edifice_diff_transformer"}


def load(directory, options, weights):
    return diffattn.load(write_checkpoint(directory, KIND | options, weights))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", edifice.OUTPUT_MODES)
@pytest.mark.parametrize("options, batch, length", [
    ({"embed_dim": 64, "hidden_size": 32, "num_heads": 4, "num_layers": 2, "dropout": 0.0}, 4, 12),
    ({"embed_dim": 16, "hidden_size": 16, "num_heads": 2, "num_layers": 1, "window_size": 8}, 1, 8),
    ({"embed_dim": 16, "hidden_size": 12, "num_heads": 1, "num_layers": 3, "seq_len": 4}, 3, 5),
], ids=["projected", "same_width", "one_head"])
def test_whole_model(options, batch, length, mode, tmp_path):
    hidden, layers = options["hidden_size"], options["num_layers"]
    weights = reference.random_weights(reference.names(options["embed_dim"], hidden, layers))
    x = np.random.default_rng(1).standard_normal((batch, length, options["embed_dim"])).astype(np.float32)
    got = load(tmp_path, options | {"output_mode": mode}, weights).forward(x)
    assert_near(got, reference.model(weights, x, options["num_heads"], layers, mode), 2e-5)


def test_defaults_have_as_many_parameters_as_edifice_says(tmp_path):
    weights = reference.random_weights(reference.names(287, 256, 6))
    assert sum(w.size for w in weights.values()) == 5_603_846
    x = np.random.default_rng(2).standard_normal((1, 60, 287)).astype(np.float32)
    model = load(tmp_path, {"embed_dim": 287}, weights)
    assert sorted(model.module.file_names()) == sorted(weights)
    got = model.forward(x)
    assert got.shape == (1, 256)
    assert_near(got, reference.model(weights, x, 4, 6), 2e-5)


def test_bf16(tmp_path):
    options = {"embed_dim": 24, "hidden_size": 32, "num_heads": 4, "num_layers": 2}
    weights = reference.random_weights(reference.names(24, 32, 2))
    x = np.random.default_rng(3).standard_normal((2, 9, 24)).astype(np.float32)
    model = diffattn.load(write_checkpoint(tmp_path, KIND | options, weights), dtype="bf16")
    assert_near(model.forward(x), reference.model(weights, x, 4, 2), 5e-2)


def test_attention_alone(tmp_path):
    weights = reference.random_weights(reference.attention_names("mixer", 16))
    config = {"model_type": "edifice_diff_attention", "hidden_size": 16, "num_heads": 2, "name": "mixer"}
    x = np.random.default_rng(4).standard_normal((2, 7, 16)).astype(np.float32)
    got = diffattn.load(write_checkpoint(tmp_path, config, weights)).forward(x)
    wide = {name: value.astype(np.float64) for name, value in weights.items()}
    assert_near(got, reference.attention(wide, "mixer", x.astype(np.float64), 2), 2e-5)


def test_sizes():
    defaults = edifice.recommended_defaults()
    assert {"hidden_size", "num_heads", "num_layers"} <= set(defaults)
    assert edifice.output_size() == defaults["hidden_size"] == 256
    assert edifice.output_size({"hidden_size": 48}) == 48
