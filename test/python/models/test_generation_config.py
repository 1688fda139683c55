"""generation_config.json: its keys are honoured where the caller says nothing, and what is not honoured is said."""
import json
import shutil
import warnings

import numpy as np
import pytest
from paths import ROOT

import diffattn
from diffattn import cli
from diffattn.checkpoint import CheckpointError
from diffattn.generation_config import read_defaults
from diffattn.models import ConfigError
from diffattn.sampling import Sampler

TINY = ROOT / "examples" / "tiny-lm"
PROMPT = "And the king said"


@pytest.fixture(scope="module")
def plain():
    return diffattn.load(TINY)


@pytest.fixture
def load(tmp_path):
    """The example with a generation_config.json."""
    def load(**keys):
        folder = tmp_path / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(TINY, folder)
        (folder / "generation_config.json").write_text(json.dumps(keys))
        return diffattn.load(folder)

    return load


def defaults(folder, config=None, **keys):
    (folder / "generation_config.json").write_text(json.dumps(keys))
    return read_defaults(folder, config or {})


def ids(model, *arguments, **options):
    return list(model.generate(model.tokenizer.encode(PROMPT), *arguments, **options))


def test_ends_come_from_it_first(load, plain, tmp_path):
    greedy = ids(plain, 12)
    assert len(greedy) == 12
    third, second = greedy[3], greedy[2]
    stop = min(greedy.index(third), greedy.index(second))
    assert ids(load(eos_token_id=third), 12) == greedy[: greedy.index(third) + 1]
    assert ids(load(eos_token_id=[5, third, second]), 12) == greedy[: stop + 1]
    own = {"eos_token_id": 7, "bos_token_id": 8}
    assert defaults(tmp_path, own).ends == {7} and defaults(tmp_path, own).bos == 8
    assert defaults(tmp_path, own, eos_token_id=[1, 2], bos_token_id=3).ends == {1, 2}
    assert defaults(tmp_path, own, eos_token_id=[1, 2], bos_token_id=3).bos == 3
    assert defaults(tmp_path, own, eos_token_id=None).ends == {7}


def test_sampling_defaults(load, plain):
    options = {"temperature": 0.7, "top_k": 20, "top_p": 0.9}
    sampled = ids(plain, 12, **options)
    model = load(do_sample=True, **options)
    assert ids(model, 12) == sampled != ids(plain, 12)
    # Options that are given win, each for itself.
    assert ids(model, 12, temperature=0) == ids(plain, 12)
    assert ids(model, 12, top_k=3) == ids(plain, 12, temperature=0.7, top_k=3, top_p=0.9)
    assert ids(model, 12, seed=5) == ids(plain, 12, seed=5, **options)
    # transformers samples from 50 tokens at temperature 1 where the file names no others, and is greedy without do_sample.
    assert ids(load(do_sample=True), 12) == ids(plain, 12, temperature=1.0, top_k=50)
    assert ids(load(temperature=0.7, top_k=20), 12) == ids(load(do_sample=False, temperature=0.7), 12) == ids(plain, 12)
    assert ids(load(top_p=0.5), 12, temperature=1.0) == ids(plain, 12, temperature=1.0, top_p=0.5)


def test_lengths(load, plain):
    assert len(ids(plain)) == 128
    assert len(ids(load(max_new_tokens=5))) == 5 and len(ids(load(max_new_tokens=5, max_length=2))) == 5
    prompt = len(plain.tokenizer.encode(PROMPT))
    model = load(max_length=prompt + 4)
    assert len(ids(model)) == 4 and len(ids(model, 7)) == 7
    with pytest.raises(ValueError, match="leaves no room in the max_length of 2 that generation_config.json sets"):
        ids(load(max_length=2))


def test_stop_strings(load, plain):
    whole = "".join(plain.generate(PROMPT, 30))
    word = whole.split()[2]
    for stop in (word, ["never there", word]):
        model = load(stop_strings=stop)
        assert "".join(model.generate(PROMPT, 30)) == whole[: whole.index(word)]
        assert "".join(model.generate(PROMPT, 30, stop=[])) == whole


def test_repetition_penalty(load, plain):
    greedy = ids(plain, 24)
    assert len(set(greedy)) < 20
    penalized = ids(plain, 24, repetition_penalty=1.5)
    assert len(set(penalized)) > len(set(greedy)) and ids(load(repetition_penalty=1.5), 24) == penalized
    assert ids(load(repetition_penalty=1.5), 24, repetition_penalty=1) == greedy


@pytest.mark.oracle
def test_repetition_penalty_is_that_of_transformers():
    import torch
    from transformers import RepetitionPenaltyLogitsProcessor

    rng = np.random.default_rng(0)
    for penalty in (1.3, 0.6):
        for _ in range(20):
            logits, before = rng.standard_normal(50).astype(np.float32), rng.integers(0, 50, 30)
            expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor(before)[None], torch.tensor(logits)[None])[0].numpy()
            assert Sampler(repetition_penalty=penalty).pick(logits, before.tolist()) == expected.argmax()


