"""benchmarks/products_cpu.py multiplies rightly on each instruction set and prints what it says; how fast that is is for its readers."""
import json
import subprocess
import sys

import pytest
from kernel_library import runnable_isas


def run(root, *options):
    return subprocess.run([sys.executable, root / "benchmarks/products_cpu.py", "--turns", "1", "--megabytes", "1", *map(str, options)],
                          capture_output=True, text=True, check=False)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype, isa", [("f32", "avx2"), *(("bf16", isa) for isa in runnable_isas())])
def test_a_smallest_run(root, tmp_path, dtype, isa):
    done = run(root, "--type", dtype, "--isa", isa, "--rows", 1, 17, "--shape", "70x50", "--output", tmp_path / "o.json",
               *["--no-torch"] * (dtype == "bf16"))
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "o.json").read_text())
    assert [(row["M"], row["N"], row["K"]) for row in result["rows"]] == [(1, 70, 50), (17, 70, 50)]
    for row in result["rows"]:
        peers = [row[name]["seconds"] for name in ("library", "torch") if name in row]
        assert ("torch" in row) == (dtype == "f32")
        if peers:
            assert row["times as fast as the better peer"] == pytest.approx(min(peers) / row["own"]["seconds"])
        assert row["own"]["gflops"] == pytest.approx(2 * row["M"] * 70 * 50 / row["own"]["seconds"] / 1e9)
    assert "vdpbf16ps" in result["peaks"] and f"{dtype}, {isa}; peaks fma f32" in done.stdout


@pytest.mark.skipif("amx-emulated" not in runnable_isas(), reason="this CPU has no AVX2, which the emulation needs")
@pytest.mark.parametrize("dtype, weights", [("f32", "int8"), ("bf16", "int4")])
def test_quantized_weights(root, tmp_path, dtype, weights):
    done = run(root, "--type", dtype, "--isa", "amx-emulated", "--weights", weights, "--rows", 17, "--shape", "70x256", "--no-torch",
               "--output", tmp_path / "o.json")
    assert done.returncode == 0, done.stderr
    row, = json.loads((tmp_path / "o.json").read_text())["rows"]
    assert row["own"]["GB/s"] == pytest.approx((70 * 256 * int(weights[-1]) // 8 + 70 * 2 * 4) / row["own"]["seconds"] / 1e9)
    assert row["error"] < {"f32": 1e-6, "bf16": 0.01}[dtype]


@pytest.mark.parametrize("options, message", [
    (["--shape", "10"], "argument --shape: expected N and K, as 2944x1024, but got '10'"),
    (["--weights", "int8", "--isa", "avx2"], "expected --isa amx or amx-emulated with --weights, but got avx2"),
    (["--weights", "int8", "--isa", "amx-emulated", "--shape", "10x64"],
     "expected shapes with a K that is a multiple of 128 with --weights"),
    (["--rows", 0], "argument --rows: expected an integer of at least 1, but got '0'"),
])
def test_options_that_are_wrong(root, options, message):
    done = run(root, *options)
    assert done.returncode == 2 and done.stderr.strip().splitlines()[-1].endswith(message)
