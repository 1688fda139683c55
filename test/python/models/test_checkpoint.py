"""Directories that hold no usable checkpoint: one clear error each, before anything is compiled."""
import json
import struct

import numpy as np
import pytest
from checkpoints import write_checkpoint
from paths import ROOT

from diffattn import cli, models
from diffattn.checkpoint import CheckpointError, open_checkpoint
from diffattn.errors import ConfigError
from diffattn.model import build_graph

CONFIG = {"model_type": "edifice_diff_attention", "hidden_size": 4, "num_heads": 2}


def header(entries, data=b"", length=None):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.fixture
def good(tmp_path):
    return write_checkpoint(tmp_path / "good", CONFIG, {"a": np.zeros((2, 3), np.float32), "b": np.zeros(5, np.float16)})


def test_reads_names_types_and_sizes(good):
    checkpoint = open_checkpoint(good)
    assert checkpoint.tensors["a"].shape == (2, 3) and checkpoint.dtype == "f32" and checkpoint.parameters == 11
    assert checkpoint.tokenizer_file is None


@pytest.mark.parametrize("config, message", [
    (b"{", "expected JSON, but got"),
    (b"\xff\xfe", "expected JSON, but got"),
    (b"[1]", "expected an object, but got list"),
    (b"[" * 100000, "expected JSON, but got"),
    (b'{"model_type": "diff_v1", "model_type": "diff_v2"}', "expected every name once, but got 'model_type' twice"),
])
def test_bad_config(config, message, good, capsys):
    (good / "config.json").write_bytes(config)
    assert cli.main(["info", str(good)]) == 5
    output = capsys.readouterr().err
    assert message in output and output.count("config.json: ") == 1


@pytest.mark.parametrize("content, message", [
    (b"", "expected a safetensors file, but got 0 bytes"),
    (b"\x00" * 4, "expected a safetensors file, but got 4 bytes"),
    (header({}, length=1 << 60), "expected a header of at most"),
    (header(b"{not json"), "expected JSON, but got"),
    (header([]), "expected the header to be an object, but got list"),
    (header({"a": 3}), "expected 'a' to have a dtype and a shape, but got 3"),
    (header({"a": {"dtype": "F32", "shape": [-1]}}), "expected 'a' to have a dtype and a shape"),
    (header({"a": {"dtype": "F32", "shape": [1 << 60]}}), "expected 'a' to have a dtype and a shape"),
    (header({"a": {"dtype": 7, "shape": [1]}}), "expected 'a' to have a dtype and a shape"),
])
def test_bad_safetensors(content, message, good):
    (good / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(good)


@pytest.mark.parametrize("index, message", [
    ({}, "expected a weight_map with names of files, but got none"),
    ({"weight_map": {}}, "expected a weight_map with names of files, but got an empty one"),
    ({"weight_map": {"a": "../good/model.safetensors"}}, "expected names of files beside it, but got '../good"),
    ({"weight_map": {"a": ".."}}, "expected names of files beside it, but got '..'"),
    ({"weight_map": {"a": "/etc/passwd"}}, "expected names of files beside it, but got '/etc/passwd'"),
    ({"weight_map": {"a": "gone.safetensors"}}, "expected the file 'gone.safetensors' beside it, but it is missing"),
    ({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}, "expected every tensor once, but got 'a' also in"),
])
def test_bad_index(index, message, good):
    content = (good / "model.safetensors").read_bytes()
    (good / "model.safetensors").unlink()
    for name in ("one.safetensors", "two.safetensors"):
        (good / name).write_bytes(content)
    (good / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(good)


def shard(*names):
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
                         for i, name in enumerate(names)}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4 * len(names))


