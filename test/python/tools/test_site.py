"""Pages of docs/reference are those that their definitions make, and the contents of the site name every page. Sphinx is not needed."""
import argparse
import re
import sys

import pytest

from paths import ROOT

sys.path.append(str(ROOT / "scripts"))
import reference_pages as reference  # noqa: E402

DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", sorted(reference.PAGES))
def test_reference_is_current(name):
    assert (reference.FOLDER / name).read_text() == reference.page(name), "stale: run scripts/reference_pages.py"


def test_reference_has_no_other_pages():
    assert {path.name for path in reference.FOLDER.iterdir()} == set(reference.PAGES)


def test_reference_names_what_there_is():
    text = {name: (reference.FOLDER / name).read_text() for name in reference.PAGES}
    flags = {flag for file in (ROOT / "include").rglob("Passes.td") for flag in re.findall(r'Pass<\s*"([a-z0-9-]+)"', file.read_text())}
    assert len(flags) > 40 and not [flag for flag in flags if f"### `-{flag}`" not in text["passes.md"]]
    for op in ("attention", "attention_backward", "online_attention", "merge", "finalize", "quantized_gemm"):
        assert f"## `diffattn.{op}`" in text["ops.md"]
    assert "## CpuPrefillAttr" in text["attributes.md"]
    assert "| `--emit=<stage>` |" in text["diffattn-run.md"] and "## diffattn serve" in text["diffattn.md"]


def test_contents_name_every_page():
    lists = re.findall(r"^```\{toctree\}\n(?::[^\n]*\n)*\n(.*?)^```", (DOCS / "index.md").read_text(), re.M | re.S)
    pages = [(DOCS / f"{name}.md").resolve() for name in re.findall(r"^(?:.* <)?([\w./-]+)>?$", "".join(lists), re.M)]
    assert len(pages) == len(set(pages)) and all(page.is_file() for page in pages)
    here = {page for page in [*DOCS.glob("*.md"), *reference.FOLDER.glob("*.md")] if page.name != "index.md"}
    assert not here - set(pages), "pages that docs/index.md does not list"


def sphinx_markup(text):
    """Lines that a repository browser would show as they are: directives and roles of MyST, front matter."""
    return re.findall(r"^(?:```\{.*|:{3,}.*|\(\w+\)=|---\n\w+:)|\{(?:ref|doc|py:\w+|term|eq)\}`", text, re.M)


def test_pages_have_no_markup_of_sphinx():
    pages = [page for page in DOCS.rglob("*.md") if page.name != "index.md"]
    assert len(pages) > 30 and not [page.name for page in pages if sphinx_markup(page.read_text())]


@pytest.mark.parametrize("text, is_markup", [("```{note}\nx\n```", True), (":::{tip}\n:::", True), ("see {ref}`x`", True), ("(here)=\n# A", True),
                                             ("```mlir\n%x = f {a}\n```", False), ("a set {x} and `{y}`", False), ("---\n", False)])
def test_markup_is_seen(text, is_markup):
    assert bool(sphinx_markup(text)) == is_markup


def test_options_are_read_from_help():
    text = """OPTIONS:

1. Call:
What to call

  --entry=<name>           - Function to call (default: the only
                             one)
  -o <file>                - A file

2. Other:
How

  --remarks=<value>        - What to say:
    =none                  -   Nothing
    =all                   -   Everything

EXAMPLES:
  tool --entry=x
"""
    assert reference.options_of_help(text) == [
        ("Call", [["--entry=<name>", "Function to call (default: the only one)"], ["-o <file>", "A file"]]),
        ("Other", [["--remarks=<value>", "What to say: `none`: Nothing; `all`: Everything"]])]


def test_arguments_are_read_from_a_parser():
    parser = argparse.ArgumentParser(prog="tool")
    parser.add_argument("file", metavar="FILE", help="what to read")
    parser.add_argument("-n", "--number", type=int, default=3, metavar="N", help="how many (default: %(default)s), or a|b")
    parser.add_argument("--fast", action="store_true", help="for <name>")
    parser.add_argument("--kind", choices=["x", "y"])
    assert list(reference.arguments_of(parser)) == [["`FILE`", "what to read"], ["`-n, --number N`", "how many (default: 3), or a\\|b"],
                                                    ["`--fast`", "for `<name>`"], ["`--kind {x,y}`", ""]]


def test_prose_is_wrapped_and_code_is_not():
    long = "word " * 40
    text = reference.wrapped(f"# {long.strip()}\n\n{long.strip()}\n\n* {long.strip()}\n\n```\n{long.strip()}\n```\n\n| {long}|\n")
    lines = text.splitlines()
    assert [line for line in lines if len(line) > 100] == [lines[0], long.strip(), f"| {long}|"]
    assert text.split() == f"# {long} {long} * {long} ``` {long} ``` | {long}|".split()


def test_headings_move_and_code_stays():
    assert reference.deeper("### a\n```\n### b\n```\n#### c\n", -1) == "## a\n```\n### b\n```\n### c\n"
