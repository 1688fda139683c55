"""Bad input of every kind through diffattn-run: one error of the right class, no crash, no hang, nothing half written."""
import os
import subprocess

import numpy as np
import pytest

import malformed

CASES = {name: rest for name, *rest in malformed.cases()}
CLASSES = {2: "usage", 3: "ir", 4: "compile", 5: "weights", 6: "input", 7: "run", 8: "output"}


def run(build_dir, folder, arguments, **more):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIFFATTN_")}
    environment["DIFFATTN_CACHE_DIR"] = str(folder.parent / "cache")
    return subprocess.run([build_dir.resolve() / "bin" / "diffattn-run", *arguments], cwd=folder, env=environment, text=True,
                          capture_output=True, timeout=60, errors="replace", **more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    # Under one parent, so that the good parts of the cases are compiled once.
    return tmp_path_factory.mktemp("bad-input")


def test_there_are_many():
    assert len(CASES) >= 120 and {code for code, *_ in CASES.values()} >= {2, 3, 5, 6, 7, 8}


@pytest.mark.parametrize("name", CASES)
def test_bad(build_dir, folder, name):
    code, message, make = CASES[name]
    place = folder / name
    place.mkdir()
    arguments = make(place)
    before = sorted(p.name for p in place.iterdir())
    result = run(build_dir, place, arguments)
    assert result.returncode == code, result.stderr
    assert message in result.stderr
    if "arguments-unknown-option" != name and "arguments-option-value" != name:  # LLVM's own parser words these
        assert result.stderr.count("error (") == 1 and f"error ({CLASSES[code]}): " in result.stderr
    assert sorted(p.name for p in place.iterdir()) == before, "nothing may be left behind"
    assert len(result.stderr) < 4000


def test_the_good_form_works(build_dir, folder):
    """Without its fault, the input of the cases is right."""
    place = folder / "good"
    place.mkdir()
    (place / "model.mlir").write_text(malformed.MODEL)
    (place / "w.safetensors").write_bytes(malformed.SHARD)
    (place / "x.npy").write_bytes(malformed.npy(shape="(2, 4)", data=np.ones(8, np.float32).tobytes()))
    result = run(build_dir, place, ["model.mlir", "--weights=w.safetensors", "--input=x.npy", "--output=out.npy"])
    assert result.returncode == 0, result.stderr
    w, b = np.arange(12, dtype=np.float32).reshape(3, 4), np.arange(15, 18, dtype=np.float32)
    np.testing.assert_array_equal(np.load(place / "out.npy"), np.ones((2, 4)) @ w.T + b)
    # By its index and by its folder, too.
    (place / "a.safetensors").write_bytes(malformed.SHARD)
    (place / "model.safetensors.index.json").write_bytes(malformed.index(malformed.EVERY))
    for weights in (".", "model.safetensors.index.json"):
        result = run(build_dir, place, ["model.mlir", f"--weights={weights}", "--input=x.npy", "--expected=out.npy"])
        assert result.returncode == 0, result.stderr


def test_a_file_is_replaced_whole_or_not_at_all(build_dir, folder):
    place = folder / "whole"
    place.mkdir()
    (place / "model.mlir").write_text(malformed.PLAIN)
    (place / "out.npy").write_text("old")
    call = ["model.mlir", "--entry=twice", "--output=out.npy"]
    assert run(build_dir, place, [*call, "--input=9xf32=1"]).returncode == malformed.RUN
    assert (place / "out.npy").read_text() == "old"
    assert run(build_dir, place, [*call, "--input=3xf32=1"]).returncode == 0
    assert np.load(place / "out.npy").tolist() == [2, 2, 2]
    assert sorted(p.name for p in place.iterdir()) == ["model.mlir", "out.npy"]


def test_full_standard_output_is_an_error(build_dir, folder):
    place = folder / "full"
    place.mkdir()
    (place / "model.mlir").write_text(malformed.PLAIN)
    with open("/dev/full", "w") as full:
        result = subprocess.run([build_dir.resolve() / "bin" / "diffattn-run", "model.mlir", "--entry=twice", "--input=3xf32=1"],
                                cwd=place, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode == malformed.OUTPUT and "standard output" in result.stderr


def test_random_bytes_never_crash(build_dir, folder):
    """Good files with bytes changed or cut: any class of error, or success, but never a signal."""
    rng = np.random.default_rng(0)
    place = folder / "random"
    place.mkdir()
    (place / "model.mlir").write_text(malformed.MODEL)
    array = malformed.npy(shape="(2, 4)", data=np.ones(8, np.float32).tobytes())
    for trial in range(40):
        files = {"w.safetensors": bytearray(malformed.SHARD), "x.npy": bytearray(array)}
        chosen = files["w.safetensors" if trial % 2 else "x.npy"]
        header = len(chosen) - (72 if trial % 2 else 32)
        for _ in range(1 + trial % 3):
            chosen[int(rng.integers(header))] = int(rng.integers(256))
        if trial % 5 == 0:
            del chosen[int(rng.integers(len(chosen))):]
        for name, data in files.items():
            (place / name).write_bytes(data)
        result = run(build_dir, place, ["model.mlir", "--weights=w.safetensors", "--input=x.npy", "--quiet"])
        assert result.returncode in (0, malformed.WEIGHTS, malformed.INPUT), (trial, result.returncode, result.stderr)
