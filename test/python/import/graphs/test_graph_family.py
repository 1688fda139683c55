"""Graphs of many spellings, as three importers wrote them: raised to as many ops as they hold, and right when they run.

graphs/family.zip holds modules exported by torch-mlir, by the ONNX route and from JAX: random combinations of layouts,
pairings, masks, softmaxes, lambdas and epilogues, and near misses, one by one. `out0` and on are in f64 by the framework.
"""
import io
import json
import re
import subprocess
import zipfile

import ml_dtypes
import numpy as np
import pytest
from diffattn.runtime import Executable, emit
from paths import ROOT

FAMILY = zipfile.ZipFile(ROOT / "test/graphs/family.zip")
MANIFEST = json.loads(FAMILY.read("manifest.json"))
FUSED = [entry for entry in MANIFEST if entry["attention_ops"]]
KEPT = [entry for entry in MANIFEST if not entry["attention_ops"]]
#: Relative and absolute, against the mean magnitude of a result.
BOUNDS = {"f32": (2e-4, 2e-5), "f16": (2e-2, 4e-3), "bf16": (1e-1, 3e-2)}


def text_of(entry):
    return FAMILY.read(f"{entry['name']}.mlir").decode()


def check_run(entry, raised, target="cpu"):
    arrays = np.load(io.BytesIO(FAMILY.read(f"{entry['name']}.npz")))
    inputs = [arrays[f"in{k}"] for k in range(sum(name.startswith("in") for name in arrays))]
    inputs = [x.view(ml_dtypes.bfloat16) if x.dtype == np.uint16 else x for x in inputs]
    executable = Executable(text_of(entry), cache=False, raise_attention=raised, target=target)
    results = executable.call(executable.entries[0], *inputs)
    relative, absolute = BOUNDS[entry["dtype"]]
    for k, result in enumerate(results):
        want = arrays[f"out{k}"].astype(np.float64)
        assert result.shape == want.shape
        error = np.abs(result.astype(np.float64) - want)
        bound = absolute + relative * np.maximum(np.abs(want), np.abs(want).mean())
        assert (error <= bound).all(), f"result {k} is off by {error.max()} of {np.abs(want).max()}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("entry", FUSED, ids=lambda entry: entry["name"])
def test_fused(entry, full):
    raised = emit(text_of(entry), "raised").decode()
    assert raised.count("diffattn.attention") == entry["attention_ops"], entry["options"]
    check_run(entry, raised=True)
    if full:
        check_run(entry, raised=False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("entry", KEPT, ids=lambda entry: entry["name"])
def test_kept(entry, build_dir, tmp_path):
    graph = tmp_path / "graph.mlir"
    graph.write_text(text_of(entry))
    done = subprocess.run(
        [build_dir / "bin/diffattn-opt", graph, "--remarks-filter=diffattn.*", "--remark-format=emitRemark",
         "--pass-pipeline=builtin.module(func.func(diffattn-fuse-differential))"],
        capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "diffattn.attention" not in done.stdout
    reasons = re.findall(r'Reason="([^"]*)"', done.stderr)
    assert reasons == ([entry["reason"]] if entry["reason"] else []), done.stderr
    check_run(entry, raised=True)


@pytest.mark.parametrize("part", range(4))
def test_on_a_simulated_gpu(part, full):
    for entry in MANIFEST[part :: 4 if full else 20]:
        check_run(entry, raised=True, target="cuda-sim:sm_80")
