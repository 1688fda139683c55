"""A folder is what its user says: a checkpoint, which is data, or a bundle, which is code. Its files decide nothing."""
import json
import re
import shlex
import shutil
import subprocess

import pytest

from paths import ROOT

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
    error = capsys.readouterr().err
    assert "expected a checkpoint, but got a bundle" in error and f"diffattn {command} --bundle '{named}'" in error
    assert cli.main([command, "--bundle", str(TINY)]) == errors.BundleError.code
    error = capsys.readouterr().err
    assert "expected a bundle, but got a checkpoint" in error and f"diffattn {command} {TINY}" in error


@pytest.fixture
def places(bundle, tmp_path, monkeypatch, capsys):
    """One of each that a user may name, in the current folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(bundle, "my bundle")
    shutil.copytree(TINY, "model")
    shutil.copy("my bundle/model.so", "alone.so")
    assert cli.main(["build", "model", "-o", "m.mlir"]) == 0
    capsys.readouterr()
    for name in ("text.txt", "other.mlir"):
        (tmp_path / name).write_text("In the beginning God created")
    (tmp_path / "empty").mkdir()
    return tmp_path


#: For each path, the errors of a command without and with --bundle, and the folder and kind that it names instead.
CHECKPOINT, BUNDLE = ("model", False), ("my bundle", True)
KINDS = {
    "model": (None, "expected a bundle, but got a checkpoint", CHECKPOINT),
    "my bundle": ("expected a checkpoint, but got a bundle", None, BUNDLE),
    "model/config.json": ("but got a file", "but got a file", CHECKPOINT),
    "model/model.safetensors": ("but got a file", "but got a file", CHECKPOINT),
    "my bundle/manifest.json": ("but got a file", "but got a file", BUNDLE),
    "my bundle/model.so": ("but got compiled code", "but got compiled code", BUNDLE),
    "alone.so": ("but got compiled code", "but got compiled code", None),
    "m.mlir": ("but got a file of MLIR", "but got a file of MLIR", None),
    "text.txt": ("but got a file; name the folder that it lies in", "but got a file", None),
    "empty": ("expected a config.json, but there is none", "but it has no manifest.json", None),
    "nothing": ("but there is none", "but there is none", None),
    "/dev/null": ("but got a file", "but got a file", None),
}
MORE = {"generate": ["--prompt", "And", "--max-new-tokens", "1"], "eval": ["text.txt"], "bench": ["--runs", "1"], "info": [],
        "build": ["-o", "out.mlir"], "bundle": ["-o", "out.bundle"]}


@pytest.mark.parametrize("command", MORE)
def test_each_command_names_what_it_got_and_the_way(command, places, capsys):
    for name, (plain, bundled, way) in KINDS.items():
        for flag, message in (([], plain), (["--bundle"], bundled)):
            if message is None or flag and command in ("build", "bundle"):
                continue
            code = cli.main([command, *flag, name, *MORE[command]])
            error = capsys.readouterr().err.strip()
            assert code == (errors.BundleError if flag else errors.CheckpointError).code, (name, error)
            assert f"{name}: expected " in error and message in error and "\n" not in error, error
            if name == "m.mlir":
                assert re.search(r"; run it with: \S*diffattn-run m\.mlir$", error), error
            if way is None:
                continue
            # The command works as it stands.
            words = shlex.split(error.rsplit(": ", 1)[1])
            words = words[[word == "diffattn" or word.endswith("/diffattn") for word in words].index(True) + 1:]
            assert way[0] in words and ("--bundle" in words) == way[1], error
            assert cli.main(words) == 0, error
            capsys.readouterr()
            shutil.rmtree("out.bundle", ignore_errors=True)


#: Errors of diffattn-run for each path, given as a module or as weights.
MODULES = {
    "model": "got a model's folder; write its graph with: diffattn build model -o model.mlir",
    "my bundle": "got a bundle, which is code; look at it with: diffattn info --bundle 'my bundle'",
    "my bundle/model.so": "got compiled code (ELF); if it is a bundle's, look at the bundle with: diffattn info --bundle",
    "model/model.safetensors": "got a safetensors file; weights are named by --weights",
    "model/config.json": "got a JSON file; of a model's folder, write the graph with: diffattn build",
    "x.npy": "got an array of NumPy; arguments are named by --input",
    "m.mlir.gz": "got a file that gzip has packed",
    "empty": "got a folder",
    "text.txt": "error: custom op 'In' is unknown",
    "nothing": "nothing: expected a readable file, but got: No such file",
}
WEIGHTS = {
    "my bundle": "got a bundle; name the folder of the model that it was made from",
    "my bundle/model.so": "expected a safetensors file, but got compiled code (ELF)",
    "x.npy": "expected a safetensors file, but got an array of NumPy",
    "m.mlir": "expected a safetensors file, but got text",
    "model/config.json": "expected a weight_map",
    "empty": "expected model.safetensors or model.safetensors.index.json in the folder",
    "/dev/null": "expected a regular file, but got a device",
}


def test_the_runner_names_what_it_got_and_the_way(places, build_dir):
    import gzip

    import numpy as np

    (places / "m.mlir.gz").write_bytes(gzip.compress((places / "m.mlir").read_bytes()))
    np.save(places / "x.npy", np.ones(3))

    def run(*arguments):
        done = subprocess.run([build_dir.resolve() / "bin" / "diffattn-run", *arguments, "--no-cache"], capture_output=True, text=True)
        return done.returncode, done.stderr

    for name, message in MODULES.items():
        code, error = run(name)
        assert code in (2, 3) and message in error, error
    for name, message in WEIGHTS.items():
        code, error = run("m.mlir", "--entry=forward", "--input=1x1xi64=1", f"--weights={name}")
        assert code == errors.WeightsError.code and message in error, error


def test_the_same_in_python(bundle):
    with pytest.raises(errors.CheckpointError, match="got a bundle, which is code; diffattn.bundle.load opens it"):
        diffattn.load(bundle)
    with pytest.raises(errors.BundleError, match="expected a bundle, but got a checkpoint; diffattn.load compiles it"):
        diffattn.bundle.load(TINY)
    with pytest.raises(errors.BundleError, match="model.so: expected the folder of a bundle, but got compiled code"):
        diffattn.bundle.load(bundle / "model.so")
    with pytest.raises(errors.CheckpointError, match="model.so: expected a directory .*, but got compiled code"):
        diffattn.load(bundle / "model.so")


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
