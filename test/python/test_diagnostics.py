"""What the compiler says of each attention: one record with a reason where it was not fused or is no kernel, none elsewhere."""
import json
import subprocess
import sys

import numpy as np
import pytest

import diffattn
from conftest import ROOT
from diffattn import runtime

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
    (said,) = first.diagnostics
    assert (said.kind, said.category, said.name) == ("missed", "diffattn-fuse", "NotRaised")
    assert said.message.startswith("attention is not fused: ") and len(said.message) > 40
    file, line, column = said.location.rsplit(":", 2)
    assert file == name and "linalg." in text_of(name).splitlines()[int(line) - 1][int(column) - 1 :]
    assert str(said) == f"{said.location}: remark: {said.message} [diffattn-fuse]"
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
    (said,) = runtime.Executable(WIDE).diagnostics
    assert said.category == "diffattn-schedule" and "a head of 1025 is above 1024" in said.message
    assert said.location == "module:3:8"


def test_one_call_warns_once():
    q = np.zeros((1, 1, 2, 1032), np.float32)
    with pytest.warns(RuntimeWarning, match="not as one kernel: a head of 1032 is above 1024"):
        diffattn.attention(q, q, q, q, q, 0.5)


def test_of_a_stage_and_of_a_bundle(tmp_path):
    said = []
    runtime.emit(WIDE, "raised", diagnostics=said)
    assert said == []
    runtime.emit(WIDE, "scheduled", diagnostics=said)
    assert [d.name for d in said] == ["SelectSchedule"]
    assert runtime.write_bundle(WIDE, tmp_path / "wide") == said


def test_a_cache_that_is_not_used_is_a_note(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    said = runtime.Executable(WIDE, cache=tmp_path / "open").diagnostics
    assert [(d.kind, d.category) for d in said] == [("missed", "diffattn-schedule"), ("note", "diffattn-cache")]


def test_the_command_says_it(tmp_path):
    """The models here are all fused, so only the cache has something to say."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    done = subprocess.run([sys.executable, "-m", "diffattn", "generate", str(ROOT / "examples" / "tiny-lm"), "--max-new-tokens", "1"],
                          capture_output=True, text=True, env={"DIFFATTN_CACHE_DIR": str(tmp_path / "open"), "PATH": "/usr/bin"})
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if " note: " in line or "remark: " in line] == [
        f"diffattn: note: the cache {tmp_path}/open is not used: Permission denied [diffattn-cache]"]
