"""The script that shows that a change of form changed nothing else."""
import json
import subprocess
import sys

from paths import ROOT


def run(*arguments):
    return subprocess.run([sys.executable, ROOT / "scripts/compare_builds.py", *arguments], capture_output=True, text=True)


def test_a_record_repeats_and_a_difference_is_named(tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    for file in (first, second):
        assert run("record", file, "--only=graphs").returncode == 0
    entries = json.loads(first.read_text())
    assert "raised c_v1_onnx.mlir" in entries
    assert run("diff", first, second).returncode == 0
    second.write_text(json.dumps(entries | {"raised c_v1_onnx.mlir": "other"}))
    done = run("diff", first, second)
    assert done.returncode == 1 and "raised c_v1_onnx.mlir: " in done.stdout and "1 differ" in done.stdout
