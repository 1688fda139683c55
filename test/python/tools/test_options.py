"""The table of options: the C API, Python, diffattn-run and the documents say the same of each."""
import re
import subprocess

import pytest
from paths import ROOT

from diffattn import checks, runtime
from diffattn.errors import UsageError

TABLE = {row.name: row for row in runtime.option_table()}
#: Options that diffattn-run has no flag for, or one of its own: quick code is for tests in Python, a trace goes to a file,
#: weights bind too, the cache has two.
WITHOUT_FLAG = {"reference", "trace", "quick_code", "name", "ptxas_folders", "package_folders", "weights", "cache"}


def limits(name):
    """The least and the greatest number that an option takes."""
    return tuple(map(int, TABLE[name].limits.split("..")))


def set_option(name, value):
    lib = runtime.library()
    options = lib.options_create()
    try:
        lib.check(lib.options_set(options, name.encode(), value.encode()))
    finally:
        lib.options_destroy(options)


def test_rows_are_whole():
    assert len(TABLE) >= 18 and all(row.help and row.kind in ("text", "number", "truth", "list", "choice") for row in TABLE.values())
    assert {name for name, row in TABLE.items() if row.is_key} == {"target", "threads", "prefetch_bytes", "raise", "batch_invariant",
                                                                   "unchecked", "trace", "quick_code", "reference", "from"}


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.kind == "number"])
def test_numbers_have_limits(name):
    least, most = limits(name)
    for value in (least, most):
        set_option(name, str(value))
    for value in (least - 1, most + 1, "x", "", "1.5", " 1"):
        with pytest.raises(UsageError, match=rf"option {name}: expected a number (of \w+ )?from {least} to {most}, but got '{value}'"):
            set_option(name, str(value))


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.kind in ("truth", "choice")])
def test_words_are_those_of_the_table(name):
    words = TABLE[name].limits.split("|") if TABLE[name].kind == "choice" else ["true", "false", "1", "0"]
    for word in words:
        set_option(name, word)
    expected = ", ".join(words[:-1]) + " or " + words[-1] if TABLE[name].kind == "choice" else "true or false"
    for word in ("maybe", "", "TRUE"):
        with pytest.raises(UsageError, match=f"option {name}: expected {expected}, but got '{word}'"):
            set_option(name, word)


def test_an_unknown_option_lists_all():
    with pytest.raises(UsageError, match=f"expected an option of {', '.join(TABLE)}, but got 'speed'"):
        set_option("speed", "1")


def test_python_has_the_same_limits():
    assert limits("threads") == (0, checks.MOST_THREADS)
    assert limits("prefetch_bytes") == (-1, checks.MOST_PREFETCH_BYTES)
    assert limits("cache_limit") == (0, 1 << 20) and int(runtime.cache_limit()) <= limits("cache_limit")[1]


def test_the_documents_name_every_option():
    """The column of the C API in docs/knobs.md, and the line of docs/c-api.md, have the names of the table and no others."""
    lines = [re.split(r"(?<!\\)\|", line) for line in (ROOT / "docs" / "knobs.md").read_text().splitlines() if line.startswith("| ")]
    rows = [cells[4] for cells in lines if len(cells) == 8]
    named = {name for cell in rows for name in re.findall(r"`([a-z_]+)`", cell) if not name.startswith("diffattn_")}
    listed = re.search(r"`diffattn_options_create`.*?: (.*?) \(\[knobs", (ROOT / "docs" / "c-api.md").read_text())[1]
    assert set(re.findall(r"[a-z_]+", listed)) >= set(TABLE)
    assert named - {"auto", "true", "false"} == set(TABLE)


def test_the_runner_has_flags_for_them(build_dir):
    text = subprocess.run([build_dir / "bin/diffattn-run", "--help"], capture_output=True, text=True, check=True).stdout
    help_text = " ".join(text.split())
    for name in TABLE.keys() - WITHOUT_FLAG:
        assert re.search(rf"^  --{name.replace('_', '-')}[=\[]", text, re.M), name
        assert TABLE[name].help in help_text, name


@pytest.mark.parametrize("flag, message", [
    ("--threads=4097", "--threads: expected a number from 0 to 4096, but got '4097'"),
    ("--unchecked=maybe", "--unchecked: expected true or false, but got 'maybe'"),
    ("--batch-invariant=no", "--batch-invariant: expected auto, true or false, but got 'no'"),
    ("--from=loops", "--from: expected input or gpu, but got 'loops'"),
    ("--cache-limit=-1", "--cache-limit: expected a number of MiB from 0 to 1048576, but got '-1'")])
def test_wrong_flags(flag, message, build_dir):
    done = subprocess.run([build_dir / "bin/diffattn-run", ROOT / "examples/attention.mlir", flag, "--info"], capture_output=True, text=True)
    assert done.returncode == 2 and message in done.stderr


def test_stages_are_listed_as_they_are(build_dir):
    """Stages are an enum of Passes.td: what the compiler lists is what texts list."""
    with pytest.raises(UsageError) as error:
        runtime.emit("module {}", "end")
    stages = re.search(r"expected a stage of (.*), but got 'end'", str(error.value)).group(1).split(", ")
    assert stages[0] == "input" and stages[-1] == "object" and len(stages) == 13
    listed = ", ".join(stages)
    assert listed in " ".join(runtime.emit.__doc__.split())
    help_text = subprocess.run([build_dir / "bin/diffattn-run", "--help"], capture_output=True, text=True, check=True).stdout
    assert f"{listed}; bundle" in " ".join(help_text.split())
    text = (ROOT / "docs/runner.md").read_text()
    assert not [stage for stage in stages if f"`{stage}`" not in text and f"--emit={stage}" not in text]
