"""Fuzz targets of the Python package (fuzz/python): seeds are taken, and what was found once ends in an error of the package."""
import re
import sys

import pytest

from paths import ROOT

sys.path.append(str(ROOT / "fuzz/python"))
import fuzz_targets  # noqa: E402

CORPUS = ROOT / "fuzz/corpus"


@pytest.mark.parametrize("name", fuzz_targets.TARGETS)
def test_corpus_is_taken_or_refused(name):
    files = sorted((CORPUS / name).iterdir())
    taken = {path.name: fuzz_targets.TARGETS[name](path.read_bytes()) for path in files}
    assert any(path.name.startswith("seed") for path in files)
    assert [file for file, was in taken.items() if file.startswith("seed") and not was] == []


def test_targets_are_named_everywhere():
    """scripts/fuzz.sh runs them all, each has a corpus, and docs/security.md says what each reads."""
    script = (ROOT / "scripts/fuzz.sh").read_text()
    run = {kind: re.search(rf"^{kind}=\((.*)\)$", script, re.M)[1].split() for kind in ("cpp", "python")}
    assert run["python"] == list(fuzz_targets.TARGETS) == list(fuzz_targets.IMPORTS)
    assert run["cpp"] == re.findall(r'^ +\{"([\w-]+)", \w+\},$', (ROOT / "fuzz/Targets.cpp").read_text(), re.M)
    names = sorted(run["cpp"] + run["python"])
    assert sorted(folder.name for folder in CORPUS.iterdir()) == names
    rows = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs/security.md").read_text().partition("## Fuzzing")[2], re.M)
    assert sorted(rows) == names