@pytest.mark.parametrize("places, message", [
    ({"a": "one", "b": "two"}, None),
    ({"a": "two", "b": "one"}, "expected tensor 'a' in 'two.safetensors', but that file lacks it"),
    ({"a": "one", "b": "two", "c": "two"}, "expected tensor 'c' in 'two.safetensors', but that file lacks it"),
    ({"a": "one", "d": "two"}, "expected tensor 'd' in 'two.safetensors', but that file lacks it"),
    ({"b": "two", "a": "one", "e": "three"}, "expected every tensor of 'three.safetensors' in the index, but it lacks 'f'"),
])
def test_an_index_agrees_with_its_shards(places, message, good):
    """An index that the loader of diffattn-run refuses is refused here, where shards are named one by one."""
    (good / "model.safetensors").unlink()
    for name, content in (("one", shard("a")), ("two", shard("b")), ("three", shard("e", "f"))):
        (good / f"{name}.safetensors").write_bytes(content)
    places = {name: f"{place}.safetensors" for name, place in places.items()}
    (good / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    if message is None:
        assert {name: tensor.file.name for name, tensor in open_checkpoint(good).tensors.items()} == places
        return
    with pytest.raises(CheckpointError, match=f"index.json: {message}"):
        open_checkpoint(good)


def test_missing_parts(tmp_path, capsys):
    assert cli.main(["info", str(tmp_path / "nowhere")]) == 5
    assert "expected a directory with config.json and safetensors" in capsys.readouterr().err
    assert cli.main(["info", str(tmp_path)]) == 5
    assert "expected a config.json, but there is none" in capsys.readouterr().err
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert cli.main(["generate", str(tmp_path)]) == 5
    assert "expected model.safetensors or model.safetensors.index.json" in capsys.readouterr().err


def test_missing_weights_are_counted(good, capsys):
    assert cli.main(["generate", str(good)]) == 5
    assert "expected the weights of edifice_diff_attention, but 'diff_attn_q_proj.kernel' and 9 more are missing" in \
        capsys.readouterr().err


ATTENTION = ["diff_attn_q_proj.kernel", "diff_attn_compute.diff_attn_lambda"]


@pytest.mark.parametrize("name, message", [
    ("_orig_mod.{}", "the file has '_orig_mod.diff_attn_q_proj.kernel', with the '_orig_mod.' of torch.compile"),
    ("module.{}", "the file has 'module.diff_attn_q_proj.kernel', with the 'module.' of DataParallel"),
    ("_fsdp_wrapped_module._orig_mod.{}", "with the '_fsdp_wrapped_module.' of FSDP"),
    ("encoder.{}", "the file has 'encoder.diff_attn_q_proj.kernel', with the prefix 'encoder.': save"),
    ("encoder_{}", None), ("{}x", None)])
def test_names_with_another_prefix(tmp_path, name, message):
    state = {name.format(weight): np.zeros((4, 4), np.float32) for weight in ATTENTION}
    with pytest.raises(CheckpointError, match="expected the weights of edifice_diff_attention") as raised:
        build_graph(open_checkpoint(write_checkpoint(tmp_path / "m", CONFIG, state)))
    assert message in str(raised.value) if message else str(raised.value).endswith("missing")


def test_names_without_a_prefix(tmp_path):
    tiny = json.loads((ROOT / "examples" / "tiny-lm" / "config.json").read_text())
    for prefix, expected in (("", "the file has 'embed_tokens.weight', without 'model.'"),
                             ("transformer.", "with the prefix 'transformer.' and without 'model.'")):
        folder = write_checkpoint(tmp_path / f"m{prefix}", tiny, {f"{prefix}embed_tokens.weight": np.zeros((4, 4), np.float32)})
        with pytest.raises(CheckpointError, match="expected the weights of diff_v1") as raised:
            build_graph(open_checkpoint(folder))
        assert expected in str(raised.value)


@pytest.mark.parametrize("config, message", [
    ({"model_type": "llava", "text_config": CONFIG}, "got a 'text_config' of 'edifice_diff_attention' too, which has another 'model_type'"),
    ({**CONFIG, "text_config": {"hidden_size": 8}}, "which has another 'hidden_size'"),
    ({**CONFIG, "text_config": CONFIG}, None), ({**CONFIG, "text_config": None}, None), ({**CONFIG, "text_config": {}}, None)])
def test_a_nested_config_is_not_passed_over(config, message):
    if message is None:
        models.build(config)
        return
    with pytest.raises(ConfigError, match="config.json: expected the keys of one model, but ") as raised:
        models.build(config)
    assert message in str(raised.value)


def test_build_writes_all_or_nothing(good, tmp_path, capsys):
    out = tmp_path / "model.mlir"
    assert cli.main(["build", str(good), "-o", str(out)]) == 0
    assert out.read_text().startswith("module {")
    assert cli.main(["build", str(good), "-o", str(tmp_path / "gone" / "model.mlir")]) == 8
    assert "expected to write the file, but got: No such file" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_info_lists_what_does_not_fit(good, capsys):
    assert cli.main(["info", str(good), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["not used"] == "a, b" and "diff_attn_compute" in info["missing"]
