"""Versions agree, and scripts/release.sh tags what is checked."""
import datetime
import re
import shutil
import subprocess
import tomllib

import pytest

import diffattn
from paths import ROOT

FILES = ["CHANGELOG.md", "CITATION.cff", "python/diffattn/_version.py", "scripts/release.sh", "scripts/setup.sh"]


def first_version():
    return re.search(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M).groups()


def test_versions_agree():
    """The version stands in _version.py, CITATION.cff, the changelog and the names of wheels in docs."""
    version, date = first_version()
    assert diffattn.__version__ == version and re.fullmatch(r"\d+\.\d+\.\d+", version)
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {version}\n" in citation and f"\ndate-released: {date}\n" in citation
    datetime.date.fromisoformat(date)
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        assert set(re.findall(r"diffattn-(\d[\d.]*\d)-py3", path.read_text())) <= {version}, path


def test_build_and_package_read_the_version():
    project = tomllib.loads((ROOT / "python/pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "diffattn._version.__version__"}
    assert "version" in project["project"]["dynamic"] and "version" not in project["project"]
    assert re.search(r"project\(DiffAttn VERSION \$\{DIFFATTN_VERSION\} ", (ROOT / "CMakeLists.txt").read_text())


@pytest.fixture
def tree(tmp_path):
    """A repository of what scripts/release.sh reads, with a build-wheel.sh that only writes down how it was called."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    wheel = tmp_path / "scripts/build-wheel.sh"
    wheel.write_text('#!/bin/sh\nmkdir -p "$2" && echo "$@" >"$2/called"\n')
    wheel.chmod(0o755)
    (tmp_path / ".gitignore").write_text("/dist/\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(tree, *arguments):
    return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tree, check=True, capture_output=True, text=True).stdout


def commit(tree):
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "[test] Change")


def release(tree, *arguments):
    # The committer's name, for the tag.
    names = {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b", "PATH": "/usr/bin:/bin"}
    return subprocess.run(["bash", "scripts/release.sh", *arguments], cwd=tree, capture_output=True, text=True, env=names)


def notes_of(version):
    text = (ROOT / "CHANGELOG.md").read_text()
    return re.search(rf"^## {re.escape(version)} [^\n]*\n(.*?)(?=^## )", text, re.M | re.S)[1].strip()


def test_a_dry_run_prints_the_notes_and_tags_nothing(tree):
    done = release(tree, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(notes_of(diffattn.__version__) + "\n== ready: " + diffattn.__version__)
    assert git(tree, "tag") == "" and not (tree / "dist").exists()


def test_a_release_has_a_wheel_notes_and_an_annotated_tag(tree):
    done = release(tree)
    version = diffattn.__version__
    assert done.returncode == 0, done.stderr
    assert (tree / "dist/called").read_text().split()[-1] == "--check"
    assert (tree / f"dist/release-notes-{version}.md").read_text() == notes_of(version) + "\n"
    assert git(tree, "cat-file", "-t", f"v{version}") == "tag\n"
    assert git(tree, "tag", "-l", "--format=%(contents)", f"v{version}").strip() == f"diffattn {version}\n\n{notes_of(version)}"
    again = release(tree)
    assert again.returncode == 1 and f"expected a version that is not released yet, but got {version}" in again.stderr


def test_a_failing_wheel_is_not_tagged(tree):
    (tree / "scripts/build-wheel.sh").write_text("#!/bin/sh\nexit 3\n")
    commit(tree)
    assert release(tree).returncode == 3
    assert git(tree, "tag") == ""


@pytest.mark.parametrize("file, before, after, error", [
    ("CHANGELOG.md", r"^## \S+ \(\S+\)$", "## 9.0.0 (2026-01-01)", "as the first heading of a version in CHANGELOG.md, but got '## 9.0.0"),
    ("CHANGELOG.md", r"^(## \S+) \(\S+\)$", r"\1", "(YYYY-MM-DD)' as the first heading"),
    ("CHANGELOG.md", r"(^## \S+ \(\S+\)\n)", r"\1\n## 0.0.1 (2026-01-01)\n", "but got an empty section"),
    ("CITATION.cff", r"^version: .*$", "version: 0.0.1", "in CITATION.cff, but got version: 0.0.1"),
    ("CITATION.cff", r"^date-released: .*$", "date-released: 2020-01-01", "but got version: .* date-released: 2020-01-01"),
    ("python/diffattn/_version.py", r'^__version__ = ".*"$', '__version__ = "one"', "expected a version MAJOR.MINOR.PATCH"),
], ids=["version", "date", "empty", "citation", "citation date", "number"])
def test_a_tree_that_does_not_agree_is_refused(tree, file, before, after, error):
    path = tree / file
    path.write_text(re.sub(before, after, path.read_text(), count=1, flags=re.M))
    commit(tree)
    done = release(tree, "--dry-run")
    assert done.returncode == 1 and re.search(error, done.stderr) or error in done.stderr, done.stderr


def test_uncommitted_changes_are_refused(tree):
    (tree / "new.txt").write_text("x")
    done = release(tree, "--dry-run")
    assert done.returncode == 1 and "?? new.txt" in done.stderr
