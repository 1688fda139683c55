"""Paths and fixtures of the tests of kernels for GPUs."""
import contextlib
import shutil
import sys

import pytest

from paths import ROOT

sys.path.insert(0, str(ROOT / "tools/gpu-check"))


@pytest.fixture(scope="session")
def simulator(build_dir):
    """The library with the simulated device."""
    return build_dir / "lib/libDiffAttnC.so"


@pytest.fixture(scope="session")
def make_pack(build_dir, tmp_path_factory):
    """A function that packs kernels of gpu-check for the simulator, with the cases `names` for `chips`, and returns the folder."""
    from gpu_check import pack as packs

    llvm_as = shutil.which("llvm-as-22") or shutil.which("llvm-as") or "/usr/lib/llvm-22/bin/llvm-as"

    def make(chips, names, models=()):
        folder = tmp_path_factory.mktemp("pack") / "sim"
        packs.pack(folder, build_dir, chips, names, "sim", models, llvm_as=llvm_as)
        return folder
    return make


@pytest.fixture(scope="module")
def open_pack(simulator):
    """A function that opens a pack on a simulated `chip`, until the last test of the module has run."""
    from gpu_check import launcher as launchers

    with contextlib.ExitStack() as opened:
        yield lambda folder, chip="sm_80": opened.enter_context(contextlib.closing(launchers.open_launcher(folder, "sim", simulator, chip)))
