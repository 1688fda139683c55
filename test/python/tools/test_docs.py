"""Every command in the documents runs.

A block fenced as `sh` is run by bash in a folder that looks like the source tree (links to its parts), so that files which the
commands write land elsewhere. Blocks fenced as `console` are commands for set-up, or long ones, and are not run.
"""
import os
import re
import subprocess

import pytest

import snippets
from paths import ROOT

DOCUMENTS = sorted([ROOT / "README.md", ROOT / "python" / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")])


def blocks(language):
    for path in DOCUMENTS:
        if not path.exists():
            continue
        text = path.read_text()
        for match in re.finditer(rf"^```{language}\n(.*?)^```", text, re.M | re.S):
            line = text[: match.start()].count("\n") + 2
            yield pytest.param(match.group(1), id=f"{path.relative_to(ROOT)}:{line}")


def anchors(path):
    """The names that headings of a page have, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [*DOCUMENTS, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"))], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        assert place.exists(), target
        assert not anchor or anchor in anchors(place), target


def test_every_page_is_named_in_the_readme():
    text = (ROOT / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"](docs/{page.name})" not in text] == []


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Where the commands keep what they compile: not the user's own folder, all of which they list."""
    return tmp_path_factory.mktemp("cache") / "diffattn"


@pytest.fixture
def tree(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("DIFFATTN_CACHE_DIR", str(cache))
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


#: transformers and timm import torchvision, which may be of another build than the PyTorch of this environment.
STAND_IN = "import sys; sys.path.append('test/python/models'); import torchvision_stand_in\n"


@pytest.mark.parametrize("code", list(blocks("python")))
def test_python_runs(code, tree, tmp_path_factory):
    code = (STAND_IN if re.search(r"^import .*\b(transformers|timm)\b", code, re.M) else "") + code
    if not re.search(r"^import .*\btorch\b", code, re.M):
        done = subprocess.run([tree / ".venv/bin/python" if (tree / ".venv").exists() else "python3", "-c", code], cwd=tree, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        assert done.returncode == 0, done.stdout[-6000:]
        return
    status, written = snippets.run(code, tree, tmp_path_factory.mktemp("output") / "written")
    assert status == 0, written[-6000:]


#: Numbered ones: a page and one file each.
EXAMPLES = sorted((ROOT / "examples").glob("[0-9][0-9]-*"))


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_examples_are_a_short_page_and_one_file(folder):
    page = (folder / "README.md").read_text()
    (file,) = (path for path in folder.iterdir() if path.name != "README.md" and not path.name.startswith((".", "__")))
    assert len(page.splitlines()) <= 40
    # A file that is no Python program is run by the page's own commands.
    assert f"python examples/{folder.name}/{file.name}" in page if file.suffix == ".py" else re.search(rf"^```sh\n[^`]*{file.name}", page, re.M)
    assert f"]({folder.name}/README.md) | `{file.name}` |" in (ROOT / "examples/README.md").read_text()


@pytest.mark.parametrize("program", [path for folder in EXAMPLES for path in folder.glob("*.py")], ids=lambda path: path.parent.name)
def test_programs_of_examples_run(program, tree, tmp_path_factory):
    status, written = snippets.run(program.read_text(), tree, tmp_path_factory.mktemp("output") / "written")
    assert status == 0, written[-6000:]
