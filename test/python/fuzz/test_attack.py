"""Random calls and modules against the compiler, the C interface and models: no crash, no hang, no difference to f64 beyond docs/numerics.md.

What is attacked runs in a process of its own (test/python/fuzz/attack). The seeds are fixed, so a finding is the same on every run;
`.venv/bin/python test/python/fuzz/attack --kind KIND --seed SEED` repeats it.
"""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "attack"))

import driver  # noqa: E402

#: Cases of each kind in the quick suite, about a quarter of a minute in all.
CASES = dict(attention=5, gradients=4, sizes=10, states=15, tensors=20, interface=20, options=12, models=5)
#: Cases that once failed, repeated in every run.
KEPT = []


@pytest.mark.parametrize("kind", driver.KINDS)
def test_every_call_is_right_or_refused(kind, full):
    seeds = range(CASES[kind] * (40 if full else 1))
    counts, faults = driver.campaign((kind, seed) for seed in [*seeds, *(s for k, s in KEPT if k == kind)])
    assert not faults, "\n".join(f"{kind} {seed}: {text}" for kind, seed, text in faults[:5])
    # An attack that only bounces off, or that nothing refuses, shows little.
    calls = counts[kind]["right"] + counts[kind]["refused"] + counts[kind]["unjudged"]
    assert counts[kind]["right"] > calls / 5 and counts[kind]["refused"] > calls / 20, counts[kind]


def test_a_crash_and_a_hang_are_findings(tmp_path):
    victim = driver.Victim()
    try:
        assert "hangs" in victim.ask("attention", 0, seconds=0.001)["fault"]
        assert "fault" in victim.ask("no_such_kind", 0)
    finally:
        victim.end()