@pytest.mark.oracle
def test_a_file_of_transformers_is_read(load, plain, tmp_path):
    """As its GenerationConfig writes it."""
    import transformers

    own = transformers.GenerationConfig(do_sample=True, temperature=0.8, top_k=11, top_p=0.7, repetition_penalty=1.2, max_new_tokens=6,
                                        eos_token_id=[1, 2], bos_token_id=0, pad_token_id=1, stop_strings=["\n\n"])
    own.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        defaults = read_defaults(tmp_path, {})
    assert (defaults.temperature, defaults.top_k, defaults.top_p, defaults.repetition_penalty) == (0.8, 11, 0.7, 1.2)
    assert (defaults.new_tokens, defaults.ends, defaults.bos, defaults.stop) == (6, {1, 2}, 0, ["\n\n"])


def test_other_keys_are_named(tmp_path):
    with pytest.warns(UserWarning, match=r"generation_config.json: not honoured: min_p, no_repeat_ngram_size, num_beams, suppress_tokens$"):
        defaults(tmp_path, num_beams=4, min_p=0.1, suppress_tokens=[3], no_repeat_ngram_size=2, temperature=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        defaults(tmp_path, num_beams=1, min_p=None, suppress_tokens=None, typical_p=1.0, no_repeat_ngram_size=0, use_cache=True,
                 transformers_version="5", _from_model_config=True, pad_token_id=3, early_stopping=False, output_scores=False)


def test_options_without_effect_are_named(plain):
    with pytest.warns(UserWarning, match="top_k and top_p have no effect at temperature 0"):
        plain.generate(PROMPT, 1, temperature=0, top_k=5)


@pytest.mark.parametrize("keys, message", [
    ({"temperature": "hot"}, "'temperature' to be a finite number"), ({"temperature": -1}, "'temperature' to be at least 0, but got -1"),
    ({"temperature": True}, "'temperature'"), ({"top_k": 1.5}, "'top_k' to be an integer"), ({"top_k": -1}, "'top_k'"),
    ({"top_p": 0}, "'top_p' to be a finite number above 0"), ({"top_p": 1.5}, "'top_p' to be at most 1"),
    ({"do_sample": "yes"}, "'do_sample' to be true or false"), ({"do_sample": 1}, "'do_sample'"),
    ({"repetition_penalty": 0}, "'repetition_penalty' to be a finite number above 0"),
    ({"max_new_tokens": 0}, "'max_new_tokens' to be an integer from 1"), ({"max_new_tokens": 2.0}, "'max_new_tokens'"),
    ({"max_length": 0}, "'max_length'"), ({"eos_token_id": -1}, "'eos_token_id' to be a token id or a list of them"),
    ({"eos_token_id": [1, True]}, "'eos_token_id'"), ({"eos_token_id": 1.0}, "'eos_token_id'"), ({"bos_token_id": "a"}, "'bos_token_id'"),
    ({"stop_strings": 3}, "'stop_strings'"), ({"stop_strings": [""]}, "'stop_strings'"),
])
def test_wrong_values(tmp_path, keys, message):
    with pytest.raises(ConfigError, match=f"generation_config.json: expected {message}"):
        defaults(tmp_path, **keys)


def test_a_begin_token_outside_of_the_vocabulary(tmp_path):
    for config, keys, where in [({"vocab_size": 9}, {"bos_token_id": 9}, "generation_config.json"),
                                ({"vocab_size": 9, "bos_token_id": 10}, {}, "/config.json")]:
        with pytest.raises(ConfigError, match=f"{where}: expected 'bos_token_id' to be below the vocab_size of 9"):
            defaults(tmp_path, config, **keys)
    assert defaults(tmp_path, {"vocab_size": 9, "bos_token_id": 10}, bos_token_id=8).bos == 8


def test_malformed_files(tmp_path):
    for text, error, message in [("{", CheckpointError, "expected JSON"), ("[]", ConfigError, "expected an object, but got list"),
                                 ('{"top_k": 1, "top_k": 2}', CheckpointError, "every name once")]:
        (tmp_path / "generation_config.json").write_text(text)
        with pytest.raises(error, match=message):
            read_defaults(tmp_path, {})


def test_bundles_carry_it(load, plain, tmp_path, capsys):
    model = load(max_new_tokens=3, eos_token_id=1)
    assert cli.main(["bundle", str(tmp_path / "model"), "-o", str(tmp_path / "b")]) == 0
    opened = diffattn.bundle.load(tmp_path / "b")
    assert ids(opened) == ids(model) == ids(plain, 3) and opened.ends == {1}
    capsys.readouterr()
    assert cli.main(["generate", "--bundle", str(tmp_path / "b"), "--prompt", PROMPT]) == 0
    assert "decode: 2 tokens" in capsys.readouterr().err
