"""benchmarks/training_cpu.py: what it times is right, what it says of memory is so, how `Trainer` takes turns, its options, a smallest run."""
import importlib.util
import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def bench(root):
    spec = importlib.util.spec_from_file_location("training_cpu", root / "benchmarks/training_cpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def options(bench, monkeypatch):
    def parse(*given):
        monkeypatch.setattr(sys, "argv", ["training_cpu.py", *map(str, given)])
        return bench.parse()
    return parse


def test_smallest_run(root, tmp_path):
    done = subprocess.run([sys.executable, root / "benchmarks/training_cpu.py", "--turns", "1", "--tiny-lm", "32", "--diffllama", "32", "40", "--tokens", "64",
                           "--layers", "1", "--hidden", "32", "--no-memory", "--output", tmp_path / "o.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "o.json").read_text())
    assert (result["tokens"], result["layers"], result["hidden"], result["threads"]) == (64, 1, 32, 1)
    assert [(row["kind"], row["dtype"], row["length"], row["batch"]) for row in result["rows"]] == [
        ("tiny-lm", "f32", 32, 2), ("diffllama", "f32", 32, 2), ("diffllama", "f32", 40, 1)]
    for row in result["rows"]:
        assert set(row["times"]) == {"torch", "diffattn"}
        assert row["ratio"] == pytest.approx(row["times"]["torch"]["seconds"] / row["times"]["diffattn"]["seconds"])
        assert f"f32 {row['kind']}, {row['batch']} x {row['length']} tokens: {row['times']['diffattn']['seconds'] * 1e3:.0f} ms a step" in done.stdout


@pytest.mark.parametrize("kind", ["tiny-lm", "diffllama"])
def test_wrong_gradients_are_not_timed(bench, options, kind, monkeypatch):
    args = options("--layers", 2, "--hidden", 32)
    trainings = {name: bench.KINDS[kind](args, 32, 1, name) for name in bench.CONTESTANTS}
    bench.check(args, trainings, 32)
    loss = trainings["diffattn"].loss
    # The value is right, and the gradients are too large.
    monkeypatch.setattr(trainings["diffattn"], "loss", lambda length: 1.01 * loss(length) - 0.01 * loss(length).detach())
    with pytest.raises(SystemExit, match="and its gradients, but got the loss .* and an error of 0.01 in the gradients"):
        bench.check(args, trainings, 32)
    monkeypatch.setattr(trainings["diffattn"], "loss", lambda length: loss(length) + 0.01)
    with pytest.raises(SystemExit, match="expected the loss .* but got the loss"):
        bench.check(args, trainings, 32)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["tiny-lm", "diffllama"])
def test_memory(bench, options, kind, monkeypatch, capsys):
    """tiny-lm's own attention keeps maps for the backward pass; the operator keeps none, and SDPA, which a DiffLlama calls, few."""
    args = options("--tokens", 1024, "--layers", 4, "--hidden", 32)

    def in_process(option, *given):
        assert option == "--show-memory"
        bench.show_memory(args, *given)
        return json.loads(capsys.readouterr().out)

    monkeypatch.setattr(bench, "peak_in_process", in_process)
    row = bench.measure_memory(args, kind, 1024)
    raised = {name: bytes_["peak"] - bytes_["before"] for name, bytes_ in row["bytes"].items()}
    assert (row["kind"], row["length"], row["batch"]) == (f"{kind} memory", 1024, 1) and f"{kind}, 1 x 1024 tokens: steps take" in capsys.readouterr().out
    maps = 4 * 2 * 4 * 1024 * 1024 * 4  # four layers, two maps of four heads each, f32
    assert set(raised) == {"diffattn", "torch"}
    if kind == "tiny-lm":
        assert raised["torch"] > maps + raised["diffattn"]
    else:
        assert max(raised.values()) < maps


def test_trainer_takes_one_step_a_call(bench, options):
    training = bench.DiffLlama(options("--layers", 1, "--hidden", 32), 8, 2, "torch")
    calls, weights = [], [training.model.lm_head.weight.detach().clone()]
    training.model.register_forward_pre_hook(lambda *_: calls.append(1))
    for count in (1, 2, 3):
        training.step()
        weights.append(training.model.lm_head.weight.detach().clone())
        assert len(calls) == count and not weights[-1].equal(weights[-2])
    training.end()
    assert not training.thread.is_alive() and len(calls) == 3


def test_an_error_in_trainer_is_one_of_the_step(bench, options):
    training = bench.DiffLlama(options("--layers", 1, "--hidden", 32), 8, 2, "torch")
    training.step()

    def broken(*_):
        raise ArithmeticError("broken")

    training.model.register_forward_pre_hook(broken)
    with pytest.raises(ArithmeticError, match="broken"):
        training.step()
    training.end()
    assert not training.thread.is_alive()


@pytest.mark.parametrize("given, message", [
    (["--hidden", 40], "--hidden: expected a multiple of 16, but got 40"),
    (["--tiny-lm", 8], "argument --tiny-lm: expected an integer of at least 32, but got '8'"),
    (["--threads", 2, "--clock", "cpu"], "expected --threads 1 with --clock cpu: it adds up what threads take"),
])
def test_options_that_are_wrong(options, given, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        options(*given)
    assert stopped.value.code == 2 and capsys.readouterr().err.strip().splitlines()[-1].endswith(message)
