"""benchmarks/attention_cpu.py: which samples count, what it says where none is undisturbed, its options, a smallest run."""
import importlib.util
import json
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def bench(root):
    spec = importlib.util.spec_from_file_location("attention_cpu", root / "benchmarks/attention_cpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FakeProbe:
    """A core whose speed at each probe is given, and the time of a call by it."""

    def __init__(self, speeds, best=100.0):
        self.speeds, self.best, self.now, self.speed = iter(speeds), best, 0.0, best

    def clock(self):
        return self.now

    def rate(self):
        self.speed = next(self.speeds)
        return self.speed

    def call(self):
        self.now += 100.0 / self.speed


def test_disturbed_samples_do_not_count(bench):
    # Probes before and after each of 8 calls: the second and the fifth are disturbed, one of them only behind the call.
    speeds = [100, 99, 50, 100] + [100, 98] * 2 + [99, 40] + [100, 97] * 3
    probe = FakeProbe(speeds)
    times = bench.sample(probe, {"x": probe.call}, 8)["x"]
    assert (times["kept"], times["of"], times["gate"]) == (6, 8, bench.GATE)
    assert times["seconds"] == pytest.approx(1.0)
    assert "6 of 8" in bench.noise({"x": times}) and "NOISY" not in bench.noise({"x": times})


def test_what_prepares_a_sample_is_not_timed(bench):
    probe = FakeProbe([100] * 200)
    seen = []

    def prepare(name):
        seen.append((name, probe.now))
        probe.now += 7.0

    times = bench.sample(probe, {"x": probe.call, "y": probe.call}, 8, prepare=prepare)
    assert times["x"]["seconds"] == times["y"]["seconds"] == pytest.approx(1.0)
    assert len(seen) == times["x"]["of"] + times["y"]["of"] and len({now for _, now in seen}) == len(seen)
    assert [name for name, _ in seen] == ["x", "y"] * times["x"]["of"]


def test_the_first_of_short_calls_is_not_timed(bench):
    """It finds cold caches."""
    probe = FakeProbe([100] * 200)
    in_a_row = {"short": 0, "long": 0}

    def call(name, seconds):
        in_a_row.update({other: 0 for other in in_a_row if other != name})
        in_a_row[name] += 1
        probe.now += seconds * (3 if in_a_row[name] == 1 else 1)

    times = bench.sample(probe, {"short": lambda: call("short", 1e-4), "long": lambda: call("long", 0.5)}, 4)
    assert times["short"]["seconds"] == pytest.approx(1e-4) and times["long"]["seconds"] == pytest.approx(1.5)


def test_more_samples_are_taken_where_too_few_count(bench):
    probe = FakeProbe([60] * 16 + [100] * 100)
    times = bench.sample(probe, {"x": probe.call}, 8)["x"]
    assert times["kept"] == bench.LEAST_KEPT and times["of"] == 8 + bench.LEAST_KEPT


def test_an_hour_that_is_never_quiet_is_said(bench):
    speeds = [70, 70] * 5 + [85, 85] * 3 + [70, 70] * 100
    probe = FakeProbe(speeds)
    times = bench.sample(probe, {"x": probe.call}, 8)["x"]
    assert times["of"] == 8 * bench.MOST_TURNS and times["kept"] == 3 and times["gate"] == pytest.approx(0.85)
    assert times["seconds"] == pytest.approx(100 / 85)
    assert "3 of 32 samples kept, quartiles up to 0% apart; NOISY: probes around them reached 85%" in bench.noise({"x": times})


def test_one_boost_of_the_clock_is_no_measure(bench):
    probe = bench.Probe.__new__(bench.Probe)
    probe.rates = [100.0 + i % 3 for i in range(50)] + [180.0]
    assert probe.best == 102.0


def test_quartiles_and_the_least(bench):
    probe = FakeProbe([100 - speed for i in range(40) for speed in (i % 5, i % 5)])
    times = bench.sample(probe, {"x": probe.call}, 15)["x"]
    assert times["kept"] == 15 and [times["seconds"], times["median"], *times["quartiles"]] == pytest.approx(
        [100 / 100, 100 / 98, 100 / 99, 100 / 97])
    assert "quartiles up to 2% apart" in bench.noise({"x": times})


def run(root, *options):
    return subprocess.run([sys.executable, root / "benchmarks/attention_cpu.py", *map(str, options)], capture_output=True, text=True,
                          check=False)


def test_smallest_run(root, tmp_path):
    done = run(root, "--turns", 1, "--lengths", 40, "--dtypes", "f16", "--decode-keys", 64, "--segments", 0, 0, "--no-compile", "--avx2",
               "--d", 16, "--heads", 4, "--key-heads", 2, "--batch", 2, "--masks", "window", "room", "--output", tmp_path / "o.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "o.json").read_text())
    assert (tmp_path / "o.png").exists() and result["torch capability"] == "AVX2"
    assert result["shape"] == {"batch": 2, "heads": 4, "key_heads": 2, "d": 16, "dv": 32, "v2": False, "plain": False}
    assert set(result["peaks"]) == {"fma f32", "vdpbf16ps", "amx bf16"} and result["peaks"]["fma f32"] > 0
    assert [(row["kind"], row["dtype"]) for row in result["rows"]] == [(kind, "f16") for kind in ["prefill"] * 2 + ["decode"] + ["mask"] * 4]
    masks = result["rows"][3:]
    assert [(row["mask"], row["queries"], row["keys"]) for row in masks] == [(m, *n) for m in ("window", "room") for n in ((40, 40), (1, 64))]
    for row in masks:
        assert set(row["times"]) == {"naive", "sdpa x2", "sdpa x4", "boolean mask", "mask of -inf", "no mask"} and row["boolean mask"]["ratio"] > 0
    for row in result["rows"][:3]:
        peers = {"naive", "sdpa x2", "sdpa x4"}
        assert set(row["times"]) == peers | {"diffattn 256-bit"} | ({"read loop"} if row["kind"] == "decode" else set())
        assert row["fastest peer"] in peers and row["diffattn 256-bit"]["ratio"] > 0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_v2_is_what_pytorch_gives(bench, dtype, causal):
    operands = bench.Operands(bench.Shape(2, 4, 2, 16, 16, v2=True), dtype, 24, 24)
    assert len(operands.read) == 2 and operands.bytes_read == 2 * 2 * 2 * 24 * 16 * (4 if dtype == "f32" else 2)
    peers = operands.peers(causal, compiled=False)
    assert set(peers) == {"naive", "sdpa x2"}
    for peer in peers.values():
        bench.checked(operands, {"ours": lambda: operands.ours(is_causal=causal)}, peer)
    operands.lam = operands.lam + 3
    with pytest.raises(SystemExit, match="expected ours to give what PyTorch gives, but got an error of"):
        bench.checked(operands, {"ours": lambda: operands.ours(is_causal=causal)}, peers["naive"])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_one_map_is_what_pytorch_gives(bench, dtype, causal):
    operands = bench.Operands(bench.Shape(2, 4, 2, 16, 16, plain=True), dtype, 24, 24)
    assert len(operands.read) == 2 and operands.shape.flop(24, 24) == 2 * 4 * 24 * 24 * 2 * (16 + 16)
    peers = operands.peers(causal, compiled=False)
    assert set(peers) == {"naive", "sdpa"}
    for peer in peers.values():
        bench.checked(operands, {"ours": lambda: operands.ours(is_causal=causal)}, peer)
    with pytest.raises(SystemExit, match="expected ours to give what PyTorch gives, but got an error of"):
        bench.checked(operands, {"ours": lambda: operands.ours(is_causal=not causal)}, peers["naive"])


def test_instruction_sets_side_by_side(bench, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["attention_cpu.py", "--isa", "amx", "avx512"])
    assert bench.targets(bench.parse(), "bf16") == {"diffattn amx": "cpu:amx", "diffattn avx512": "cpu:avx512"}


@pytest.mark.parametrize("options, message", [
    (["--isa", "amx", "--avx2"], "expected --avx2 or --isa, not both: --avx2 has our code for AVX2 alone"),
    (["--plain", "--v2"], "expected --plain or --v2, not both: V2 has two maps"),
    (["--heads", 6, "--key-heads", 4], "--key-heads: expected a divisor of 6, but got 4"),
    (["--segments", 0, 4], "--segments: expected two numbers of at least 1, or 0 0, but got 0 4"),
    (["--turns", "x"], "argument --turns: expected an integer of at least 1, but got 'x'"),
    (["--batch", 0], "argument --batch: expected an integer of at least 1, but got '0'"),
    (["--threads", 2, "--clock", "cpu"], "expected --threads 1 with --clock cpu: it adds up what threads take"),
])
def test_options_that_are_wrong(bench, options, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["attention_cpu.py", *map(str, options)])
    with pytest.raises(SystemExit) as stopped:
        bench.parse()
    assert stopped.value.code == 2 and capsys.readouterr().err.strip().splitlines()[-1].endswith(message)
