"""The compiler's diagnostics of each attention: one record with a reason where it was not fused or is no kernel, none elsewhere."""
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

import diffattn
from paths import ROOT
from diffattn import models, runtime

GRAPHS = ROOT / "test" / "graphs"
MANIFEST = json.loads((GRAPHS / "manifest.json").read_text())
FUSED = [g["name"] for g in MANIFEST if g["expect"] == "fuse"]
KEPT = [g["name"] for g in MANIFEST if g["expect"] != "fuse" and g["name"] != "f_return_a1_fx"] + ["f_return_a1_fx"]
#: Its head gets no kernel.
WIDE = """!t = tensor<1x1x2x1025xf32>
func.func @attention(%q: !t, %l: tensor<f32>, %e: !t) -> !t {
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : !t, !t, !t, !t, !t)
      lambda(%l : tensor<f32>) outs(%e : !t) {scale = 1.0 : f32} -> !t
  return %o : !t
}
"""


def text_of(name):
    return (GRAPHS / f"{name}.mlir").read_text()


@pytest.mark.parametrize("name", KEPT)
def test_a_graph_that_stays_says_why(name, tmp_path):
    first, second = (runtime.Executable(text_of(name), name=name, cache=tmp_path / "cache") for _ in range(2))
    (diagnostic,) = first.diagnostics
    assert (diagnostic.kind, diagnostic.category, diagnostic.name) == ("missed", "diffattn-fuse", "NotRaised")
    assert diagnostic.message.startswith("attention is not fused: ") and len(diagnostic.message) > 40
    file, line, column = diagnostic.location.rsplit(":", 2)
    assert file == name and "linalg." in text_of(name).splitlines()[int(line) - 1][int(column) - 1 :]
    assert str(diagnostic) == f"{diagnostic.location}: remark: {diagnostic.message} [diffattn-fuse]"
    assert not first.from_cache and second.from_cache and second.diagnostics == first.diagnostics
    assert first.applied == second.applied == []


@pytest.mark.parametrize("name", FUSED)
def test_a_graph_that_is_fused_has_nothing_to_say(name):
    executable = runtime.Executable(text_of(name), cache=False)
    assert executable.diagnostics == []
    assert [d.name for d in executable.applied if d.category == "diffattn-schedule"] == ["SelectSchedule"]
    assert "Raised" in [d.name for d in executable.applied if d.category == "diffattn-fuse"]
    assert all(d.kind == "passed" for d in executable.applied)


def test_an_attention_without_a_kernel():
    (diagnostic,) = runtime.Executable(WIDE).diagnostics
    assert diagnostic.category == "diffattn-schedule" and "a head of 1025 is above 1024" in diagnostic.message
    assert diagnostic.location == "module:3:8"


def test_one_call_warns_once():
    q = np.zeros((1, 1, 2, 1032), np.float32)
    with pytest.warns(RuntimeWarning, match="not as one kernel: a head of 1032 is above 1024"):
        diffattn.attention(q, q, q, q, q, 0.5)


def test_of_a_stage_and_of_a_bundle(tmp_path):
    diagnostics = []
    runtime.emit(WIDE, "raised", diagnostics=diagnostics)
    assert diagnostics == []
    runtime.emit(WIDE, "scheduled", diagnostics=diagnostics)
    assert [d.name for d in diagnostics] == ["SelectSchedule"]
    assert runtime.write_bundle(WIDE, tmp_path / "wide") == diagnostics


def test_a_cache_that_is_not_used_is_told(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.warns(UserWarning, match="open"):
        diagnostics = runtime.Executable(WIDE, cache=tmp_path / "open").diagnostics
    assert [(d.kind, d.category) for d in diagnostics] == [("missed", "diffattn-schedule"), ("warning", "diffattn-cache")]


def test_the_command_says_it(tmp_path):
    """A model with a head that gets no kernel prints one line for each function that has an attention."""
    config = {"model_type": "diff_v1", "vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
              "num_attention_heads": 1, "head_dim": 520}
    save_file({name: np.zeros(shape, np.float32) for name, (shape, _) in models.build(config).file_types().items()},
              tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    for arguments in (["bench", "--prompt-tokens", "2", "--max-new-tokens", "1", "--runs", "1"], ["bundle", "-o", "b"]):
        done = subprocess.run([sys.executable, "-m", "diffattn", arguments[0], tmp_path, *arguments[1:]], capture_output=True,
                              text=True, cwd=tmp_path, env={**os.environ, "DIFFATTN_CACHE_DIR": str(tmp_path / "cache")})
        assert done.returncode == 0, done.stderr
        remarks = [line for line in done.stderr.splitlines() if "remark: " in line]
        assert len(remarks) == 4 and all(line.startswith("diffattn: module:") and "a head of 1040 is above 1024" in line for line in remarks)
