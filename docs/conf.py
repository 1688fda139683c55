"""Sphinx's configuration of the site, which scripts/build-docs.sh builds from the pages as they lie in the tree."""
import pathlib
import re

from pygments.lexer import RegexLexer, words
from pygments.token import Comment, Keyword, Name, Number, Operator, String, Text
from sphinx.highlighting import lexers

ROOT = pathlib.Path(__file__).resolve().parents[1]

project = "diffattn"
author = copyright = "The diffattn authors"
release = version = re.search(r'^__version__ = "(.*)"$', (ROOT / "python/diffattn/_version.py").read_text(), re.M)[1]

# The source folder is the top of the tree, so that links between pages are those of a repository browser.
root_doc = "docs/index"
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "docs/reference/*.md", "examples/README.md", "examples/*/README.md",
         "benchmarks/README.md", "benchmarks/results/README.md", "benchmarks/results/*/table.md", "python/README.md", "python/diffattn/torch/WORKAROUNDS.md"]
include_patterns = PAGES
# Folders that are not walked.
exclude_patterns = [".*", "build*", "dist", "include", "lib", "tools", "test", "unittests", "scripts", "cmake"]
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"diffattn {release}"
html_copy_source = False
html_show_sphinx = False

# As GitHub makes the names of headings, which the pages link to.
myst_heading_anchors = 6
# Tables of readings skip a level; what the index does not list is linked from other pages; blocks may leave code out, by an ellipsis.
suppress_warnings = ["myst.header", "toc.not_included", "misc.highlighting_failure"]


class MLIRLexer(RegexLexer):
    """Colours for MLIR's generic syntax: enough for the blocks of these pages."""

    name, aliases = "MLIR", ["mlir"]
    tokens = {"root": [
        (r"//.*", Comment.Single),
        (r'"(\\.|[^"\\])*"', String),
        (r"[%^][\w$.#:-]+", Name.Variable),
        (r"@[\w$.-]+", Name.Function),
        (r"[#!][\w$.-]+", Name.Class),
        (words(("func.func", "func.call", "call", "return", "module", "affine_map", "dense", "ins", "outs", "true", "false"), prefix=r"(?<![\w.])",
               suffix=r"\b(?!\.)"), Keyword),
        (r"\b(tensor|memref|vector|index|bf16|f\d+|[su]?i\d+)\b", Keyword.Type),
        (r"\b[a-z_]\w*(\.[a-z_]\w*)+", Name.Builtin),
        (r"-?\b\d[\w.+]*", Number),
        (r"->|[=:*+?/<>-]", Operator),
        (r".|\n", Text)]}


lexers["mlir"] = MLIRLexer()


def link_to_pages(app, name, source):
    """Links to folders become links to their pages, or text where they have none; those to files that are no pages are text: a site has no
    sources. A link to what is not there stays, and fails the build."""
    here = (ROOT / name).parent

    def replace(match):
        text, target = match.groups()
        file, _, anchor = target.partition("#")
        path = (here / file).resolve()
        if re.match(r"[a-z]+:", target) or not file or not path.is_relative_to(ROOT):
            return match[0]
        if path.is_dir() and (path / "README.md").exists():
            path, target = path / "README.md", f"{file.rstrip('/')}/README.md" + (f"#{anchor}" if anchor else "")
        inside = path.relative_to(ROOT)
        if path.exists() and not any(inside.match(pattern) and len(inside.parts) == pattern.count("/") + 1 for pattern in PAGES):
            return text
        return f"[{text}]({target})"

    # Not in code.
    parts = re.split(r"(^```.*?^```|`[^`\n]+`(?!\]))", source[0], flags=re.M | re.S)
    parts[::2] = [re.sub(r"(?<!!)\[([^\]\[]*(?:\[[^\]]*\][^\]\[]*)*)\]\(([^)\s]+)\)", replace, part) for part in parts[::2]]
    source[0] = "".join(parts)


def setup(app):
    app.connect("source-read", link_to_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
