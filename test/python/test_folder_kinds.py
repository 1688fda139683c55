"""A folder is what its user says: a checkpoint, which is data, or a bundle, which is code. Its files decide nothing."""
import json
import shutil

import pytest

from conftest import ROOT

import diffattn
from diffattn import cli, errors

TINY = ROOT / "examples" / "tiny-lm"
PROMPT = ["--prompt", "In the beginning", "--max-new-tokens", "4"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds") / "tiny.bundle"
    assert cli.main(["bundle", str(TINY), "-o", str(folder), "--copy-weights"]) == 0
    return folder


@pytest.fixture
def both(bundle, tmp_path):
    """A checkpoint with all the files of a bundle beside it, whose code must not be touched."""
    folder = tmp_path / "both"
    shutil.copytree(bundle, folder)
    shutil.copy(TINY / "model.safetensors", folder)
    (folder / "model.so").write_bytes(b"\x7fELF, not to be loaded")
    return folder


def test_a_manifest_does_not_make_a_checkpoint_run_code(both, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("In the beginning God created")
    assert cli.main(["generate", str(both), *PROMPT]) == 0
    assert capsys.readouterr().out.startswith("In the beginning")
    assert cli.main(["eval", str(both), str(text)]) == 0
    assert cli.main(["bench", str(both), "--prompt-tokens", "4", "--max-new-tokens", "2", "--runs", "1"]) == 0
    capsys.readouterr()
    assert cli.main(["info", str(both)]) == 0
    assert capsys.readouterr().out.startswith("model                   diff_v1")
    assert diffattn.load(both).forward([[1, 2]]).shape == (1, 2, 2048)
    # The code is only looked at when it is asked for.
    for command in (["generate", "--bundle", str(both), *PROMPT], ["info", "--bundle", str(both)]):
        assert cli.main(command) == errors.BundleError.code
        assert "model.so" in capsys.readouterr().err
    with pytest.raises(errors.BundleError, match="model.so"):
        diffattn.bundle.load(both)


def test_a_bundle_is_opened_where_it_is_asked_for(bundle, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("In the beginning God created")
    assert cli.main(["generate", str(TINY), *PROMPT]) == 0
    expected = capsys.readouterr().out
    assert cli.main(["generate", "--bundle", str(bundle), *PROMPT]) == 0
    assert capsys.readouterr().out == expected
    assert cli.main(["eval", "--bundle", str(bundle), str(text)]) == 0
    assert cli.main(["bench", "--bundle", str(bundle), "--prompt-tokens", "4", "--max-new-tokens", "2", "--runs", "1"]) == 0
    capsys.readouterr()
    assert cli.main(["info", str(bundle), "--bundle", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bundle"].startswith("version 1")


@pytest.mark.parametrize("command", ["generate", "bench", "info"])
def test_the_error_for_the_other_kind_has_the_right_command(command, bundle, tmp_path, capsys):
    named = tmp_path / "a bundle"
    named.symlink_to(bundle)
    assert cli.main([command, str(named)]) == errors.CheckpointError.code
    said = capsys.readouterr().err
    assert "expected a checkpoint, but got a bundle" in said and f"diffattn {command} --bundle '{named}'" in said
    assert cli.main([command, "--bundle", str(TINY)]) == errors.BundleError.code
    said = capsys.readouterr().err
    assert "expected a bundle, but got a checkpoint" in said and f"diffattn {command} {TINY}" in said


def test_the_same_in_python(bundle):
    with pytest.raises(errors.CheckpointError, match="got a bundle, which is code; diffattn.bundle.load opens it"):
        diffattn.load(bundle)
    with pytest.raises(errors.BundleError, match="expected a bundle, but got a checkpoint; diffattn.load compiles it"):
        diffattn.bundle.load(TINY)


def test_neither_kind(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    assert cli.main(["generate", str(tmp_path)]) == 5
    assert "expected model.safetensors" in capsys.readouterr().err
    assert cli.main(["generate", "--bundle", str(tmp_path)]) == 9
    assert "manifest.json" in capsys.readouterr().err


def test_the_code_of_a_bundle_is_made(bundle, capsys):
    for more in (["--dtype", "f32"], ["--target", "cpu:avx2"]):
        assert cli.main(["generate", "--bundle", str(bundle), *more]) == errors.UsageError.code
        assert "expected no --dtype and no --target with --bundle" in capsys.readouterr().err
