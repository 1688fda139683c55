"""Models whose functions are captured once: what a captured graph gives is what a call gives, to the last bit."""
import numpy as np
import pytest
from checkpoints import cached_logits
from test_builders import FEW_LAYERS, SMALL
from test_simulated import PICTURE, both  # noqa: F401

from diffattn import decoding, models
from diffattn.decoding import Decoding
from diffattn.prefill import Prefills

#: Frequencies that follow the largest position of a step.
DYNAMIC = {"model_type": "diffllama", "max_position_embeddings": 8, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("config", [*({"model_type": kind} for kind in models.DECODERS), DYNAMIC],
                         ids=lambda c: c["model_type"] + ("-dynamic" if "rope_scaling" in c else ""))
def test_decode_steps(config, both, monkeypatch):  # noqa: F811
    monkeypatch.setattr(decoding, "LEAST_BUCKET", 8)
    _, sim = both(SMALL | {"num_hidden_layers": FEW_LAYERS[config["model_type"]]} | config, "bf16")
    prompts, steps = [[1, 2, 3, 4, 5, 6], [7, 8, 9], [10]], 12
    expected = cached_logits(sim, prompts, steps)

    lengths, padded = np.array([len(p) for p in prompts]), np.zeros((3, 6), np.int64)
    for row, prompt in zip(padded, prompts):
        row[: len(prompt)] = prompt
    logits, *caches = sim.executable.call("prefill", padded, lengths, *sim.new_caches(3, 8))
    tokens, positions = np.zeros(3, np.int64), lengths.copy()
    decode, got, graphs = Decoding(sim.executable, tokens, positions, caches), [logits], []
    for _ in range(steps):
        tokens[:] = got[-1].argmax(-1)
        got.append(decode().copy())
        positions += 1
        if decode.graph not in graphs:
            graphs.append(decode.graph)
    # Captured for 8, 16 and 32 places, and every time.
    assert len(graphs) == 3 and not any(graph.fallback_reason for graph in graphs)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(np.stack(got, 1), expected)

    # Prompts of one shape: the first plain, the second captured, and one by that graph, whose caches hold what came before.
    prefills = Prefills(sim.executable)
    for run in range(3):
        prompts = [[(7 * token + run) % 64 for token in prompt] for prompt in prompts]
        lengths, step = np.roll(lengths, 1), []
        for row, (prompt, length) in enumerate(zip(prompts, lengths)):
            padded[row] = 0
            padded[row, :length] = (prompt * 6)[:length]
        with prefills.run(padded, lengths, lambda: sim.new_caches(3, 7)) as (logits, caches):
            step += [logits.copy(), sim.executable.call("decode", tokens, lengths, *caches)[0]]
        logits, *caches = sim.executable.call("prefill", padded, lengths, *sim.new_caches(3, 7))
        np.testing.assert_array_equal(step[0], logits)
        np.testing.assert_array_equal(step[1], sim.executable.call("decode", tokens, lengths, *caches)[0])
    assert prefills.fallback_reason is None and len(prefills._idle) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("config, shape", [
    ({"model_type": "edifice_diff_transformer", "embed_dim": 24, "hidden_size": 32, "num_layers": 2}, (2, 19, 24)),
    ({"model_type": "diff_multihead", **SMALL}, (2, 19, 32)),
    ({"model_type": "vit_dwee_patch16_reg1_gap_256", **PICTURE}, (1, 3, 144, 144)),
], ids=lambda x: x.get("model_type") if isinstance(x, dict) else "")
def test_others(config, shape, both):  # noqa: F811
    _, sim = both(config, "bf16")
    x = np.zeros(shape, np.float32)
    graph = sim.executable.capture("forward", x)
    for seed in range(3):
        x[:] = np.random.default_rng(seed).standard_normal(shape)
        np.testing.assert_array_equal(graph()[0], sim.forward(x))
        assert graph.fallback_reason == ""
