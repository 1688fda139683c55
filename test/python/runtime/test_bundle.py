"""Bundles: the same bits as from the compiler, on a machine without it, and a clear error for each thing that can be wrong."""
import hashlib
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest
from malformed import MODEL, PLAIN

from paths import ROOT

from diffattn import bundle, errors, runtime, bundle

TINY = ROOT / "examples" / "tiny-lm"
ATTENTION = ROOT / "examples" / "attention.mlir"
FLAGS = set(pathlib.Path("/proc/cpuinfo").read_text().split())
ISAS = [isa for isa, flag in [("avx512bf16", "avx512_bf16"), ("avx512", "avx512vl"), ("avx2", "avx2"), ("generic", "sse2")]
        if flag in FLAGS]
# Variables that a build with sanitizers needs in every process.
SANITIZER = {name: os.environ[name] for name in ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS") if name in os.environ}
# Threads that spin while they wait slow a busy machine down.
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive"}


@pytest.fixture(scope="module")
def run(build_dir):
    def run(*arguments, code=0, **options):
        done = subprocess.run([str(build_dir / "bin" / "diffattn-run"), *map(str, arguments)], capture_output=True, text=True,
                              env=ENVIRONMENT, timeout=120, **options)
        assert done.returncode == code, done.stderr
        return done.stderr

    return run


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A small model with one plain and two numbered weights."""
    from safetensors.numpy import save_file

    folder = tmp_path_factory.mktemp("sources")
    (folder / "model.mlir").write_text(MODEL)
    (folder / "plain.mlir").write_text(PLAIN)
    rng = np.random.default_rng(1)
    weights = {"w": rng.normal(size=(3, 4)).astype(np.float32)}
    weights.update({f"layers.{i}.b": rng.normal(size=3).astype(np.float32) for i in range(2)})
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "small"}')
    return folder


@pytest.fixture(scope="module")
def small(sources, run, tmp_path_factory):
    """A bundle beside its weights, both to be copied before they are damaged."""
    folder = tmp_path_factory.mktemp("small")
    shutil.copy(sources / "model.safetensors", folder)
    run(sources / "model.mlir", f"--weights={folder / 'model.safetensors'}", "--emit=bundle", "-o", folder / "bundle")
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "tiny.bundle"
    done = subprocess.run([sys.executable, "-m", "diffattn", "bundle", str(TINY), "-o", str(folder), "--copy-weights"],
                          cwd=ROOT / "python", capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return folder


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text())


# ---- the same bits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
def test_attention_is_equal_to_the_last_bit(isa, run, tmp_path):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(1, 8, 70, w)).astype(np.float32) for w in (64, 64, 64, 64, 128)]
    arrays.append(np.full(8, 0.3, np.float32))
    for i, array in enumerate(arrays):
        np.save(tmp_path / f"{i}.npy", array)
    inputs = [f"--input={tmp_path / f'{i}.npy'}" for i in range(len(arrays))]
    run(ATTENTION, f"--target=cpu:{isa}", *inputs, f"--output={tmp_path / 'o.npy'}", "--quiet")
    run(ATTENTION, f"--target=cpu:{isa}", "--emit=bundle", "-o", tmp_path / "attention.bundle")
    opened = bundle.load(tmp_path / "attention.bundle")
    (out,) = opened.call(opened.executable.entries[0], *arrays)
    assert out.tobytes() == np.load(tmp_path / "o.npy").tobytes()
    assert manifest_of(tmp_path / "attention.bundle")["cpu"]["isa"] == isa


def test_a_language_model_is_equal_to_the_last_bit(tiny):
    import diffattn

    isa = manifest_of(tiny)["cpu"]["isa"]
    model, bundled = diffattn.load(TINY, target=f"cpu:{isa}"), diffattn.bundle.load(tiny)
    ids = np.random.default_rng(0).integers(0, 2048, (2, 40))
    assert bundled.forward(ids).tobytes() == model.forward(ids).tobytes()
    assert list(bundled.generate([5, 6, 7], 24)) == list(model.generate([5, 6, 7], 24))
    texts = ["In the beginning", "And the king said unto"]
    assert list(bundled.generate(texts, 16)) == list(model.generate(texts, 16))
    assert bundled.dtype == model.dtype and bundled.context == model.context and bundled.timing.decode_tokens == 30
    with pytest.raises(ValueError, match="below 2048, but got 4000"):
        bundled.forward([[4000]])
    with pytest.raises(errors.RunError, match="every token id to be at least 0 and below 2048"):
        bundled.call("forward", np.array([[4000]]))


def test_weights_are_arranged_and_converted_as_declared(sources, run, tmp_path):
    from safetensors.numpy import save_file

    module = MODEL.replace("tensor<3x4xf32> {", "X").replace(
        "@w(#ml_program.extern<tensor<3x4xf32>>) : tensor<3x4xf32>",
        "@w(#ml_program.extern<tensor<3x4xf32>>) : tensor<3x4xf32> {diffattn.transpose, diffattn.row_block_size = 1 : i64, "
        "diffattn.row_blocks = array<i64: 2, 0, 1>}")
    (tmp_path / "m.mlir").write_text(module)
    w = np.random.default_rng(2).normal(size=(4, 3))
    save_file({"w": w, "layers.0.b": np.ones(3, np.float16), "layers.1.b": np.arange(3, dtype=np.float16)},
              tmp_path / "other.safetensors")
    run(tmp_path / "m.mlir", f"--weights={tmp_path / 'other.safetensors'}", "--emit=bundle", "-o", tmp_path / "b")
    (y,) = bundle.load(tmp_path / "b").call("forward", np.eye(4, dtype=np.float32))
    np.testing.assert_allclose(y, w[:, [2, 0, 1]] + np.arange(3), rtol=1e-6)


def test_two_of_one_file_have_weights_of_their_own(small, sources, tmp_path):
    from safetensors.numpy import load_file, save_file

    weights = load_file(sources / "model.safetensors")
    (tmp_path / "other").mkdir()
    save_file({name: -w for name, w in weights.items()}, tmp_path / "other" / "model.safetensors")
    x = np.ones((1, 4), np.float32)
    one, two = bundle.load(small / "bundle"), bundle.load(small / "bundle", weights=tmp_path / "other")
    assert (one.call("forward", x)[0] == -two.call("forward", x)[0]).all()
    assert one.executable.weight_names == ["w", "layers.{}.b"]


# ---- self-contained -----------------------------------------------------------------------------------------------------

ALONE = """
import sys
sys.path.insert(0, {python!r})
sys.modules.update(ml_dtypes=None, tokenizers=None)
import os
os.environ["DIFFATTN_BUILD_DIR"] = {build!r}
import numpy as np
from diffattn import bundle
code = bundle.BundledCode({folder!r})
logits, = code.call("forward", np.array([[1, 2, 3, 4, 5, 6, 7, 8, 9]]))
np.save({out!r}, logits)
assert "diffattn.runtime" not in sys.modules
print(open("/proc/self/maps").read())
"""


def load_alone(folder, build, out):
    """The libraries that a process without environment maps when it calls a bundle."""
    code = ALONE.format(python=str(ROOT / "python"), build=str(build), folder=str(folder), out=str(out))
    done = subprocess.run([sys.executable, "-c", code], env=SANITIZER, cwd="/", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {line.split("/")[-1] for line in done.stdout.splitlines() if ".so" in line}


def test_a_process_without_environment_maps_no_compiler(tiny, build_dir, tmp_path):
    maps = load_alone(tiny, build_dir, tmp_path / "o.npy")
    assert "libDiffAttnBundle.so" in maps and "libDiffAttnRuntime.so" in maps
    assert not [name for name in maps if "MLIR" in name or "LLVM" in name or name.startswith("libDiffAttnC")]


def test_an_installed_loader_works(tiny, build_dir, tmp_path):
    subprocess.run(["cmake", "--install", build_dir, "--component", "loader", "--prefix", tmp_path / "prefix"], check=True,
                   capture_output=True)
    installed = {p.name for p in (tmp_path / "prefix").rglob("*") if p.is_file()}
    assert {"libDiffAttnBundle.so", "libDiffAttnRuntime.so", "Bundle.h", "Types.h", "bundle.py"} <= installed
    code = f"import diffattn; print(list(diffattn.bundle.load({str(tiny)!r}).generate([1, 2, 3], 4)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                          env={**SANITIZER, "PYTHONPATH": str(tmp_path / "prefix" / "python")})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == list(bundle.load(tiny).generate([1, 2, 3], 4))


def test_without_onednn_products_are_our_own(tiny, build_dir, tmp_path):
    lib = tmp_path / "build" / "lib"
    lib.mkdir(parents=True)
    for name in ("libDiffAttnBundle.so", "libDiffAttnRuntime.so"):
        shutil.copy(build_dir / "lib" / name, lib)
    maps = load_alone(tiny, lib.parent, tmp_path / "own.npy")
    assert not [name for name in maps if "dnnl" in name or "OneDnn" in name]
    load_alone(tiny, build_dir, tmp_path / "any.npy")
    np.testing.assert_allclose(np.load(tmp_path / "own.npy"), np.load(tmp_path / "any.npy"), atol=0.1)


def test_the_code_needs_libc_and_libm_of_glibc_2_28(tiny, small):
    for folder in (tiny, small / "bundle"):
        text = subprocess.run(["readelf", "-dW", "--dyn-syms", "--version-info", folder / "model.so"], capture_output=True,
                              text=True, check=True).stdout
        needed = [line.split("[")[1].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line]
        assert set(needed) <= {"libc.so.6", "libm.so.6"}
        versions = {word.split("@")[1] for line in text.splitlines() if " UND " in line
                    for word in line.split() if "@GLIBC_" in word}
        assert all(tuple(map(int, v[6:].split("."))) <= (2, 28) for v in versions), versions
        assert versions or folder != tiny
        undefined = [line for line in text.splitlines() if " UND " in line and "@GLIBC_" not in line]
        assert all(line.split()[4] == "LOCAL" for line in undefined), undefined


def test_a_moved_bundle_still_works(small, tiny, tmp_path):
    shutil.copytree(small, tmp_path / "elsewhere")
    assert bundle.load(tmp_path / "elsewhere" / "bundle").call("forward", np.ones((1, 4), np.float32))
    shutil.copytree(tiny, tmp_path / "copied")
    assert manifest_of(tmp_path / "copied")["weight_files"][0]["path"] == "weights/model.safetensors"
    assert bundle.load(tmp_path / "copied").forward([[1, 2]]).shape == (1, 2, 2048)


def test_paths_through_links(small, sources, tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "er")
    runtime.write_bundle(MODEL, tmp_path / "link" / "b", weights=[sources / "model.safetensors"], cache=False)
    for path in (tmp_path / "link" / "b", tmp_path / "deep" / "er" / "b"):
        assert bundle.load(path).call("forward", np.ones((1, 4), np.float32))


# ---- what can be wrong --------------------------------------------------------------------------------------------------


def edit(change):
    """A damage that changes the manifest's JSON."""

    def damage(folder):
        content = manifest_of(folder / "bundle")
        change(content)
        (folder / "bundle" / "manifest.json").write_text(json.dumps(content))

    return damage


def text(change):
    def damage(folder):
        path = folder / "bundle" / "manifest.json"
        path.write_bytes(change(path.read_bytes()))

    return damage


def code(change, sealed=False):
    """A damage of model.so; sealed: the manifest has its new size and checksum."""

    def damage(folder):
        path = folder / "bundle" / "model.so"
        path.write_bytes(change(bytearray(path.read_bytes())))
        if sealed:
            content = manifest_of(folder / "bundle")
            (entry,) = [f for f in content["files"] if f["path"] == "model.so"]
            entry.update(bytes=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
            (folder / "bundle" / "manifest.json").write_text(json.dumps(content))

    return damage


def weights(change):
    def damage(folder):
        path = folder / "model.safetensors"
        path.write_bytes(change(bytearray(path.read_bytes())))

    return damage


def byte(at, value):
    def change(data):
        data[at] = value
        return bytes(data)

    return change


#: DIFFATTN_RT_TABLE_VERSION.
TABLE = 2


def needs(version=TABLE, table=None):
    """Changes what the code says that it needs of the runtime; the contract's digits stand behind it."""

    def change(data):
        at = next(i for i in range(0, len(data) - 16, 8) if struct.unpack_from("<i", data, i)[0] == TABLE
                  and 16 <= struct.unpack_from("<i", data, i + 4)[0] <= 512
                  and re.match(rb"[0-9a-f]{64}", data[i + 8 : i + 72]))
        struct.pack_into("<ii", data, at, version, table or struct.unpack_from("<i", data, at + 4)[0])
        return bytes(data)

    return change


def a_folder(path):
    def damage(folder):
        (folder / path).unlink()
        (folder / path).mkdir()

    return damage


LIBM = next(p for p in ("/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/usr/lib/libm.so.6") if os.path.exists(p))
CONTRACT = "expected the functions and weights of model.so, but got others"
BUNDLE, WEIGHTS = errors.BundleError, errors.WeightsError
DAMAGES = {
    "no folder": (lambda f: shutil.rmtree(f / "bundle"), BUNDLE, "expected the folder of a bundle"),
    "no manifest": (lambda f: (f / "bundle" / "manifest.json").unlink(), BUNDLE, "manifest.json: expected a readable file"),
    "manifest is a folder": (a_folder("bundle/manifest.json"), BUNDLE, "expected a regular file"),
    "empty manifest": (text(lambda t: b""), BUNDLE, "malformed manifest: expected '{'"),
    "half a manifest": (text(lambda t: t[: len(t) // 2]), BUNDLE, "malformed manifest"),
    "garbled manifest": (text(lambda t: t.replace(b'"files"', b'"files', 1)), BUNDLE, "malformed manifest"),
    "more behind the manifest": (text(lambda t: t + b"{}"), BUNDLE, "expected nothing more"),
    "binary manifest": (text(lambda t: bytes(range(256))), BUNDLE, "malformed manifest"),
    "another format": (edit(lambda m: m.update(format="pickle")), BUNDLE, "but got 'pickle'"),
    "too new": (edit(lambda m: m.update(version=2)), BUNDLE, "a newer diffattn has written it"),
    "too old": (edit(lambda m: m.update(version=0)), BUNDLE, "expected format version 1, but got 0"),
    "other architecture": (edit(lambda m: m["cpu"].update(architecture="aarch64")), BUNDLE, "but got one for aarch64"),
    "half a part for a GPU": (edit(lambda m: m["devices"].append({"chip": "sm_90"})), BUNDLE, "expected 'library' in the object"),
    "a CPU of the future": (edit(lambda m: m["cpu"]["features"].append("avx1024")), BUNDLE,
                            "this one lacks avx1024 \\(not known to this loader\\)"),
    "an odd choice": (edit(lambda m: m.update(batch_invariant="maybe")), BUNDLE,
                      "expected 'batch_invariant' to be true, false or auto, but got 'maybe'"),
    "a choice of another type": (edit(lambda m: m.update(batch_invariant=[])), BUNDLE, "malformed manifest"),
    "a path that leaves": (edit(lambda m: m["files"][0].update(path="../model.so")), BUNDLE, "a file in the bundle"),
    "no code listed": (edit(lambda m: m.update(files=[])), BUNDLE, "expected model.so among the files"),
    "no code": (lambda f: (f / "bundle" / "model.so").unlink(), BUNDLE, "model.so: expected a readable file"),
    "truncated code": (code(lambda d: d[:-9]), BUNDLE, "bytes, but got .* \\(truncated\\)"),
    "longer code": (code(lambda d: d + b"x"), BUNDLE, "model.so: expected [0-9]+ bytes"),
    "a flipped bit": (code(lambda d: byte(len(d) // 2, d[len(d) // 2] ^ 1)(d)), BUNDLE, "expected SHA-256"),
    "no ELF": (code(byte(0, 0)), BUNDLE, "expected a shared object \\(ELF\\)"),
    "code of another machine": (code(byte(18, 183)), BUNDLE, "expected code for x86_64, but got ELF machine 183"),
    "code of 32 bits": (code(byte(4, 1)), BUNDLE, "expected code for x86_64"),
    "an object, not linked": (code(byte(16, 1)), BUNDLE, "expected a shared object, but got ELF type 1"),
    "another library": (code(lambda d: pathlib.Path(LIBM).read_bytes(), sealed=True), BUNDLE,
                        "expected the symbol diffattn_bundle_needs"),
    "another runtime": (code(needs(version=1), sealed=True), BUNDLE, "but got version 1 with"),
    "a newer runtime": (code(needs(table=1 << 20), sealed=True), BUNDLE, f"but got version {TABLE} with 1048576 bytes"),
    "another contract": (edit(lambda m: m["functions"][0]["results"][0].update(shape=[])), BUNDLE, CONTRACT),
    "an argument in place": (edit(lambda m: m["functions"][0]["arguments"][0].update(in_place=True)), BUNDLE, CONTRACT),
    "weights of another shape": (edit(lambda m: m["weights"][1].update(shape=[2])), BUNDLE, CONTRACT),
    "a missing function": (edit(lambda m: m["functions"].append({**m["functions"][0], "name": "nope"})), BUNDLE,
                           "expected the symbol diffattn_entry_nope"),
    "a function twice": (edit(lambda m: m["functions"].append(m["functions"][0])), BUNDLE, "expected each function once"),
    "a weight too much": (edit(lambda m: m["weights"].append(m["weights"][0])), BUNDLE, CONTRACT),
    "an unknown type": (edit(lambda m: m["weights"][0].update(dtype="f8")), BUNDLE, "a known element type, but got 'f8'"),
    "weights outside the file": (edit(lambda m: m["weights"][0]["tensors"][0].update(offset=1 << 40)), BUNDLE,
                                 "expected its data within a weight file"),
    "weights of another type": (edit(lambda m: m["weights"][0]["tensors"][0].update(dtype="f16")), WEIGHTS,
                                "expected the type and place that the bundle has, F16 at byte [0-9]+, but got F32 at byte"),
    "weights at another place": (edit(lambda m: m["weights"][1]["tensors"][0].update(offset=m["weights"][0]["tensors"][0]["offset"])), WEIGHTS,
                                 "expected the type and place that the bundle has, F32 at byte"),
    "weights of another name": (edit(lambda m: m["weights"][0]["tensors"][0].update(name="nope")), WEIGHTS,
                                "expected tensor 'nope', which the bundle takes from the file, but there is none"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), WEIGHTS, "model.safetensors: expected a readable file"),
    "truncated weights": (weights(lambda d: d[:-4]), WEIGHTS, "\\(truncated\\)"),
    "longer weights": (weights(lambda d: d + b"1234"), WEIGHTS, "model.safetensors: expected [0-9]+ bytes"),
    "weights of another header": (weights(lambda d: d.replace(b'"w"', b'"v"')), WEIGHTS, "expected the header that the bundle"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_bundles(name, small, tmp_path):
    damage, error, message = DAMAGES[name]
    shutil.copytree(small, tmp_path / "copy")
    assert bundle.load(tmp_path / "copy" / "bundle")
    damage(tmp_path / "copy")
    with pytest.raises(error, match=message):
        bundle.load(tmp_path / "copy" / "bundle")


def test_a_changed_config_is_seen(tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "copy")
    config = tmp_path / "copy" / "config.json"
    config.write_text(config.read_text().replace("2", "3", 1))
    with pytest.raises(errors.BundleError, match="config.json: expected SHA-256"):
        bundle.load(tmp_path / "copy")


def test_weights_elsewhere_must_be_the_same(small, tmp_path):
    with pytest.raises(errors.WeightsError, match="expected a readable file"):
        bundle.load(small / "bundle", weights=tmp_path)


@pytest.mark.parametrize("entry, arguments, error, message", [
    ("nope", [], errors.UsageError, "expected an entry of forward, but got 'nope'"),
    ("forward", [], errors.UsageError, "expected 1 arguments, but got 0"),
    ("forward", [np.ones((2, 4))], errors.InputError, "expected tensor<\\?x4xf32>, but got 2x4xf64"),
    ("forward", [np.ones((2, 5), np.float32)], errors.InputError, "but got 2x5xf32"),
    ("forward", [np.ones(4, np.float32)], errors.InputError, "but got 4xf32"),
    ("forward", [np.ones((2, 4), np.complex64)], errors.InputError, "but got complex64"),
])
def test_wrong_calls(entry, arguments, error, message, small):
    opened = bundle.load(small / "bundle")
    with pytest.raises(error, match=message):
        opened.call(entry, *arguments)
    assert opened.call("forward", np.ones((2, 4), np.float32)[::2])[0].shape == (1, 3)


def test_what_cannot_be_written(sources, run, tmp_path):
    model, weight = sources / "model.mlir", f"--weights={sources / 'model.safetensors'}"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    empty = tmp_path / "full" / "linker"  # says that all went well
    empty.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n')
    empty.chmod(0o755)
    (tmp_path / "calls.mlir").write_text("func.func private @elsewhere(f32) -> f32\n"
                                         "func.func @f(%x: f32) -> f32 { %y = call @elsewhere(%x) : (f32) -> f32 return %y : f32 }")
    for arguments, status, message in [
        ([model, weight, "--emit=bundle"], 2, "expected -o with a folder"),
        ([model, weight, "--emit=bundle", "-o", tmp_path / "full"], 8, "expected a folder that is not there yet"),
        ([model, weight, "--emit=bundle", "-o", tmp_path / "no" / "where"], 8, "No such file or directory"),
        ([model, weight, "--emit=bundle", "-o", tmp_path / "b", "--lld=no-such-linker"], 4, "expected LLVM's linker as"),
        ([model, weight, "--emit=bundle", "-o", tmp_path / "b", f"--lld={empty}"], 4,
         "expected the linker to write a shared object, but got: invalid buffer: the size (0)"),
        ([model, weight, "--emit=bundle", "-o", tmp_path / "b", "--target=cuda:sm_80@1"], 2,
         "expected a target without the number of a GPU"),
        ([model, weight, "--emit=bundle", "-o", tmp_path / "b", "--target=cuda:sm_80,sm_80"], 2, "expected each chip once"),
        ([model, weight, "--emit=bundle", "-o", tmp_path / "b", "--target=cuda:sm_80/sse9"], 2, "with an isa of"),
        ([model, weight, "--emit=bundle", "-o", tmp_path / "b", "--target=cpu:avx2,generic"], 2, "expected each chip once"),
        ([model, "--emit=bundle", "-o", tmp_path / "b"], 5, "expected weight files, because the module declares weights (the first is 'w')"),
        ([tmp_path / "calls.mlir", "--emit=bundle", "-o", tmp_path / "b"], 4, "but it needs 'elsewhere'"),
    ]:
        assert message in run(*arguments, code=status)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["calls.mlir", "full"]


def test_a_full_disk_leaves_nothing(build_dir, tmp_path):
    """As far as a limit on the size of files shows it."""
    command = f"trap '' XFSZ; ulimit -f 2000; exec {build_dir / 'bin' / 'diffattn-run'} \"$@\""
    (tmp_path / "m.mlir").write_text(runtime_text())
    done = subprocess.run(["bash", "-c", command, "-", str(tmp_path / "m.mlir"), f"--weights={TINY}", "--emit=bundle", "--no-cache",
                           "--copy-weights", "-o", str(tmp_path / "b")], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 8 and "File too large" in done.stderr, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["m.mlir"]


def runtime_text():
    from diffattn import models
    from diffattn.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(TINY)
    return str(models.build(checkpoint.config, checkpoint.dtype))


def test_the_command_line_opens_bundles(tiny):
    def command(*arguments):
        return subprocess.run([sys.executable, "-m", "diffattn", *arguments], cwd=ROOT / "python", capture_output=True, text=True,
                              env=ENVIRONMENT)

    done = command("generate", "--bundle", str(tiny), "--prompt", "In the beginning", "--max-new-tokens", "8")
    assert done.returncode == 0 and done.stdout.startswith("In the beginning"), done.stderr
    done = command("info", "--bundle", str(tiny))
    assert done.returncode == 0 and "function forward        tensor<?x?xint64> -> tensor<?x?x2048xfloat32>" in done.stdout, done
    done = command("info", str(tiny.parent / "missing"))
    assert done.returncode == 5 and "expected a directory" in done.stderr
    done = command("generate", "--bundle", str(tiny), "--dtype", "f32")
    assert done.returncode == 2 and "because its code is made" in done.stderr
    done = command("bundle", str(TINY), "-o", str(tiny))
    assert done.returncode == 8 and "not there yet" in done.stderr
