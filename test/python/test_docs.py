"""Every command in the documents runs.

A block fenced as `sh` is run by bash in a folder that looks like the source tree (links to its parts), so that files which the
commands write land elsewhere. Blocks fenced as `console` are commands for set-up, or long ones, and are not run.
"""
import os
import re
import subprocess

import pytest

from conftest import ROOT

DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")])


def blocks(language):
    for path in DOCUMENTS:
        if not path.exists():
            continue
        text = path.read_text()
        for found in re.finditer(rf"^```{language}\n(.*?)^```", text, re.M | re.S):
            line = text[: found.start()].count("\n") + 2
            yield pytest.param(found.group(1), id=f"{path.relative_to(ROOT)}:{line}")


@pytest.fixture
def tree(tmp_path):
    for entry in ROOT.iterdir():
        if entry.name != ".git":
            (tmp_path / entry.name).symlink_to(entry)
    build = os.environ.get("DIFFATTN_BUILD_DIR")
    if build:
        (tmp_path / "build").unlink(missing_ok=True)
        (tmp_path / "build").symlink_to(build)
    return tmp_path


@pytest.mark.parametrize("commands", list(blocks("sh")))
def test_commands_run(commands, tree):
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", commands], cwd=tree, capture_output=True, text=True, timeout=300,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.parametrize("code", list(blocks("python")))
def test_python_runs(code, tree):
    done = subprocess.run([str(tree / ".venv/bin/python") if (tree / ".venv").exists() else "python3", "-c", code], cwd=tree,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
