"""Graphs as importers write them: raised to as many ops as they hold, and right when they run."""
import json
import re
import subprocess

import numpy as np
import pytest
from paths import ROOT

GRAPHS = ROOT / "test/graphs"
MANIFEST = json.loads((GRAPHS / "manifest.json").read_text())


def ids(entry):
    return entry["name"]


@pytest.mark.parametrize("entry", MANIFEST, ids=ids)
def test_raised_to_as_many_ops(entry, build_dir):
    done = subprocess.run(
        [build_dir / "bin/diffattn-opt", GRAPHS / f"{entry['name']}.mlir", "--remarks-filter=diffattn.*",
         "--remark-format=emitRemark",
         "--pass-pipeline=builtin.module(func.func(diffattn-fuse-differential))"],
        capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"diffattn\.attention", done.stdout)) == entry["attention_ops"]
    if entry["expect"] == "fuse":
        # Nothing of the maps is left: no tensor is as long in two axes as the keys are.
        assert "arith.maximumf" not in done.stdout
    else:
        assert re.search(r"\[Missed\] NotRaised.*Category:diffattn-fuse.*Reason=", done.stderr)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("raised", [True, False], ids=["raised", "as-it-is"])
@pytest.mark.parametrize("entry", MANIFEST, ids=ids)
def test_runs_as_the_framework_did(entry, raised, build_dir, tmp_path):
    arrays = np.load(GRAPHS / f"{entry['name']}.npz")
    command = [build_dir / "bin/diffattn-run", GRAPHS / f"{entry['name']}.mlir", f"--entry={entry['function']}",
               f"--raise={str(raised).lower()}", "--no-cache", "--quiet", "--reproducer="]
    outputs = {}
    for k in range(sum(name.startswith("in") for name in arrays)):
        np.save(tmp_path / f"in{k}.npy", arrays[f"in{k}"])
        command.append(f"--input={tmp_path}/in{k}.npy")
    for k in range(sum(name.startswith("out") for name in arrays)):
        outputs[k] = tmp_path / f"out{k}.npy"
        command.append(f"--output={outputs[k]}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for k, path in outputs.items():
        np.testing.assert_allclose(np.load(path), arrays[f"out{k}"], rtol=2e-5, atol=4e-6)
