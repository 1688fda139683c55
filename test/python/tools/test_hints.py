"""The commands that are printed to go on with work where they are pasted, for each family of models."""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest

from paths import ROOT
from diffattn import models

SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8}
FAMILIES = {
    "diff_v1": SMALL, "diff_v2": SMALL, "diffllama": SMALL, "diff_multihead": SMALL,
    "edifice_diff_transformer": {"embed_dim": 24, "hidden_size": 32, "num_layers": 2},
    "vit_dwee_patch16_reg1_gap_256": {"model_args": {"img_size": 32, "depth": 1, "embed_dim": 64, "num_heads": 2, "num_classes": 10}},
}
#: A place whose name a shell takes apart.
PLACE = "it's a model"


@pytest.fixture(scope="module")
def shell(build_dir, tmp_path_factory):
    """Runs commands in a folder as a user does, who has not put ours into PATH; returns what they say on standard error."""
    cache = str(tmp_path_factory.mktemp("cache"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIFFATTN_")}
    environment |= {"DIFFATTN_CACHE_DIR": cache, "OMP_WAIT_POLICY": "passive", "DIFFATTN_BUILD_DIR": str(build_dir.resolve())}

    def run(text, folder, code=0):
        done = subprocess.run(["bash", "-c", text], cwd=folder, env=environment, capture_output=True, text=True, timeout=120,
                              stdin=subprocess.DEVNULL)
        assert done.returncode == code, text + "\n" + done.stdout + done.stderr
        return done.stderr

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model of each family, all random; decoders with and without a tokenizer."""
    from safetensors.numpy import save_file

    top = tmp_path_factory.mktemp("hints") / "some place"
    for kind, config in FAMILIES.items():
        place = top / f"{PLACE} {kind}"
        place.mkdir(parents=True)
        config = {"model_type": kind, **config}
        (place / "config.json").write_text(json.dumps(config))
        rng = np.random.default_rng(0)
        save_file({name: rng.normal(0, 0.2, shape).astype(np.float32)
                   for name, (shape, _) in models.build(config).file_types().items()}, place / "model.safetensors")
    shutil.copytree(ROOT / "examples" / "tiny-lm", top / "tiny")
    return top


COMMANDS = {"module": f"{shlex.quote(sys.executable)} -m diffattn", "script": "bin/diffattn"}


@pytest.fixture(params=COMMANDS)
def diffattn(request, folder):
    """The command as a module, and as a program that lies nearby."""
    if request.param == "script" and not (folder / "bin").exists():
        (folder / "bin").mkdir()
        script = folder / "bin" / "diffattn"
        script.write_text(f"#!{sys.executable}\nimport sys\nfrom diffattn.cli import main\nsys.exit(main())\n")
        script.chmod(0o755)
    return COMMANDS[request.param]


def hint(text):
    """The command in the message `said` that is to be pasted."""
    (command,) = re.findall(r"^diffattn: wrote .*?; .*?(?:with): (.*)$", text, re.M)
    return command


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", FAMILIES)
def test_of_a_graph(kind, folder, diffattn, shell):
    output = shell(f'{diffattn} build "{PLACE} {kind}" -o "{kind}\'s graph.mlir"', folder)
    assert " --input=" in hint(output) and " --entry=forward " in hint(output)
    shell(hint(output), folder)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", FAMILIES)
def test_of_a_bundle(kind, folder, diffattn, shell):
    out = folder / f"{kind}'s bundle"
    shutil.rmtree(out, ignore_errors=True)
    output = shell(f'{diffattn} bundle "{PLACE} {kind}" -o "{out.name}"', folder)
    assert " generate " not in hint(output)
    shell(hint(output), folder)


@pytest.mark.sampled(2)
def test_of_a_bundle_with_a_tokenizer(folder, diffattn, shell):
    shutil.rmtree(folder / "tiny bundle", ignore_errors=True)
    output = shell(f'{diffattn} bundle tiny -o "tiny bundle"', folder)
    assert " generate " in hint(output)
    shell(hint(output), folder)


def test_of_a_bundle_for_another_machine(folder, diffattn, shell):
    shutil.rmtree(folder / "gpu bundle", ignore_errors=True)
    output = shell(f'{diffattn} bundle "{PLACE} diff_multihead" --target=cuda:sm_80 -o "gpu bundle"', folder)
    shell(hint(output), folder)


def test_of_a_graph_without_weights(folder, diffattn, shell):
    (folder / "bare").mkdir(exist_ok=True)
    (folder / "bare" / "config.json").write_text(json.dumps({"model_type": "diff_v1", **SMALL}))
    output = shell(f"{diffattn} build bare --dtype f32 -o bare.mlir", folder)
    assert "its weights are not in bare" in output
    shell(hint(output), folder)


@pytest.mark.parametrize("kind, entry", [("diff_v1", "forward"), ("diff_v2", "prefill"), ("diffllama", "decode"),
                                         ("diff_multihead", "forward"), ("edifice_diff_transformer", "forward")])
def test_of_missing_arguments(kind, entry, folder, build_dir, shell):
    shell(f'{COMMANDS["module"]} build "{PLACE} {kind}" -o "{kind}.mlir"', folder)
    command = f'{build_dir.resolve()}/bin/diffattn-run "{kind}.mlir" --entry={entry} "--weights={PLACE} {kind}"'
    output = shell(command, folder, code=2)
    (inputs,) = re.findall(r"; for example( --input=.*)", output)
    shell(command + inputs, folder)


def test_of_a_failing_pipeline(build_dir, folder, shell):
    (folder / "tosa.mlir").write_text("func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
                                      "  %y = tosa.tanh %x : (tensor<4xf32>) -> tensor<4xf32>\n  return %y : tensor<4xf32>\n}\n")
    output = shell(f'{build_dir.resolve()}/bin/diffattn-run tosa.mlir --no-cache "--reproducer=it\'s that.mlir"', folder, code=4)
    (command,) = re.findall(r"\(reproduce with: (.*)\)", output)
    assert "tosa.tanh" in shell(command, folder, code=1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["generate", "eval", "build", "bundle", "info", "bench"])
def test_examples_of_the_help(name, shell, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run([sys.executable, "-m", "diffattn", name, "--help"], capture_output=True, text=True, check=True)
    example = re.sub(r"\s+", " ", done.stdout[done.stdout.index("example: ") + len("example: ") :])
    shell(re.sub(r"^diffattn ", COMMANDS["module"] + " ", example.strip()), tmp_path)


def test_next_steps_of_the_demo(shell, tmp_path, build_dir):
    """The commands that scripts/demo.sh prints last run, in a folder that looks like the source tree."""
    for entry in ROOT.iterdir():
        if entry.name not in (".git", "build"):
            (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "build").symlink_to(build_dir.resolve())
    text = (ROOT / "scripts" / "demo.sh").read_text()
    steps = [line for line in text[text.index("Try next") :].splitlines() if line.startswith("  ")]
    assert len(steps) == 5 and "scripts/test.sh" in steps.pop()
    for step in steps:
        shell(f"v=.venv b=build\n{step}", tmp_path)


@pytest.mark.parametrize("arguments, message", [
    ("", "expected --input for each of the 6 arguments of 'attention'"),
    ("--input=8xf32=1", "'attention': expected 6 arguments, but got 1; for example --input=random:4x8x4x64xf32 --input="),
    ("--entry=atention", "expected an entry of attention, but got 'atention'"),
    ("--emit=bundle", "--emit=bundle: expected -o with a folder for the bundle"),
    ("-o x.npy", "-o: expected it with --emit; results of a call are written by --output"),
])
def test_wrong_calls_are_told_before_compiling(arguments, message, build_dir, shell, tmp_path):
    command = f"{build_dir.resolve()}/bin/diffattn-run {ROOT}/examples/attention.mlir --cache-dir=cache {arguments}"
    assert message in shell(command, tmp_path, code=2)
    kept = [path.name for path in (tmp_path / "cache").glob("*")]
    assert all(name.startswith("cpu-") for name in kept), "what is known of the CPU is kept, but nothing was compiled"


def test_an_object_is_not_for_a_terminal(build_dir, tmp_path):
    import pty

    screen, terminal = pty.openpty()
    done = subprocess.run([build_dir / "bin" / "diffattn-run", ROOT / "examples" / "attention.mlir", "--emit=object"], stdout=terminal,
                          stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(terminal)
    os.close(screen)
    assert done.returncode == 2 and "--emit=object: expected -o with a file" in done.stderr
