"""The trained example: as good in our hands as in PyTorch's, token by token, and through the command line."""
import json
import re
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from paths import ROOT

import diffattn
from diffattn import cli, runtime
from diffattn.errors import RunError

DIRECTORY = ROOT / "examples" / "tiny-lm"
PROMPTS = ["In the beginning", "And the king said unto", "The LORD"]


@pytest.fixture(scope="module")
def model():
    return diffattn.load(DIRECTORY)


@pytest.fixture(scope="module")
def oracle():
    import reference

    return reference.load(DIRECTORY)


def diffattn_command(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "diffattn", *arguments], cwd=ROOT / "python", text=True,
                          capture_output=True, timeout=120, **options)


def test_files_are_small_and_whole():
    training = json.loads((DIRECTORY / "training.json").read_text())
    assert (DIRECTORY / "model.safetensors").stat().st_size <= 10 << 20
    assert 2_000_000 <= training["parameters"] <= 5_000_000
    text = (DIRECTORY / "heldout.txt").read_text()
    assert len(text) == training["heldout_characters"] and len(text.encode()) <= 60_000
    losses = training["curve"]["heldout_loss"]
    assert losses[-1] < losses[0] - 1


def test_bits_per_character_equal_pytorch(model):
    expected = json.loads((DIRECTORY / "training.json").read_text())["bits_per_character"]
    assert model.bits_per_character((DIRECTORY / "heldout.txt").read_text()) == pytest.approx(expected, abs=1e-3)


def test_likelihoods_need_no_logits_of_all_tokens(model, monkeypatch):
    """The sums of `eval` are near those of the logits in double precision, and take less memory."""
    tokens = np.array([model.tokenizer.encode((DIRECTORY / "heldout.txt").read_text()[:4000])[:1000]]).reshape(4, 250)
    ids, targets = tokens[:, :-1].copy(), tokens[:, 1:].copy()
    taken = {}
    for entry, arguments in (("forward", (ids,)), ("score", (ids, targets))):
        runtime.reset_counters()
        (result,) = model.executable.call(entry, *arguments)
        taken[entry] = runtime.counters().arena_bytes_peak + result.nbytes
    assert taken["score"] < taken["forward"] - 0.8 * ids.size * 2048 * 4, taken
    log_p, logits = result, model.forward(ids).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    exact = np.take_along_axis(logits, targets[..., None], -1)[..., 0] - np.log(np.exp(logits).sum(-1))
    np.testing.assert_allclose(log_p, exact, rtol=0, atol=2e-5)
    for wrong, message in ((targets[:, 1:].copy(), "expected targets of the shape of ids"),
                           (targets - 2048, "expected every token id to be at least 0 and below 2048"),
                           (targets + 2048, "expected every token id to be at least 0 and below 2048")):
        with pytest.raises(RunError, match=message):
            model.executable.call("score", ids, wrong)
    monkeypatch.setattr(model.executable, "entries", ["forward", "prefill", "extend", "decode"])
    with pytest.raises(ValueError, match="expected the function score among those of a decoder, as they are compiled now, but got forward, prefill"):
        model.bits_per_character("And")


@pytest.mark.oracle
def test_logits_and_greedy_tokens_equal_pytorch(oracle):
    import torch

    model = diffattn.load(DIRECTORY, dtype="f32")
    for prompt in PROMPTS:
        ids = model.tokenizer.encode(prompt)
        tokens = list(ids)
        with torch.no_grad():
            np.testing.assert_allclose(model.forward([ids])[0], oracle(torch.tensor([ids]))[0].numpy(), atol=2e-3)
            for _ in range(30):
                tokens.append(int(oracle(torch.tensor([tokens]))[0, -1].argmax()))
        assert list(model.generate(ids, 30)) == tokens[len(ids):]


def test_a_batch_gives_what_each_prompt_gives_alone(model):
    texts = dict.fromkeys(range(len(PROMPTS)), "")
    for row, piece in model.generate(PROMPTS, 24):
        texts[row] += piece
    assert list(texts.values()) == ["".join(model.generate(p, 24)) for p in PROMPTS]
    assert model.timing.decode_tokens == 23 and model.timing.prefill_tokens == len(model.tokenizer.encode(PROMPTS[-1]))


def test_samples_depend_on_the_seed_alone(model):
    def text(seed):
        return "".join(model.generate("And", 20, temperature=0.9, top_k=50, top_p=0.95, seed=seed))

    assert text(1) == text(1) != text(2)


def test_samples_do_not_depend_on_the_batch():
    """Prompts' texts, alone and in any place of a batch, with equal and with different seeds."""
    model = diffattn.load(DIRECTORY, batch_invariant=True)
    options = {"temperature": 0.9, "top_k": 50}

    def texts(prompts, **more):
        result = dict.fromkeys(range(len(prompts)), "")
        for row, piece in model.generate(prompts, 12, **options, **more):
            result[row] += piece
        return list(result.values())

    alone = {(prompt, seed): "".join(model.generate(prompt, 12, seed=seed, **options)) for prompt in ("And", "In the beginning") for seed in (3, 8)}
    assert texts(["And"] * 4, seed=3) == [alone["And", 3]] * 4
    assert texts(["In the beginning", "And", "And"], seed=[8, 3, 8]) == [alone["In the beginning", 8], alone["And", 3], alone["And", 8]]
    assert len(set(alone.values())) == 4


def test_stop_ends_before_the_text(model):
    whole = "".join(model.generate("In the beginning", 40))
    word = whole.split()[3]
    assert "".join(model.generate("In the beginning", 40, stop=[word])) == whole[: whole.index(word)]


