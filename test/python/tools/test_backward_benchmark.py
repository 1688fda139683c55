"""benchmarks/attention_backward_cpu.py: what it times is right, what it says of memory is so, its options, a smallest run."""
import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest


@pytest.fixture(scope="module")
def bench(root):
    spec = importlib.util.spec_from_file_location("attention_backward_cpu", root / "benchmarks/attention_backward_cpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def options(bench, monkeypatch, *given):
    monkeypatch.setattr(sys, "argv", ["attention_backward_cpu.py", *map(str, given)])
    return bench.parse()


def run(root, *given):
    return subprocess.run([sys.executable, root / "benchmarks/attention_backward_cpu.py", *map(str, given)], capture_output=True, text=True,
                          check=False)


def test_smallest_run(root, tmp_path):
    done = run(root, "--turns", 1, "--lengths", 40, "--no-compile", "--avx2", "--d", 16, "--heads", 4, "--key-heads", 2, "--batch", 2, "--memory", 4100,
               "--output", tmp_path / "o.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "o.json").read_text())
    assert (tmp_path / "o.png").exists() and result["torch capability"] == "AVX2"
    assert result["shape"] == {"batch": 2, "heads": 4, "key_heads": 2, "d": 16, "dv": 32, "v2": False, "plain": False}
    *times, memory = result["rows"]
    kinds = {"backward": (12 * 16 + 4 * 32), "forward + backward": (12 * 16 + 4 * 32) + (4 * 16 + 4 * 32)}
    assert [(row["kind"], row["dtype"], row["length"], row["causal"]) for row in times] == [
        (kind, "f32", 40, causal) for causal in (False, True) for kind in kinds]
    peers = {"naive", "sdpa x2", "sdpa x4"}
    for row in times:
        assert set(row["times"]) == peers | {"diffattn 256-bit"} and row["fastest peer"] in peers
        ours, best = row["times"]["diffattn 256-bit"], row["times"][row["fastest peer"]]
        assert row["diffattn 256-bit"]["ratio"] == pytest.approx(best["seconds"] / ours["seconds"])
        assert ours["gflops"] * ours["seconds"] * 1e9 == pytest.approx(kinds[row["kind"]] * 2 * 4 * 40 * 40 * (0.5 if row["causal"] else 1))
        assert f"{row['kind']}, N 40 {'causal' if row['causal'] else 'full'}: diffattn 256-bit" in done.stdout
    # Sequences longer than MOST_NAIVE have no contestant of PyTorch.
    assert (memory["kind"], memory["length"], memory["causal"], set(memory["bytes"])) == ("memory", 4100, True, {"diffattn 256-bit"})
    assert "memory, N 4100: diffattn 256-bit" in done.stdout


def test_memory(bench, monkeypatch, capsys):
    args = options(bench, monkeypatch, "--d", 16, "--heads", 4, "--batch", 2, "--isa", "generic")

    def in_process(option, *given):
        assert option == "--show-memory"
        bench.show_memory(args, *given)
        return json.loads(capsys.readouterr().out)

    monkeypatch.setattr(bench, "peak_in_process", in_process)
    raised = {name: bench.raised(bytes_) for name, bytes_ in bench.measure_memory(args, 512)["bytes"].items()}
    # The maps of two batches with four heads, in f32: PyTorch's naive composition keeps both, ours none. Ours may take scratch that the process
    # already has from another test.
    one_map = 2 * 4 * 512 * 512 * 4
    assert set(raised) == {"diffattn generic", "naive", "sdpa x2"} and raised["naive"] > 2 * one_map > one_map > raised["diffattn generic"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", [["--d", 16, "--v2"], ["--d", 16, "--key-heads", 2], ["--d", 8, "--dv", 24, "--batch", 2],
                                   ["--d", 16, "--key-heads", 2, "--dtype", "bf16"], ["--d", 16, "--v2", "--dtype", "f16"]],
                         ids=["V2", "GQA", "V1", "bf16", "V2-f16"])
@pytest.mark.parametrize("causal", [False, True])
def test_everybody_gives_what_pytorch_gives(bench, monkeypatch, shape, causal):
    gradients = bench.Gradients(options(bench, monkeypatch, "--heads", 4, "--no-compile", *shape), 24, causal)
    ours, peers = gradients.ours(), gradients.peers()
    assert ours and set(peers) == {"naive", "sdpa x2"} | ({"sdpa x4"} if "--key-heads" in shape else set())
    gradients.check({**ours, **peers})
    for at, name in enumerate(gradients.names):
        def twice(*leaves, function=next(iter(ours.values())), at=at):
            """A function of the same value, with a gradient of one operand that is too large."""
            leaves = list(leaves)
            leaves[at] = 2 * leaves[at] - leaves[at].detach()
            return function(*leaves)

        with pytest.raises(SystemExit, match=f"expected ours to give what PyTorch's naive composition gives, but got an error of .* in d_{name}$"):
            gradients.check({"ours": twice})
    with pytest.raises(SystemExit, match="but got an error of .* in out$"):
        gradients.check({"ours": lambda *leaves: peers["naive"](*leaves) * 1.1})


def test_gradients_are_taken_of_the_graph_that_was_prepared(bench, monkeypatch):
    """One sample of each kind: the forward pass is in the time of both, and outside of that of the gradients alone."""
    args, taken = options(bench, monkeypatch, "--heads", 1, "--d", 16, "--no-compile", "--turns", 1), []

    def sample(probe, calls, turns, prepare=None):
        for name, call in calls.items():
            if prepare:
                prepare(name)
            before = len(made)
            call()
            taken.append((name, prepare is None, len(made) - before))
        return {name: {"seconds": 1.0, "kept": 1, "of": 1, "gate": 1.0, "median": 1.0, "quartiles": [1.0, 1.0]} for name in calls}

    made = []
    original = bench.Gradients.peers
    monkeypatch.setattr(bench.Gradients, "peers", lambda self: {n: lambda *x, f=f: made.append(n) or f(*x) for n, f in original(self).items()})
    monkeypatch.setattr(bench, "sample", sample)
    bench.measure(args, type("Probe", (), {"best": 1.0}), 24, False)
    assert {row for row in taken if row[0] in ("naive", "sdpa x2", "sdpa x4")} == {
        (name, both, int(both)) for name in ("naive", "sdpa x2", "sdpa x4") for both in (False, True)}


def test_what_is_held(bench):
    np.ones(256 << 20, np.uint8)  # a peak before, which is not of the call
    bytes_ = bench.peak_of(lambda: np.ones(64 << 20, np.uint8).sum())
    assert 60 << 20 < bench.raised(bytes_) < 80 << 20 and bench.raised(bench.peak_of(lambda: None)) < 8 << 20
    # The allocator keeps 16 MB of small arrays that were let go below one that was not; the call takes as much and holds as much more.
    pieces = [np.ones(16 << 10, np.uint8) for _ in range(1 << 10)]
    del pieces[:-1]
    assert bench.raised(bench.peak_of(lambda: [np.ones(16 << 10, np.uint8) for _ in range(1 << 10)])) > 12 << 20


@pytest.mark.parametrize("given, message", [
    (["--isa", "avx2", "--avx2"], "expected --avx2 or --isa, not both: --avx2 has our code for AVX2 alone"),
    (["--heads", 6, "--key-heads", 4], "--key-heads: expected a divisor of 6, but got 4"),
    (["--memory", 32], "argument --memory: expected an integer of at least 64, but got '32'"),
    (["--threads", 2, "--clock", "cpu"], "expected --threads 1 with --clock cpu: it adds up what threads take"),
])
def test_options_that_are_wrong(bench, given, message, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stopped:
        options(bench, monkeypatch, *given)
    assert stopped.value.code == 2 and capsys.readouterr().err.strip().splitlines()[-1].endswith(message)
