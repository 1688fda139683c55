"""Figures of the README are those that scripts/record.py writes from the readings in the tree."""
import json
import re
import shutil
import subprocess
import sys

import pytest

from paths import ROOT

sys.path.append(str(ROOT / "scripts"))
import record  # noqa: E402

RESULTS = ROOT / "benchmarks/results"


def test_the_readme_has_the_figures_of_the_readings():
    text = (ROOT / "README.md").read_text()
    assert record.write(text, record.Readings(RESULTS)) == text
    assert subprocess.run([ROOT / "scripts/record.sh", "--check"]).returncode == 0


def test_no_figure_of_speed_stands_outside_the_markers():
    text = record.MARKED.sub("", (ROOT / "README.md").read_text())
    section = text[text.index("## How fast"):text.index("## Contributing")]
    assert not re.search(r"\d", re.sub(r"\]\([^)]*\)", "", section.partition("\n")[2]))


@pytest.fixture
def readings(tmp_path):
    shutil.copytree(RESULTS, tmp_path / "results")
    return record.Readings(tmp_path / "results")


def test_a_newer_reading_changes_the_readme(readings):
    reading = readings.newest("zen4-attention-1core")
    for row in reading["rows"]:
        if (row["kind"], row["dtype"], row.get("length"), row.get("causal")) == ("prefill", "f32", 2048, False):
            row["diffattn"].update({"ratio": 9.87, "of peak": 2.0})
    (readings.folder / "2099-01-01-zen4-attention-1core.json").write_text(json.dumps(reading))
    before = (ROOT / "README.md").read_text()
    after = record.write(before, readings)
    assert after.count("9.9 times the speed of the best PyTorch variant") == 1 and after.count("| 236 (9.9×) |") == 1
    assert record.superseded(readings.folder) == ["2026-11-27-zen4-attention-1core.json"]


def test_readings_that_a_newer_one_replaces_leave_the_tree():
    assert record.superseded(RESULTS) == []


def test_what_is_missing_is_named(readings):
    text = (ROOT / "README.md").read_text()
    with pytest.raises(SystemExit, match="expected one block each of summary, .*but got attention"):
        record.write(text.replace("<!-- figures: summary -->\n", ""), readings)
    (path,) = readings.folder.glob("*-zen4-plain-1core.json")
    path.unlink()
    with pytest.raises(SystemExit, match="expected a reading zen4-plain-1core in .*, but got none"):
        record.write(text, readings)


@pytest.mark.parametrize("values, digits, text", [((1.0, 2.04), 1, "1.0 to 2.0"), ((1.31, 1.29), 1, "1.3"), ((94.2, 96.8), 0, "94 to 97")])
def test_spans(values, digits, text):
    assert record.span(values, digits) == text