def test_refuses_what_it_cannot_do(model):
    for ids, message in (([5000], "below 2048, but got 5000"), ([-1], "but got -1"), ([], "at least one token"), (np.zeros((0, 3), int), "expected token ids, but got an array of none")):
        with pytest.raises(ValueError, match=message):
            list(model.generate(ids, 4))
    with pytest.raises(ValueError, match="max_new_tokens: expected an integer from 1"):
        list(model.generate("And", 0))
    with pytest.raises(ValueError, match="window: expected an integer from 2 to [0-9]+, but got 1"):
        model.bits_per_character("And", window=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        next(iter(model.generate("And", 400)))
    assert "more than the 256 that the model was made for" in str(caught[0].message)
    with pytest.warns(UserWarning, match="300 tokens are more than the 256 that the model was made for"):
        model.bits_per_character("And", window=300)


def test_caches_begin_with_a_line(model):
    for capacity in (4, 2000):
        for cache in model.new_caches(2, capacity):
            assert cache.ctypes.data % 64 == 0 and not cache.any() and cache.flags.c_contiguous and cache.flags.writeable


def test_compiled_checks_report_wrong_arguments(model):
    """The graph itself refuses what Python would have caught, for callers without Python."""
    call, caches = model.executable.call, model.new_caches(1, 4)
    ids = np.array([[1, 2]], np.int64)
    for entry, arguments, message in [
        ("forward", [np.array([[4000]], np.int64)], "every token id to be at least 0 and below 2048"),
        ("prefill", [ids, np.array([3], np.int64), *caches], "every length to be at least 1"),
        ("prefill", [np.zeros((1, 5), np.int64), np.array([5], np.int64), *caches], "at most the capacity"),
        ("prefill", [ids.repeat(2, 0), np.array([2, 2], np.int64), *caches], "batches of ids"),
        ("decode", [np.array([1], np.int64), np.array([4], np.int64), *caches], "below the capacity"),
        ("decode", [np.array([1], np.int64), np.array([-1], np.int64), *caches], "at least 0 and below the capacity"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            call(entry, *arguments)
    assert not np.any(caches[0]) and not np.any(caches[1])


def test_command_line(tmp_path):
    done = diffattn_command("generate", str(DIRECTORY), "--prompt", "In the beginning", "--max-new-tokens", "12")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("In the beginning") and len(done.stdout) > 30
    assert re.search(r"prefill: \d+ tokens, [\d.]+ tokens/s; decode: 11 tokens, [\d.]+ tokens/s", done.stderr)

    text = tmp_path / "text.txt"
    text.write_text((DIRECTORY / "heldout.txt").read_text()[:3000])
    done = diffattn_command("eval", str(DIRECTORY), str(text))
    assert done.returncode == 0 and 1 < float(re.search(r"bits per character: ([\d.]+)", done.stdout)[1]) < 3

    done = diffattn_command("bench", str(DIRECTORY), "--prompt-tokens", "16", "--max-new-tokens", "4", "--runs", "1", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["decode_tokens_per_second"] > 0

    text.write_bytes(b"\xff")
    done = diffattn_command("eval", str(DIRECTORY), str(text))
    assert done.returncode == 6 and "expected UTF-8 text" in done.stderr
    done = diffattn_command("generate", str(DIRECTORY), "--temperature", "-1")
    assert done.returncode == 2 and "temperature: expected" in done.stderr
    assert diffattn_command("generate").returncode == 2


def test_ids_on_the_command_line(tmp_path, model):
    """For a model without a tokenizer: ids in, ids out."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(DIRECTORY / name)
    rows = [[0, 40, 41], [0, 349]]
    expected = [row + list(model.generate(row, 5, temperature=0.8, seed=seed)) for row, seed in zip(rows, (4, 5))]
    words = [word for row in rows for word in ("--ids", ",".join(map(str, row)))]
    sampling = ("--max-new-tokens", "5", "--temperature", "0.8", "--seed", "4", "--seed", "5", "--batch-invariant")
    done = diffattn_command("generate", str(tmp_path), *words, *sampling)
    assert done.returncode == 0 and [list(map(int, line.split(","))) for line in done.stdout.splitlines()] == expected, done.stderr
    for words, message in (((), "tokenizer.json, because the command works on text; --ids takes and gives token ids without one"),
                           (("--ids", "0,2048"), "--ids: expected token ids below the config's vocab_size, 2048, but got 2048"),
                           (("--ids", "0,-1"), "expected token ids as 1,2,3, but got '0,-1'"), (("--ids", ""), "expected token ids as 1,2,3"),
                           (("--ids", "0", "--stop", "x"), "--ids: expected no --stop with it"),
                           (("--ids", "0", "--prompt", "x"), "--ids: expected no --prompt with it"),
                           (("--ids", "0", "--seed", "1", "--seed", "2"), "--seed: expected one for all prompts or 1, one for each, but got 2")):
        done = diffattn_command("generate", str(tmp_path), *words)
        assert done.returncode != 0 and message in done.stderr and "compiling" not in done.stderr


def test_an_interrupt_of_a_finalizer_is_not_lost(capfd):
    class Finalized:
        def __del__(self):
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored in the background of a shell
    try:
        with pytest.raises(KeyboardInterrupt), cli.interrupts_kept():
            Finalized()
            time.sleep(1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert "Traceback" not in capfd.readouterr().err


def test_an_interrupt_ends_cleanly():
    command = [sys.executable, "-u", "-m", "diffattn", "generate", str(DIRECTORY), "--prompt", "And",
               "--max-new-tokens", "100000"]
    # A test run in the background of a shell hands on that interrupts are ignored, and a command rightly keeps to it.
    process = subprocess.Popen(command, cwd=ROOT / "python", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert len(process.stdout.read(20)) == 20
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors and "tokens/s" in errors
