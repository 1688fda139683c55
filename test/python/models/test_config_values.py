"""Folders of models with values of every wrong kind: each ends as one of our errors, or works."""
import copy
import json
import random
import shutil
import warnings

import numpy as np
import pytest
from paths import ROOT

import diffattn
from diffattn import errors, models
from diffattn.models import Config, ConfigError

TINY = ROOT / "examples" / "tiny-lm"
#: Everything that JSON can say, at and beyond the ends.
VALUES = [None, True, False, 0, 1, -1, 2, 3, 7, 1.5, -0.0, 1e-300, 1e-45, 1e-38, 1e38, 1e300, -1e300, 2**31, 2**63, -2**63, 10**30,
          10**400, float("nan"), float("inf"), float("-inf"), "", "0", "silu", "yarn", "\x1b[31m", "\ud800", "x" * 5000, [], [0], [1.5],
          [None], [[]], {}, {"a": 1}, {"rope_type": "linear", "factor": 0}]

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
        "mscale_all_dim": 0.5, "attention_factor": 1.2, "truncate": True}
DECODER = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
           "num_key_value_heads": 2, "head_dim": 4, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e4,
           "max_position_embeddings": 64, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": [1, 2]}
CONFIGS = {
    "v1": {"model_type": "diff_v1", **DECODER, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "v2": {"model_type": "diff_v2", **DECODER, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    "llama3": {"model_type": "diffllama", **DECODER, "attention_bias": True, "attention_dropout": 0.0, "rope_parameters": LLAMA3},
    "yarn": {"model_type": "diffllama", **DECODER, "rope_scaling": YARN},
    "edifice": {"model_type": "edifice_diff_transformer", "embed_dim": 4, "hidden_size": 8, "num_heads": 2, "num_layers": 1,
                "output_mode": "all", "dropout": 0.1, "window_size": 60, "seq_len": 60},
    "edifice attention": {"model_type": "edifice_diff_attention", "hidden_size": 8, "num_heads": 2, "name": "attn"},
    "timm": {"architecture": "vit_dwee_patch16_reg1_gap_256", "num_classes": 5, "model_args": {
        "embed_dim": 16, "depth": 1, "num_heads": 2, "mlp_ratio": 2.0, "img_size": 32, "patch_size": 16, "in_chans": 3,
        "num_classes": 4, "reg_tokens": 1}},
    "multihead": {"model_type": "diff_multihead", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2,
                  "depth": 1, "is_causal": True, "rope": True, "rope_theta": 1e4, "max_position_embeddings": 64},
}


def places(tree, path=()):
    """The path of each value in a tree."""
    for key in tree if isinstance(tree, dict) else range(len(tree)):
        yield (*path, key)
        if isinstance(tree[key], (dict, list)):
            yield from places(tree[key], (*path, key))


def changed(tree, path, value):
    tree = copy.deepcopy(tree)
    node = tree
    for key in path[:-1]:
        node = node[key]
    if value is Ellipsis:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return tree


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_value_of_every_key(name):
    """A graph of finite numbers, or a ConfigError that names the key and fits on a screen."""
    plain = str(models.build(CONFIGS[name]))  # what begins a maximum is minus infinity
    built = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # NumPy's, of what leaves the range of floats
        for path in places(CONFIGS[name]):
            for value in [*VALUES, ...]:
                # Models of millions of layers' weights are right, and take long to write.
                if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 7 and value <= 2**20:
                    continue
                try:
                    text = str(models.build(changed(CONFIGS[name], path, value)))
                except ConfigError as error:
                    assert len(str(error)) < 1500 and "\x1b" not in str(error), (path, value)
                    continue
                built += 1
                for bad in ("nan", "inf", "0x7F800000", "0xFF800000", "0x7FC00000"):
                    assert text.count(bad) <= plain.count(bad), (path, value, bad)
    assert built


@pytest.mark.parametrize("key, value, expected", [
    ("rms_norm_eps", 1e300, "expected 'rms_norm_eps' to be a finite number above 0.*, but got 1e\\+300"),
    ("rms_norm_eps", 10**400, "expected 'rms_norm_eps' to be a finite number above 0, but got a? ?1?"),
    ("rms_norm_eps", 1e-300, "above 0 that float32 holds, but got 1e-300"),
    ("rms_norm_eps", 0, "above 0, but got 0"),
    ("eos_token_id", 1.5, "expected 'eos_token_id' to be a token id or a list of them, but got 1.5"),
    ("eos_token_id", [1, -1], "expected 'eos_token_id' to be a token id or a list of them, but got .1, -1"),
    ("bos_token_id", "0", "expected 'bos_token_id' to be a token id or a list of them, but got '0'"),
    ("max_position_embeddings", "many", "expected 'max_position_embeddings' to be an integer"),
    ("rope_scaling", {"type": "linear", "factor": 0}, "expected 'factor' to be a finite number above .*, but got 0"),
    ("rope_scaling", {"type": "dynamic", "factor": 1e300}, "expected 'factor' to be a finite number .*, but got 1e\\+300"),
    ("rope_scaling", {"rope_type": "yarn", "factor": 2.0, "mscale": -1.0, "mscale_all_dim": 1.0}, "expected 'mscale' to be at least 0"),
])
def test_the_message_has_key_expectation_and_value(key, value, expected, tmp_path):
    folder = copy_of_tiny(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(ConfigError, match=expected) as raised:
        diffattn.load(folder)
    assert str(folder / "config.json") in str(raised.value)


def test_numbers_that_are_no_python_floats():
    config = Config({"a": 10**400, "b": True, "c": np.float64(1), "d": 3})
    for key in "ab":
        with pytest.raises(ConfigError, match=f"expected '{key}' to be a finite number"):
            config.number(key)
    assert config.number("d") == 3.0 and config.number("c") == 1.0


def copy_of_tiny(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        shutil.copy(TINY / name, folder)
    return folder


def use(folder):
    model = diffattn.load(folder, threads=1)
    model.forward([[1, 2, 3]])
    list(model.generate("In the", 2))
    model.bits_per_character("In the beginning", window=8)


def attempt(folder, what):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            use(folder)
    except errors.DiffAttnError as error:
        assert isinstance(error, (errors.WeightsError, errors.InputError)), (what, error)
        assert "\x1b" not in str(error) and len(str(error)) < 3000, what


@pytest.mark.parametrize("file", ["tokenizer.json", "generation_config.json", "model.safetensors.index.json"])
def test_files_with_other_values(file, tmp_path, full):
    """A tokenizer's file is large, so a part of it is drawn."""
    folder = copy_of_tiny(tmp_path)
    path = folder / file
    if file == "tokenizer.json":
        tree = json.loads(path.read_text())
    elif file == "generation_config.json":
        tree = {"bos_token_id": 0, "eos_token_id": [1, 2], "max_new_tokens": 4, "temperature": 0.7, "top_k": 5, "top_p": 0.9,
                "do_sample": True, "max_length": 20}
    else:
        shutil.move(folder / "model.safetensors", folder / "one.safetensors")
        tree = {"metadata": {"total_size": 1}, "weight_map": {"model.norm.weight": "one.safetensors", "b": "one.safetensors"}}
    rng = random.Random(0)
    small = {key: value for key, value in tree.items() if key != "model"} if file == "tokenizer.json" else tree
    paths = list(places(small))
    if file == "tokenizer.json":
        paths += [("model", key) for key in tree["model"]]
        paths += [("model", "vocab", key) for key in rng.sample(sorted(tree["model"]["vocab"]), 5)]
        paths += [("model", "merges", number) for number in range(3)]
    cases = [(where, value) for where in paths for value in [*VALUES, ...] if not isinstance(value, str) or len(value) < 100]
    for where, value in rng.sample(cases, min(len(cases), 2000 if full else 60)):
        path.write_text(json.dumps(changed(tree, where, value)))
        attempt(folder, (file, where, value))


def test_a_config_of_a_decoder_with_other_values(tmp_path, full):
    folder = copy_of_tiny(tmp_path)
    tree = json.loads((folder / "config.json").read_text()) | {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}
    rng = random.Random(1)
    cases = [(where, value) for where in places(tree) for value in [*VALUES, ...]]
    for where, value in rng.sample(cases, len(cases) if full else 60):
        (folder / "config.json").write_text(json.dumps(changed(tree, where, value)))
        attempt(folder, (where, value))


@pytest.mark.parametrize("text", [b'{"a": 1' + b"0" * 5000 + b"}", b'{"model_type": "\\ud800"}', b"\xef\xbb\xbf{}", b"NaN", b"", b'"x"', b"1e999",
                                  b"[" * 100000, b'{"a":' * 100000])
@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json", "tokenizer.json"])
def test_text_that_is_no_good_json(file, text, tmp_path):
    folder = copy_of_tiny(tmp_path)
    if file == "model.safetensors.index.json":
        (folder / "model.safetensors").unlink()
    (folder / file).write_bytes(text)
    with pytest.raises(errors.CheckpointError):
        use(folder)


def test_paths_that_cannot_be_looked_at(tmp_path):
    for folder in ("x" * 5000, "a\0b", "\ud800", tmp_path / "config.json" / "x", 3, None):
        with pytest.raises((errors.CheckpointError, errors.UsageError)):
            diffattn.load(folder)
    folder = copy_of_tiny(tmp_path)
    (folder / "model.safetensors").unlink()
    for name in ("x" * 300, "a\0b", "\ud800", "", 1.5, None, ["one"]):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(errors.CheckpointError):
            diffattn.load(folder)
    loop = folder / "model.safetensors"
    loop.symlink_to(loop)
    with pytest.raises(errors.CheckpointError):
        diffattn.load(folder)


@pytest.mark.parametrize("count", [10**18, 2**63, 10**30, 1.5, "3", True, float("nan")])
def test_numbers_of_tokens_that_are_none(count):
    with pytest.raises(errors.UsageError, match="max_new_tokens: expected an integer"):
        diffattn.load(TINY).generate("In the", count)


def test_one_hierarchy():
    kinds = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert len(kinds) >= 12 and all(issubclass(kind, diffattn.DiffAttnError) and kind.code for kind in kinds.values())
    text = (ROOT / "docs" / "python.md").read_text()
    for name, kind in kinds.items():
        if name != "DiffAttnError":
            assert f"| `{name}` | {kind.code} |" in text, "documented with its code"
