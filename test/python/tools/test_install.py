"""Files of `cmake --install` work where they lie, also after they were moved, and without any variable of the environment."""
import os
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest
from elf import is_loaded, search_path
from paths import LLVM, ROOT

# Variables that a build with sanitizers needs in every process.
SANITIZER = {name: os.environ[name] for name in ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS") if name in os.environ}
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "OMP_WAIT_POLICY": "passive", **SANITIZER}
ATTENTION = ROOT / "examples" / "pipelines" / "attention.mlir"
ANSWER = "5 arguments, argument 1 has rank 4\n[-1, 0.5], [5, 5]\nerror 2: 'attention': expected 5 arguments, but got 4\n"


def run(*command, code=0, cwd="/", **environment):
    """The output of a command, which sees nothing of this tree but what it is given."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, env={**ENVIRONMENT, **environment}, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(build_dir, tmp_path_factory):
    """All that is installed, moved to another place."""
    folder = tmp_path_factory.mktemp("install")
    run("cmake", "--install", build_dir, "--prefix", folder / "first")
    return (folder / "first").rename(folder / "moved")


@pytest.fixture(scope="module")
def bundles(build_dir, tmp_path_factory):
    """One for CPUs and one for GPUs, with machine code of theirs where there is an assembler."""
    folder = tmp_path_factory.mktemp("bundles")
    for name, target in (("cpu", "cpu"), ("cuda", "cuda:sm_80,sm_90")):
        run(build_dir / "bin" / "diffattn-run", ROOT / "examples" / "attention.mlir", "--emit=bundle", "--no-cache", f"--target={target}",
            "-o", folder / name)
    return folder


@pytest.fixture(scope="module")
def bundle(bundles):
    return bundles / "cpu"


def loaded_files(folder):
    return [path for path in folder.rglob("*") if "CMakeFiles" not in path.parts and is_loaded(path)]


def test_no_library_is_taken_from_the_current_folder(build_dir, prefix, bundles):
    """An empty entry is the current folder, a relative one lies below it."""
    host = {str(path.relative_to(bundles)) for path in loaded_files(bundles) if path.suffix == ".so"}
    assert host == {"cpu/model.so", "cuda/sm_80/model.so", "cuda/sm_90/model.so"}
    own = [path for part in ("bin", "lib", "unittests") if (build_dir / part).is_dir() for path in loaded_files(build_dir / part)]
    for files in (own, loaded_files(prefix), loaded_files(bundles)):
        assert files
        for path in files:
            for entry in search_path(path):
                assert entry.startswith(("/", "$ORIGIN")), f"{path}: {search_path(path)}"


def test_nothing_installed_points_at_the_build(build_dir, prefix):
    for path in loaded_files(prefix):
        assert not [entry for entry in search_path(path) if entry.startswith((str(build_dir), str(ROOT)))], path
    for path in [*prefix.rglob("*.cmake"), *prefix.rglob("*.pc")]:
        text = path.read_text()
        assert str(build_dir) not in text and str(ROOT) not in text and "/first" not in text, path


def test_tools(prefix):
    tool = prefix / "bin"
    assert "diffattn.cpu_" in run(tool / "diffattn-opt", ATTENTION, "--diffattn-cpu-pipeline=until=scheduled")
    inputs = ["--input=random:1x8x4x64xf32"] * 4 + ["--input=random:1x8x4x128xf32", "--input=8xf32=0.5"]
    out = run(tool / "diffattn-run", ROOT / "examples" / "attention.mlir", "--no-cache", "--check=unfused", "--quiet", *inputs)
    assert "matches" in out
    for name in ("diffattn-reduce", "diffattn-lsp-server"):
        assert "USAGE" in run(tool / name, "--help")


@pytest.mark.parametrize("name, pipeline", [("libDiffAttnPlugin.so", "diffattn-attention-pipeline"),
                                            ("libDiffAttnModelPlugin.so", "diffattn-cpu-pipeline")])
def test_plugin_in_the_stock_mlir_opt(name, pipeline, prefix):
    plugin = prefix / "lib" / name
    out = run(LLVM / "mlir-opt", ATTENTION, f"--load-dialect-plugin={plugin}", f"--load-pass-plugin={plugin}",
              f"--pass-pipeline=builtin.module({pipeline})")
    assert "llvm.call @diffattn_rt_parallel_for" in out


def test_python(prefix, tmp_path):
    code = """
