"""The package as pip installs it from its sources, without a compiled library: its commands say what is missing, and fail."""
import os
import shutil
import subprocess
import sys

import pytest
from paths import LLVM, ROOT

TINY = str(ROOT / "examples" / "tiny-lm")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("DIFFATTN_", "PYTHON"))}


@pytest.fixture(scope="module")
def diffattn(tmp_path_factory):
    """The command of a wheel, in a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    # pip builds in the folder of the sources.
    shutil.copytree(ROOT / "python", folder / "python", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, folder / "python"], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", folder / "site", wheel], check=True)
    shutil.rmtree(folder / "python")

    def run(*arguments, command="diffattn", **environment):
        done = subprocess.run([folder / "site" / "bin" / command, *arguments], cwd=folder, capture_output=True, text=True,
                              env={**ENVIRONMENT, "PYTHONPATH": str(folder / "site"), **environment}, timeout=60)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.mark.parametrize("arguments, library", [(["generate", TINY, "--prompt", "x"], "libDiffAttnC.so"),
                                                (["eval", TINY, f"{TINY}/heldout.txt"], "libDiffAttnC.so"),
                                                (["bench", TINY], "libDiffAttnC.so"),
                                                (["bundle", TINY, "-o", "out"], "libDiffAttnC.so")])
def test_without_a_library(arguments, library, diffattn, tmp_path):
    done = diffattn(*arguments)
    assert done.returncode == 10
    assert f"diffattn: error: expected {library} in " in done.stderr and "DIFFATTN_BUILD_DIR" in done.stderr


@pytest.mark.parametrize("command", ["diffattn-run", "diffattn-opt"])
def test_programs_without_a_library(command, diffattn, build_dir, tmp_path):
    done = diffattn("--help", command=command)
    assert done.returncode == 10
    assert done.stderr.startswith(f"{command}: error: expected libDiffAttnC.so in ") and "DIFFATTN_BUILD_DIR" in done.stderr
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libDiffAttnC.so").touch()
    done = diffattn("--help", command=command, DIFFATTN_BUILD_DIR=str(tmp_path))
    assert done.returncode == 10
    assert done.stderr.startswith(f"{command}: error: {tmp_path}/bin/{command}: expected a program, but there is none; ")
    done = diffattn("--help", command=command, DIFFATTN_BUILD_DIR=str(build_dir.resolve()))
    assert done.returncode == 0 and "USAGE" in done.stdout


def test_a_wrong_build_folder(diffattn, tmp_path):
    done = diffattn("generate", TINY, "--prompt", "x", DIFFATTN_BUILD_DIR=str(tmp_path))
    assert done.returncode == 10 and "DIFFATTN_BUILD_DIR: expected a folder with lib/" in done.stderr
    # A command that needs no library works all the same.
    done = diffattn("build", TINY, "-o", str(tmp_path / "tiny.mlir"), DIFFATTN_BUILD_DIR=str(tmp_path))
    assert done.returncode == 0 and "run it with: diffattn-run " in done.stderr


def test_a_library_that_does_not_load(diffattn, tmp_path):
    (tmp_path / "lib").mkdir()
    for name in ("libDiffAttnC.so", "libDiffAttnRuntime.so"):
        (tmp_path / "lib" / name).write_bytes(b"no library")
    done = diffattn("generate", TINY, "--prompt", "x", DIFFATTN_BUILD_DIR=str(tmp_path))
    assert done.returncode == 10
    assert "libDiffAttnRuntime.so: expected a shared library that loads, but got: " in done.stderr


def test_a_library_without_a_function(diffattn, tmp_path):
    """As an older one."""
    (tmp_path / "lib").mkdir()
    for name in ("libDiffAttnC.so", "libDiffAttnRuntime.so"):
        subprocess.run([LLVM / "clang", "-shared", "-x", "c", "/dev/null", "-o", tmp_path / "lib" / name], check=True)
    done = diffattn("generate", TINY, "--prompt", "x", DIFFATTN_BUILD_DIR=str(tmp_path))
    assert done.returncode == 10
    assert "libDiffAttnC.so: expected the function diffattn_" in done.stderr


def test_a_misspelt_option_names_the_right_one(diffattn):
    done = diffattn("generate", TINY, "--promt", "x")
    assert done.returncode == 2 and done.stderr.startswith("usage: diffattn generate ")
    assert "unrecognized arguments: --promt x; did you mean --prompt?" in done.stderr


def test_what_needs_no_library(diffattn, tmp_path):
    assert diffattn("--version").returncode == 0
    assert "diff_v1" in diffattn("info", TINY).stdout
    assert diffattn("build", TINY, "-o", str(tmp_path / "tiny.mlir")).returncode == 0


def test_with_a_library(diffattn, build_dir):
    done = diffattn("generate", TINY, "--prompt", "In the", "--max-new-tokens", "1", DIFFATTN_BUILD_DIR=str(build_dir.resolve()))
    assert done.returncode == 0 and done.stdout.startswith("In the"), done.stderr


@pytest.mark.parametrize("arguments, code", [
    ([], 2), (["generat", TINY], 2), (["generate"], 2), (["generate", TINY, "--promt", "x"], 2),
    (["generate", TINY, "--max-new-tokens", "0"], 2), (["generate", TINY, "--dtype", "f64"], 2),
    (["info", "nowhere"], 5), (["generate", "nowhere"], 5), (["build", "nowhere"], 5), (["bundle", "nowhere", "-o", "out"], 5),
    (["eval", TINY, "nowhere.txt"], 6), (["generate", TINY, "--prompt-file", "nowhere.txt"], 6),
    (["build", TINY, "-o", "nowhere/tiny.mlir"], 8)])
def test_bad_arguments(arguments, code, diffattn):
    done = diffattn(*arguments)
    assert done.returncode == code and "error: " in done.stderr, done.stderr
