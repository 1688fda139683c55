"""The number of threads: the default adapts, which changes no result, and a number that was given does not (docs/threads.md)."""
import contextlib
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import diffattn
from diffattn import calls
from diffattn.errors import LibraryError


class FakeRuntime:
    def __init__(self):
        self.settings = []

    def diffattn_rt_adapt_threads(self, on):
        self.settings.append(on)


@pytest.mark.parametrize("variable, settings", [(None, []), ("", []), ("2", [0]), ("4,2", [0])])
def test_openmps_variable_is_a_choice(monkeypatch, variable, settings):
    runtime = FakeRuntime()
    monkeypatch.setattr(calls, "load_library", lambda path: runtime)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert calls.load_runtime(pathlib.Path("lib")) is runtime
    assert runtime.settings == settings


def test_an_older_runtime_is_named(monkeypatch):
    class Older:
        _name = "lib/libDiffAttnRuntime.so"

    monkeypatch.setattr(calls, "load_library", lambda path: Older())
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with pytest.raises(LibraryError, match="libDiffAttnRuntime.so: expected the function diffattn_rt_adapt_threads, but there is none"):
        calls.load_runtime(pathlib.Path("lib"))


@pytest.mark.parametrize("variable, settings", [(None, ""), ("", ""), ("2", "adapt 0\n")])
def test_openmps_variable_is_a_choice_for_diffattn_run(build_dir, tmp_path, variable, settings):
    """A library in front of the runtime says what the program tells it."""
    (tmp_path / "shim.c").write_text('#include <stdio.h>\nvoid diffattn_rt_adapt_threads(int on) { printf("adapt %d\\n", on); }\n')
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "shim.so", tmp_path / "shim.c"], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment["LD_PRELOAD"] = ":".join([*filter(None, [environment.get("LD_PRELOAD")]), str(tmp_path / "shim.so")])  # a sanitizer's comes first
    if variable is not None:
        environment["OMP_NUM_THREADS"] = variable
    (tmp_path / "m.mlir").write_text("func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }\n")
    done = subprocess.run([build_dir / "bin/diffattn-run", "m.mlir", "--input=4xf32=1,2,3,4", "--quiet", "--no-cache"], cwd=tmp_path,
                          env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "".join(line + "\n" for line in done.stdout.splitlines() if line.startswith("adapt")) == settings


@contextlib.contextmanager
def busy_cores():
    """As many processes that compute without end as there are cores; they end by themselves if this one is killed."""
    loop = "import os, time\nparent, end = os.getppid(), time.monotonic() + 60\nwhile os.getppid() == parent and time.monotonic() < end: pass"
    processes = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(os.cpu_count())]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_results_on_busy_cores_are_those_of_one_thread(root):
    rng = np.random.default_rng(0)
    q1, k1, q2, k2 = rng.standard_normal((4, 1, 4, 70, 32), np.float32)
    v = rng.standard_normal((1, 4, 70, 64), np.float32)
    ids = rng.integers(1, 90, (1, 40))
    one = diffattn.load(root / "examples/tiny-lm", threads=1)
    default = diffattn.load(root / "examples/tiny-lm")
    expected, attended = one.forward(ids), diffattn.attention(q1, k1, q2, k2, v, 0.3)
    with busy_cores():
        for _ in range(20):
            np.testing.assert_array_equal(default.forward(ids), expected)
            np.testing.assert_array_equal(diffattn.attention(q1, k1, q2, k2, v, 0.3), attended)
