"""benchmarks/step_cpu.py prints the ratios that it says; how large they are is for its readers."""
import json
import subprocess
import sys

import pytest


def run(root, *options):
    return subprocess.run([sys.executable, root / "benchmarks/step_cpu.py", *map(str, options)], capture_output=True, text=True, check=False)


def test_it_runs_against_a_tree(root, tmp_path):
    done = run(root, "--turns", 2, "--tokens", 4, "--against", root, "--output", tmp_path / "o.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "o.json").read_text())
    assert result["tokens"] == 4
    rows, ratios = result["microseconds"], result["ratios"]
    assert set(rows) == {"read loop"} | {f"{tree}: {what}" for tree in ("here", "against")
                                         for what in ("step", "step in generate", "token of generate")}
    for name, row in rows.items():
        assert 0 < row["best"] <= row["median"] and name in done.stdout
    here = rows["here: step"]["median"]
    assert ratios["step, times as fast"] == pytest.approx(rows["against: step"]["median"] / here)
    assert ratios["here: generate's rate of the step's"] == pytest.approx(here / rows["here: token of generate"]["median"])


@pytest.mark.parametrize("options, message", [
    (["--tokens", 1], "argument --tokens: expected an integer of at least 2, but got '1'"),
    (["--turns", 0], "argument --turns: expected an integer of at least 1, but got '0'"),
    (["--against", "no-such-tree"], "--against: expected a built tree, but there is no no-such-tree/build/lib/libDiffAttnC.so"),
    (["--model", "no-such-model"], "--model: expected a folder with model.safetensors, but got no-such-model"),
])
def test_options_that_are_wrong(root, options, message):
    done = run(root, *options)
    assert done.returncode == 2 and done.stderr.strip().splitlines()[-1].endswith(message)
