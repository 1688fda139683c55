"""What the tests of models share: directories with random checkpoints, and how near results must be."""
import json
import os
import pathlib
import sys

import numpy as np
import pytest

# Threads that spin while they wait slow a busy machine down; to be said before any library with OpenMP is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples" / "tiny-lm"), str(pathlib.Path(__file__).parent)]
import torchvision_stand_in  # noqa: E402, F401


def write_checkpoint(directory, config, state):
    """A directory with a config and weights, given as PyTorch tensors or arrays of NumPy."""
    import torch
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    tensors = {name: torch.as_tensor(value).detach().clone().contiguous() for name, value in state.items()}
    save_file(tensors, directory / "model.safetensors")
    return directory


def assert_near(got, expected, tolerance):
    """Every element within `tolerance` of the expected values' largest magnitude."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape
    error, scale = np.abs(got - expected).max(), np.abs(expected).max()
    assert error <= tolerance * scale, f"error {error:.3g} at magnitude {scale:.3g}"


def cached_logits(model, prompts, steps):
    """Logits after each prompt and after each of `steps` greedy tokens, by prefill and decode."""
    lengths = np.array([len(p) for p in prompts], np.int64)
    padded = np.zeros((len(prompts), lengths.max()), np.int64)
    for row, prompt in zip(padded, prompts):
        row[: len(prompt)] = prompt
    caches = model.new_caches(len(prompts), int(lengths.max()) + steps)
    logits, *caches = model.executable.call("prefill", padded, lengths, *caches)
    result = [logits.copy()]
    for step in range(steps):
        tokens = logits.argmax(-1).astype(np.int64)
        logits, *caches = model.executable.call("decode", tokens, lengths + step, *caches)
        result.append(logits.copy())
    return np.stack(result, 1)


@pytest.fixture
def checkpoint(tmp_path):
    return lambda config, state: write_checkpoint(tmp_path / "checkpoint", config, state)
