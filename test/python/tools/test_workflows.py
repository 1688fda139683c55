"""Workflows, the image and the hooks call scripts that exist, by options that these have, and nothing else."""
import json
import re
import subprocess

import pytest
import yaml

from paths import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def commands(workflow):
    """The commands that the steps of a workflow run, with the matrix's values in the place of their names."""
    for job in workflow["jobs"].values():
        rows = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
        for step in (step for step in job["steps"] if "run" in step):
            for row in rows:
                yield re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda match: row[match[1]], step["run"]).strip()


def find_fault(command):
    """The fault of a line of a workflow, or None if it is one script of the tree, with options that its --help names and their numbers."""
    name, *options = command.split()
    script = ROOT / name
    if not re.fullmatch(r"(scripts/[\w.-]+|\.ci/run)", name) or not script.is_file():
        return f"expected a script of the tree, but got {name}"
    if not script.stat().st_mode & 0o100:
        return f"expected an executable script, but got {name}"
    if options:
        usage = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=20)
        if usage.returncode or [option for option in options if not option.isdigit() and not re.search(rf"{re.escape(option)}\b", usage.stdout)]:
            return f"expected options of {name}, but got {' '.join(options)}"
    return None


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_scripts_alone(path):
    lines = list(commands(yaml.safe_load(path.read_text())))
    assert lines and [fault for command in lines if (fault := find_fault(command))] == []


@pytest.mark.parametrize("command, fault", [
    (".ci/run", None), ("scripts/test.sh --full", None), ("scripts/test.sh --all", "expected options of scripts/test.sh"),
    ("scripts/fuzz.sh --seconds 60", None), ("scripts/fuzz.sh --hours 60", "expected options of scripts/fuzz.sh, but got --hours 60"),
    ("scripts/none.sh", "expected a script"), ("make", "expected a script"), ("scripts/test.sh; make", "expected a script"),
    ("scripts/setup.sh", "expected an executable script")])
def test_a_fault_is_found(command, fault):
    got = find_fault(command)
    assert got is None if fault is None else fault in got


def installs_too_late(script):
    """Whether the text of a script runs LLVM's tools in a line above the one that installs them. A script that installs nothing is given
    a build."""
    lines = [line for line in script.splitlines() if not line.lstrip().startswith("#")]
    first = {name: next((i for i, line in enumerate(lines) if re.search(pattern, line)), None)
             for name, pattern in [("tools", r"\b(llvm_bin|clang_runtime)\b"), ("packages", r"\bsetup_(\w+_)?packages\b")]}
    return None not in first.values() and first["tools"] < first["packages"]


@pytest.mark.parametrize("path", sorted((ROOT / "scripts").glob("*.sh")), ids=lambda path: path.name)
def test_scripts_install_tools_before_they_run_them(path):
    assert path.name == "setup.sh" or not installs_too_late(path.read_text())


def test_a_script_that_installs_too_late_is_seen():
    script = (ROOT / "scripts/fuzz.sh").read_text()
    assert installs_too_late(script.replace("  setup_packages\n", "").replace("  configure", "  setup_packages\n  configure"))


def test_tests_run_with_and_without_assertions():
    lines = set(commands(yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())))
    assert {".ci/run", "scripts/test.sh --assertions"} <= lines


def test_the_image_is_made_of_what_is_there():
    """The container of an editor is the Dockerfile's, and the files that this copies reach it."""
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    dockerfile = (ROOT / ".devcontainer" / container["build"]["dockerfile"]).resolve()
    assert dockerfile == ROOT / "Dockerfile" and (ROOT / container["postCreateCommand"]).is_file()
    copied = re.findall(r"^COPY (.*) \S+$", dockerfile.read_text(), re.M)
    assert copied and all((ROOT / name).is_file() and name.startswith("scripts/") for line in copied for name in line.split())
    assert "!scripts" in (ROOT / ".dockerignore").read_text().splitlines()


def test_hooks_call_what_is_there():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = {hook["id"]: hook for hook in repository["hooks"]}
    assert set(hooks) == {"clang-format", "ruff", "subjects"}
    assert (ROOT / hooks["subjects"]["entry"].split()[1]).is_file() and (ROOT / "ruff.toml").is_file()


@pytest.mark.parametrize("path", sorted(set((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")) - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"}), ids=lambda path: path.name)
def test_forms_of_issues_ask_something(path):
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= set(form)
    asked = [entry for entry in form["body"] if entry["type"] != "markdown"]
    assert any(entry.get("validations", {}).get("required") for entry in asked)
    assert len({entry["id"] for entry in asked}) == len(asked)
    for name in re.findall(r"\b(?:docs/\w+\.md|[A-Z]+\.md)\b", path.read_text()):
        assert (ROOT / name).is_file(), name
