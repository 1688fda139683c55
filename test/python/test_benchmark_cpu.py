"""The gate of benchmarks/attention_cpu.py: which samples count, and what it says where none is undisturbed."""
import importlib.util

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
    assert "3 of 32 samples kept; NOISY: probes around them reached 85%" in bench.noise({"x": times})


def test_one_boost_of_the_clock_is_no_measure(bench):
    probe = bench.Probe.__new__(bench.Probe)
    probe.rates = [100.0 + i % 3 for i in range(50)] + [180.0]
    assert probe.best == 102.0
