"""Random graphs of the family, raised and as they are: both interpreted, they agree, or raising is wrong (docs/raising.md).

The seeds are fixed, so a finding is the same on every run; `.venv/bin/python test/python/fuzz/raising_fuzz --seed SEED` shows it.
"""
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parent / "raising_fuzz"
sys.path.insert(0, str(FOLDER))

import case  # noqa: E402
import fuzzing  # noqa: E402

#: Graphs in the quick suite.
CASES = 1500
#: Seeds of graphs that once failed, compared in every run.
KEPT = [313060, 316000, 344162, 347920, 360221, 366654, 368600, 565837, 579113, 585137, 701207, 701459, 702064, 702290, 702662, 702702, 733635, 734692]
#: Graphs in one test, so that workers share them.
SHARE = 375


@pytest.mark.parametrize("first", range(0, CASES, SHARE))
def test_raised_graphs_compute_what_they_did(first, full):
    times = 68 if full else 1
    seeds = [*range(first * times, (first + SHARE) * times), *(seed for seed in KEPT if seed % (CASES // SHARE) == first // SHARE)]
    counts, faults = fuzzing.campaign(seeds, compiled=100)
    assert not faults, "\n".join(f"{seed}: {text}" for seed, text in faults[:5])
    # Graphs that are all raised, or none of them, show little; so does what cannot be interpreted.
    raised = counts["same"] + counts["same-f32"] + counts["same-overflow"]
    assert raised > len(seeds) / 3, counts
    assert counts["kept"] > len(seeds) / 20 and counts["changed, kept"] > len(seeds) / 40, counts
    assert counts["invalid"] + counts["undefined"] < len(seeds) / 10 and not counts["unknown"], counts
    assert counts["compiled"] >= len(seeds) / 200, counts


def test_a_crash_and_a_difference_are_faults(tmp_path, monkeypatch):
    cases = [case.draw(seed) for seed in range(3)]
    crashing = tmp_path / "crashing"
    crashing.write_text("#!/bin/sh\n"
                        "first=$(grep -m 1 -o 'seed=[0-9]*' \"$1\" | cut -d= -f2)\n"
                        "echo $first begins\n"
                        "if [ $first = 1 ]; then kill -SEGV $$; fi\n"
                        "echo $first fault differs\n"
                        "if [ $first = 0 ]; then echo 1 begins; kill -ABRT $$; fi\n")
    crashing.chmod(0o755)
    monkeypatch.setattr(fuzzing, "program", lambda: crashing)
    verdicts = fuzzing.Compared(cases, tmp_path).run()
    assert verdicts[0] == verdicts[2] == ("fault", "differs")
    assert verdicts[1][0] == "fault" and "SIGABRT" in verdicts[1][1]


def test_a_seed_is_one_graph():
    assert case.draw(17).module() == case.draw(17).module() != case.draw(18).module()
    shown = subprocess.run([sys.executable, FOLDER, "--seed", "17", "--text"], capture_output=True, text=True, check=True).stdout
    assert case.draw(17).module() in shown
