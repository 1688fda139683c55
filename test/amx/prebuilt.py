"""A plugin of pytest: libraries of kernels that one machine compiles and another, slow one runs.

AMX_CHECK_JOB names the folder that keeps them. Where a library is missing there it is compiled (AMX_CHECK_COMPILES=1: on the machine that
may lack AMX, whose tests of such a library are then skipped), otherwise the test fails.
"""
import ctypes
import hashlib
import json
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python"))
import kernel_library  # noqa: E402

KEPT = pathlib.Path(os.environ["AMX_CHECK_JOB"]) / "kernels"
COMPILES = os.environ.get("AMX_CHECK_COMPILES") == "1"
compile_here = kernel_library.compile_library


class NotRun:
    """A library that was compiled for another machine."""
    def __getattr__(self, name):
        pytest.skip("compiled, for a machine with AMX to run")


def compile_library(signatures, isa, build_dir, folder, optimize=True):
    key = hashlib.sha256(json.dumps([signatures, isa, optimize], sort_keys=True, default=str).encode()).hexdigest()[:16]
    folder = KEPT / f"{isa}-{key}"
    if COMPILES and not (folder / "kernels.so").exists():
        folder.mkdir(parents=True)
        compile_here(signatures, isa, build_dir, folder, optimize)
    if COMPILES and isa == "amx":
        return NotRun()
    ctypes.CDLL(str(build_dir / "lib/libDiffAttnRuntime.so"), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(folder / "kernels.so"))


kernel_library.compile_library = compile_library
if COMPILES:
    runnable = kernel_library.runnable_isas()
    kernel_library.runnable_isas = lambda: list(dict.fromkeys(["amx", *runnable]))
