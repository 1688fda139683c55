"""benchmarks/model_cpu.py measures quantized weights in their smallest form, and says what is wrong with its options."""
import importlib.util
import sys

import pytest


@pytest.fixture(scope="module")
def bench(root):
    spec = importlib.util.spec_from_file_location("model_cpu", root / "benchmarks/model_cpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parse(bench, monkeypatch, *options):
    monkeypatch.setattr(sys, "argv", ["model_cpu.py", *map(str, options)])
    return bench.parse()


@pytest.mark.oracle
def test_smallest_run(bench, tmp_path, monkeypatch):
    import torch

    threads = torch.get_num_threads()
    args = parse(bench, monkeypatch, "--layers", 1, "--hidden", 128, "--vocabulary", 64, "--prompt", 6, "--runs", 1, "--decode-steps", 1,
                 "--dtype", "bf16", "--batch", 2, "--weights", "int4")
    try:
        result = bench.measure(args, tmp_path)  # it compares with transformers
    finally:
        torch.set_num_threads(threads)
    assert (result["dtype"], result["weights"], result["batch"]) == ("bf16", "int4", 2)
    # Most of them take half a byte.
    assert 0 < result["decode_read_gb_per_s"] * result["seconds"]["decode"] * 1e9 < result["parameters"]
    for what in ("prefill", "decode"):
        parts = result["split"][what]
        assert set(parts) == {"attention", "products", "rest"} and parts["attention"] > 0
        assert sum(parts.values()) == pytest.approx(result["seconds"][what])


@pytest.mark.parametrize("options, message", [
    (["--hidden", 200], "--hidden: expected a multiple of 128, but got 200"),
    (["--batch", 0], "argument --batch: expected an integer of at least 1, but got '0'"),
])
def test_options_that_are_wrong(bench, options, message, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse(bench, monkeypatch, *options)
    assert stopped.value.code == 2 and capsys.readouterr().err.strip().splitlines()[-1].endswith(message)
