"""scripts/check_subjects.py finds subjects of commits that do not say what changes, and works where there is no history."""
import subprocess
import sys

import pytest

from paths import ROOT

sys.path.append(str(ROOT / "scripts"))
import check_subjects  # noqa: E402


@pytest.mark.parametrize("subject, fault", [
    ("[ir] Let attention have one map", None),
    ("[C-API, docs] Give errors a number", None),
    ("[docs] " + "A" * 65, None),
    ("[docs] " + "A" * 66, "at most 72 characters, but got 73"),
    ("Let attention have one map", "expected '[area] Verb"),
    ("[ir] let attention have one map", "expected '[area] Verb"),
    ("[ir] Let attention have one map.", "without a full stop"),
    ("[] Let attention have one map", "expected '[area] Verb"),
    ('Revert "[ir] Let attention have one map"', "expected '[area] Verb"),
])
def test_faults_are_found(subject, fault):
    got = check_subjects.find_fault(subject)
    assert got is None if fault is None else fault in got


def check(tree, *arguments):
    return subprocess.run([sys.executable, ROOT / "scripts/check_subjects.py", *arguments], cwd=tree, capture_output=True, text=True)


def commit(tree, subject):
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", subject], cwd=tree, check=True)


def test_a_tree_without_history(tmp_path):
    assert check(tmp_path).stdout == "no history here: no subjects to check\n"
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert check(tmp_path).returncode == 0
    assert check(tmp_path, "main..").returncode == 1


def test_the_newest_commits_are_read(tmp_path):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit(tmp_path, "an old one")
    done = check(tmp_path)
    assert done.returncode == 1 and "expected '[area] Verb …' without a full stop: an old one" in done.stdout
    for number in range(check_subjects.NEWEST):
        commit(tmp_path, f"[test] Count to {number}")
    assert check(tmp_path).returncode == 0
    assert check(tmp_path, "HEAD").returncode == 1  # a range of all


@pytest.mark.parametrize("message, code", [
    ("[ir] Let attention have one map\n\nWhy.\n", 0), ("\n# a comment\n[ir] Let attention have one map\n", 0), ("fixup! [ir] Let it\n", 0),
    ("Merge branch 'a'\n", 0), ("one map\n", 1), ("# nothing\n", 1)])
def test_the_hook_reads_a_message(tmp_path, message, code):
    (tmp_path / "message").write_text(message)
    assert check(tmp_path, "--file", "message").returncode == code