import numpy as np, diffattn
q = np.ones((1, 2, 4, 8), np.float32)
assert np.allclose(diffattn.attention(q, q, q, q, q, 0.25), 0.75)
model = diffattn.load("TINY")
assert model.forward([[1, 2, 3]]).shape[:2] == (1, 3)
maps = open("/proc/self/maps").read()
assert "PREFIX/lib/libDiffAttnC.so" in maps and "PREFIX/lib/libDiffAttnRuntime.so" in maps and "BUILD" not in maps
print(diffattn.__file__)
""".replace("TINY", str(ROOT / "examples" / "tiny-lm")).replace("PREFIX", str(prefix)).replace("BUILD", str(ROOT / "build"))
    environment = {"PYTHONPATH": str(prefix / "python"), "DIFFATTN_CACHE_DIR": str(tmp_path)}
    assert run(sys.executable, "-c", code, **environment) == f"{prefix}/python/diffattn/__init__.py\n"
    out = run(sys.executable, "-m", "diffattn", "generate", ROOT / "examples" / "tiny-lm", "--prompt", "In the",
              "--max-new-tokens", "2", **environment)
    assert out.startswith("In the")


def test_command_in_an_environment(prefix, tmp_path):
    """`pip install -e PREFIX/python`, with the packages that ours needs from the environment of the tests."""
    venv, cache = tmp_path / "venv", {"DIFFATTN_CACHE_DIR": str(tmp_path)}
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    (site,) = venv.glob("lib/python3*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    run(venv / "bin" / "python", "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "-e", prefix / "python")
    assert run(venv / "bin" / "python", "-c", "import diffattn; print(diffattn.__file__)").startswith(f"{prefix}/python/")
    out = run(venv / "bin" / "diffattn", "generate", ROOT / "examples" / "tiny-lm", "--prompt", "In the", "--max-new-tokens", "1", **cache)
    assert out.startswith("In the")


def test_public_headers(prefix, tmp_path, full):
    """Headers that are installed need no header that is not, and are those that docs/install.md names."""
    include = prefix / "include"
    headers = sorted(str(path.relative_to(include)) for path in include.rglob("*.h"))
    folders = {header.rpartition("/")[0] for header in headers}
    assert folders == {"diffattn-c", "DiffAttn", *(f"DiffAttn/{part}" for part in (
        "Codegen", "Codegen/NVVM", "Compiler", "Conversion", "IR", "Model", "Model/Pipelines", "Model/Schedule", "Pipelines", "Runtime/ABI", "Runtime/Program", "Runtime/Support", "Schedule",
        "Target", "Transforms"))}
    text = (ROOT / "docs" / "install.md").read_text()
    assert not [folder for folder in folders if f"`{folder}`" not in text and f"`{folder}/" not in text]
    for header in headers:
        for name in re.findall(r'#include "((?:DiffAttn|diffattn-c)/[^"]+)"', (include / header).read_text()):
            assert (include / name).is_file(), f"{header} includes {name}, which is not installed"
    source = tmp_path / "all.cpp"
    source.write_text("".join(f'#include "{header}"\n' for header in headers))
    # Without --full only preprocessed, which finds what is not installed: the build has compiled what they declare.
    run(LLVM / "clang++", "-std=c++17", "-fno-rtti", *(["-fsyntax-only"] if full else ["-E", "-o", "/dev/null"]), "-I", include, "-isystem", LLVM.parent / "include", source)


def test_cmake_project_in_c(prefix, bundle, tmp_path):
    """Neither MLIR's CMake package nor a C++ compiler is needed."""
    run("cmake", "-S", ROOT / "test" / "consumer" / "c", "-B", tmp_path, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_C_COMPILER={LLVM / 'clang'}")
    assert "MLIR" not in (tmp_path / "CMakeCache.txt").read_text()
    run("cmake", "--build", tmp_path)
    assert run(tmp_path / "attention") == ANSWER
    assert "rank 4, first element 0.800" in run(tmp_path / "bundle", bundle)


@pytest.mark.parametrize("package, program", [("diffattn", "attention"), ("diffattn-bundle", "bundle")])
def test_pkg_config(package, program, prefix, bundle, tmp_path):
    where = {"PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", package, **where).split()
    library = run("pkg-config", "--variable=libdir", package, **where).strip()
    run(LLVM / "clang", "-std=c99", ROOT / "test" / "CAPI" / "Inputs" / f"{program}.c", *flags, f"-Wl,-rpath,{library}", "-o",
        tmp_path / program)
    out = run(tmp_path / program, *([bundle] if program == "bundle" else []))
    assert out == ANSWER if program == "attention" else "first element 0.800" in out


def test_components_that_there_are_none_of_are_named(prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(Consumer LANGUAGES NONE)\n"
                                             "find_package(DiffAttn REQUIRED CONFIG COMPONENTS C Python)\n")
    done = subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"],
                          env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0 and "expected components C and Cpp, but got Python" in done.stderr, done.stderr


def test_the_loader_alone(build_dir, bundle, tmp_path):
    run("cmake", "--install", build_dir, "--component", "loader", "--prefix", tmp_path / "first")
    prefix = (tmp_path / "first").rename(tmp_path / "moved")
    assert not list(prefix.rglob("libDiffAttnC.so")) and not list(prefix.rglob("diffattn-run"))
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(ROOT / "test" / "CAPI" / "Inputs" / "bundle.c", project)
    (project / "CMakeLists.txt").write_text("""cmake_minimum_required(VERSION 3.25)
project(Consumer LANGUAGES C)
find_package(DiffAttnBundle REQUIRED CONFIG)
add_executable(bundle bundle.c)
target_link_libraries(bundle PRIVATE DiffAttn::DiffAttnBundle)
""")
    run("cmake", "-S", project, "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_C_COMPILER={LLVM / 'clang'}")
    run("cmake", "--build", tmp_path / "build")
    assert "first element 0.800" in run(tmp_path / "build" / "bundle", bundle)
