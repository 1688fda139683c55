"""The wheel of scripts/build-wheel.sh: what is in it, and that it works where nothing but it and its dependencies is installed."""
import email
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import zipfile

import pytest
from elf import is_loaded, needed, search_path
from mypy_client import check_client
from paths import LLVM, ROOT

TINY = "examples/tiny-lm"
OURS = {"libDiffAttnC.so", "libDiffAttnRuntime.so", "libDiffAttnOneDnn.so", "libDiffAttnBundle.so"}
OTHERS = {"libdnnl.so.2", "libgomp.so.1", "libOpenCL.so.1"}
PROGRAMS = {"diffattn-run", "diffattn-opt", "diffattn-ld"}
#: Libraries of every system that the tag names. libstdc++ is oneDNN's: ours is within our libraries.
LIBC = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libgcc_s.so.1"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The file: of scripts/build-wheel.sh --check or scripts/test.sh, else a new one."""
    given = os.environ.get("DIFFATTN_WHEEL_FILE")
    if given:
        return pathlib.Path(given)
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([ROOT / "scripts" / "build-wheel.sh", "-o", folder], check=True, stdout=subprocess.DEVNULL, timeout=1200)
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def package(wheel, tmp_path_factory):
    """The wheel's files."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A virtual environment with the wheel and what it depends on."""
    subprocess.run(["bash", "-euc", f"source {ROOT}/scripts/setup.sh; setup_wheelhouse"], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "DIFFATTN_VENV": sys.prefix}, timeout=600)
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", folder / "bin" / "python", "install",
                    "--no-index", "--find-links", pathlib.Path(sys.prefix) / "wheelhouse", wheel], check=True)
    return folder


@pytest.fixture
def run(installed, tmp_path):
    """Runs a command of the environment where there are the examples, and nothing else of the source tree."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")

    def do(command, *arguments, code=0, **environment):
        # The first linker in PATH cannot link.
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / "ld.lld").write_text("#!/bin/sh\necho not this linker\nexit 1\n")
        (tmp_path / "bin" / "ld.lld").chmod(0o755)
        done = subprocess.run([installed / "bin" / command, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=300,
                              env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path), "OMP_WAIT_POLICY": "passive", **environment})
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return do


def metadata(package, name):
    (folder,) = package.glob("*.dist-info")
    return email.message_from_string((folder / name).read_text())


def test_name_tag_and_version(wheel, package):
    version = re.search(r'^__version__ = "([^"]+)"$', (ROOT / "python/diffattn/_version.py").read_text(), re.M)[1]
    assert wheel.name == f"diffattn-{version}-py3-none-manylinux_2_34_x86_64.whl"
    assert metadata(package, "METADATA")["Version"] == version and metadata(package, "METADATA")["Requires-Python"] == ">=3.9"
    assert metadata(package, "WHEEL")["Tag"] == "py3-none-manylinux_2_34_x86_64"
    assert metadata(package, "WHEEL")["Root-Is-Purelib"] == "false"


def test_description(package, run):
    """Its page says what it is, and the page's example runs where there is nothing but the wheel."""
    description = metadata(package, "METADATA")
    assert description["Summary"] and description["Description-Content-Type"] == "text/markdown"
    assert any(url.startswith("Homepage, https://") for url in description.get_all("Project-URL"))
    (example,) = re.findall(r"^```python\n(.*?)^```", description.get_payload(), re.M | re.S)
    run("python", "-c", example)
    for line in re.findall(r"^diffattn (\w+) ", description.get_payload(), re.M):
        run("diffattn", line, "--help")


def test_size(wheel):
    assert wheel.stat().st_size <= 80e6


def test_contents(wheel, package):
    """All of the Python package, the libraries, the programs, the C headers, and every licence."""
    sources = {str(path.relative_to(ROOT / "python")) for path in (ROOT / "python" / "diffattn").rglob("*.py")}
    with zipfile.ZipFile(wheel) as archive:
        files = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist() if ".dist-info/" not in entry.filename}
    headers = {"diffattn-c/DiffAttn.h", "diffattn-c/Bundle.h", "diffattn-c/Types.h", "DiffAttn/Runtime/ABI/ElementType.h"}
    expected = {*sources, "diffattn/py.typed", "diffattn/torch/lowered_ops.json", "diffattn/maps/page.html", "diffattn/lib/pkgconfig/diffattn.pc", "diffattn/lib/pkgconfig/diffattn-bundle.pc",
                *(f"diffattn/lib/{name}" for name in OURS | OTHERS), *(f"diffattn/bin/{name}" for name in PROGRAMS),
                *(f"diffattn/include/{name}" for name in headers)}
    assert set(files) == expected
    assert all(files[f"diffattn/bin/{name}"] & 0o111 == 0o111 for name in PROGRAMS)
    (licences,) = package.glob("*.dist-info/licenses/licenses")
    assert {path.stem for path in licences.iterdir()} == {
        "llvm-22-dev", "libmlir-22-dev", "liblld-22", "libdnnl2", "libgomp1", "libstdc++-12-dev", "ocl-icd-libopencl1", "zlib1g", "libzstd1"}
    for header in headers:
        for name in re.findall(r'#include "([^"]+)"', (package / "diffattn" / "include" / header).read_text()):
            assert name in headers


