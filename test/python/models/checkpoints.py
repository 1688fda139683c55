"""Directories with random checkpoints, runs of models, and how near results must be."""
import json

import numpy as np


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


def padded(rows):
    """Rows of ids as one array, padded on the right, and their lengths."""
    ids, lengths = np.zeros((len(rows), max(map(len, rows))), np.int64), np.array([len(row) for row in rows], np.int64)
    for place, row in zip(ids, rows):
        place[: len(row)] = row
    return ids, lengths


def chunked_logits(model, prompts, cuts, capacity):
    """Logits after each prompt, whose first `cuts[0]` tokens are prefilled and others come in further chunks: `cuts[1]` is the
    list of the ends of the second chunk's rows, and so on; the rest is one more."""
    firsts, *others = cuts
    ends = np.array(firsts)
    ids, lengths = padded([prompt[:end] for prompt, end in zip(prompts, ends)])
    _, *caches = model.executable.call("prefill", ids, lengths, *model.new_caches(len(prompts), capacity))
    for following in [*others, [len(prompt) for prompt in prompts]]:
        ids, lengths = padded([prompt[begin:end] for prompt, begin, end in zip(prompts, ends, following)])
        logits, *caches = model.executable.call("extend", ids, lengths, ends, *caches)
        ends = np.array(following)
    return logits


def log_likelihoods(logits, targets):
    """Log-probabilities of ids `[T]` by logits `[T, V]`, in double precision."""
    logits = np.asarray(logits, np.float64)
    logits = logits - logits.max(-1, keepdims=True)
    return logits[np.arange(len(targets)), targets] - np.log(np.exp(logits).sum(-1))


def check_against(model, expected, vocabulary, tolerance):
    """A decoder against `expected(ids)`, the logits of one sequence: whole, likelihoods, ragged prompts and steps after them, and chunks."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, vocabulary, (3, 13))
    rows = [expected(row) for row in ids]
    assert_near(model.forward(ids), np.stack(rows), tolerance)
    targets = rng.integers(0, vocabulary, ids.shape)
    assert_near(model.executable.call("score", ids, targets)[0], np.stack([log_likelihoods(*row) for row in zip(rows, targets)]), tolerance)
    prompts = [ids[0].tolist(), ids[1, :6].tolist(), ids[2, :3].tolist()]
    lasts = np.stack([row[len(prompt) - 1] for row, prompt in zip(rows, prompts)])
    for cuts in ([[1, 1, 1], [2, 4, 2]], [[8, 5, 2]]):
        assert_near(chunked_logits(model, prompts, cuts, 20), lasts, tolerance)
    steps = 4
    got = cached_logits(model, prompts, steps)
    for row, prompt in enumerate(prompts):
        # Steps feed back what the model itself says, so near ties do not count.
        fed = got[row].argmax(-1)[:steps]
        assert_near(got[row], expected(np.concatenate([prompt, fed]))[len(prompt) - 1:], tolerance)
