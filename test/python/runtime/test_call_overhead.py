"""benchmarks/call_overhead.py measures what it says; how fast calls are is for its readers."""
import importlib.util
import json
import sys


def test_it_runs(root, tmp_path, monkeypatch, capsys):
    import torch

    spec = importlib.util.spec_from_file_location("call_overhead", root / "benchmarks/call_overhead.py")
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    monkeypatch.setattr(sys, "argv", ["call_overhead.py", "--samples", "20", "--output", str(tmp_path / "o.json")])
    threads = torch.get_num_threads()
    bench.main()
    assert torch.get_num_threads() == threads
    result, printed = json.loads((tmp_path / "o.json").read_text()), capsys.readouterr().out
    assert "two SDPA calls" in result["calls"] and len(result["graphs"]) == 3 and set(result["between"]) == {"nothing", "our attention", "PyTorch's attention"}
    for name, row in {**result["calls"], **result["graphs"], **result["between"]}.items():
        assert 0 < row["p10"] <= row["median"] <= row["p90"] and name in printed


def test_medians(root):
    spec = importlib.util.spec_from_file_location("call_overhead", root / "benchmarks/call_overhead.py")
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    assert bench.summary([5.0, 1.0, 3.0]) == {"median": 3.0, "p10": 1.0, "p90": 5.0}
    order = []
    rows = bench.take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert order == ["a", "b"] * 4 and set(rows) == {"a", "b"}