def test_auditwheel_confirms_the_tag(wheel):
    done = subprocess.run([sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True, check=True)
    assert 'consistent with the following platform tag: "manylinux_2_34_x86_64"' in " ".join(done.stdout.split())


def test_libraries_find_one_another_where_they_lie(package):
    files = [path for path in package.rglob("*") if is_loaded(path)]
    assert {path.name for path in files} == OURS | OTHERS | PROGRAMS
    for path in files:
        assert search_path(path) == (["$ORIGIN/../lib"] if path.name in PROGRAMS else ["$ORIGIN"]), path
        assert set(needed(path)) <= OURS | OTHERS | LIBC | ({"libstdc++.so.6"} if path.name == "libdnnl.so.2" else set()), path
        assert str(ROOT).encode() not in path.read_bytes(), path


def test_no_library_from_outside(run, installed):
    """A process that has compiled and run something maps no library beyond Python's, the dependencies' and ours."""
    code = """
import numpy as np, ml_dtypes, diffattn.model, tokenizers
def libraries():
    lines = (line.split(None, 5) for line in open("/proc/self/maps"))
    return {line[5].strip() for line in lines if len(line) == 6 and ".so" in line[5]}
before = libraries()
model = diffattn.load("examples/tiny-lm")
assert model.forward([[1, 2, 3]]).shape[:2] == (1, 3)
q = np.ones((1, 2, 4, 8), np.float32)
assert np.allclose(diffattn.attention(q, q, q, q, q, 0.25), 0.75)
from diffattn import runtime
assert "oneDNN" in runtime.versions(), runtime.versions()
print("\\n".join(libraries() - before))
"""
    new = [pathlib.Path(line) for line in run("python", "-c", code, DIFFATTN_CACHE_DIR="cache").stdout.split()]
    inside = {path.name for path in new if installed in path.parents}
    assert inside == (OURS | OTHERS) - {"libDiffAttnBundle.so"}
    outside = {re.sub(r"\.so.*", "", path.name) for path in new if installed not in path.parents}
    assert outside <= {"libc", "libm", "libgcc_s", "libstdc++"}


@pytest.mark.parametrize("code", re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S))
def test_python_of_the_readme(code, run):
    """PyTorch is the test's own, and diffattn the wheel's: an editable package is not found by PYTHONPATH."""
    packages = {"PYTHONPATH": sysconfig.get_path("purelib")} if "torch" in code else {}
    run("python", "-c", code + "\nassert diffattn.__file__.startswith(__import__('sys').prefix), diffattn.__file__", **packages)


def test_model_and_bundle(run, tmp_path):
    """The linker is the wheel's own."""
    prompt = ["--prompt", "In the beginning", "--max-new-tokens", "8"]
    text = run("diffattn", "generate", TINY, *prompt).stdout
    assert text.startswith("In the beginning") and len(text) > len("In the beginning") + 8
    run("diffattn", "bundle", TINY, "-o", "tiny.bundle")
    assert run("diffattn", "generate", "--bundle", "tiny.bundle", *prompt).stdout == text
    run("diffattn-run", "examples/attention.mlir", "--emit=bundle", "-o", "attention.bundle")
    assert (tmp_path / "attention.bundle" / "model.so").is_file()
    # The one in PATH is used where it is asked for.
    assert "not this linker" in run("diffattn-run", "examples/attention.mlir", "--emit=bundle", "-o", "b", "--lld=ld.lld", code=4).stderr


def test_programs(run, installed):
    scheduled = run("diffattn-opt", "examples/pipelines/attention.mlir", "--diffattn-cpu-pipeline=until=scheduled").stdout
    assert "diffattn.cpu_" in scheduled
    # MLIR's own passes are there too.
    assert "llvm.func" in run("diffattn-opt", "examples/pipelines/attention.mlir", "--diffattn-cpu-pipeline", "--canonicalize").stdout
    inputs = ["--input=random:1x8x4x64xf32"] * 4 + ["--input=random:1x8x4x128xf32", "--input=8xf32=0.5"]
    assert "matches" in run("diffattn-run", "examples/attention.mlir", "--check=unfused", "--quiet", *inputs).stdout
    errors = run("diffattn", "build", TINY, "-o", "tiny.mlir").stderr
    assert f"run it with: {installed}/bin/diffattn-run tiny.mlir " in errors
    assert run("diffattn-run", "nowhere.mlir", code=2).stderr.startswith("error (usage): nowhere.mlir: ")


def test_gpu_code_without_an_assembler(run, installed):
    """PTX needs none; machine code says where one comes from."""
    assert ".target sm_90" in run("diffattn-run", "examples/attention.mlir", "--target=cuda:sm_90", "--emit=ptx").stdout
    errors = run("diffattn-run", "examples/attention.mlir", "--target=cuda:sm_90", "--emit=cubin", "-o", "a.cubin", "--ptxas=no-such-ptxas",
                 code=4).stderr
    assert "the Python package nvidia-cuda-nvcc" in errors
    (packages,) = installed.glob("lib/python3*/site-packages")
    assert f"{packages}/nvidia/cu13/bin/no-such-ptxas" in errors


def test_the_plugin_is_elsewhere(run):
    errors = run("diffattn", "plugin", code=10).stderr
    assert "lib/libDiffAttnPlugin.so: expected the plugin for mlir-opt" in errors and "--component tools --prefix my-prefix" in errors


def test_annotations_are_installed(installed, tmp_path):
    check_client(tmp_path, "--python-executable", installed / "bin" / "python")


def test_c_program(run, installed, tmp_path):
    (root,) = installed.glob("lib/python3*/site-packages/diffattn")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(root / "lib" / "pkgconfig")}
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "diffattn"], env=environment, capture_output=True, text=True, check=True)
    subprocess.run([LLVM / "clang", "-std=c99", ROOT / "test" / "CAPI" / "Inputs" / "attention.c", *flags.stdout.split(),
                    f"-Wl,-rpath,{root}/lib", "-o", tmp_path / "attention"], check=True)
    done = subprocess.run([tmp_path / "attention"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("5 arguments, argument 1 has rank 4\n[-1, 0.5], [5, 5]\n")
