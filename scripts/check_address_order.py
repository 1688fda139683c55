#!/usr/bin/env python3
"""Finds loops whose order is that of addresses, which change from run to run.

usage: check_address_order.py [ROOT]

A loop over a hash table or a tree of pointers visits its elements in another order in every process, and so does whatever it
creates or erases. Names of such containers are collected over lib/, include/ and tools/: variables, members, parameters, and what
functions return. A loop where the order does not matter says so on its line or the line before: `// any order: REASON`.
Exits with 1 and a line for each breach.
"""
import pathlib
import re
import sys

#: Types of MLIR and LLVM that are pointers, beside those that end in a star.
POINTERS = r"(?:mlir::|llvm::|const\s+)*(?:\w+::)*(?:Value|OpResult|BlockArgument|Type|Attribute|Operation|\w+Op|\w+Type|\w+Attr|Expr)"
KEY = rf"(?:[^<>,()]*\*(?:\s*const)?|{POINTERS}|std::pair<[^<>]*(?:\*|\b(?:Value|Type|Attribute))[^<>]*>)"
CONTAINER = re.compile(
    rf"(?:llvm::)?(?:SmallPtrSet(?:Impl)?<|(?:Small)?Dense(?:Set|Map)<\s*{KEY}\s*[,>]"
    rf"|std::(?:unordered_)?(?:multi)?(?:map|set)<\s*{KEY}\s*[,>])")
#: for (... : container), and what takes elements from its first to its last.
LOOP = re.compile(r"\bfor\s*\((?:[^;{}()]|\([^()]*\))*?[^:]:(?!:)\s*(?P<range>[^;{}]*?)\)\s*(?:\{|\n|[^\s])"
                  r"|(?<![=!]= )(?P<begin>\b\w+)\s*\.\s*begin\(\)", re.S)
REASON = "any order:"


def closing(text, start, opening="<", closed=">"):
    """The place behind the bracket that closes the one before `start`."""
    depth = 1
    for at in range(start, len(text)):
        depth += (text[at] == opening) - (text[at] == closed)
        if depth == 0:
            return at + 1
    return len(text)


def declared_names(text):
    """Names that are declared with the type of a container of pointers."""
    for match in CONTAINER.finditer(text):
        start = text.index("<", match.start()) + 1
        rest = text[closing(text, start):]
        name = re.match(r"\s*(?:const\b)?\s*[&*]*\s*(?:(?:\w+::)*)(\w+)", rest)
        if name:
            yield name.group(1)
            yield from re.findall(r"\A\s*[&*]*\s*\w+(?:\s*,\s*(\w+))+\s*;", rest)


def without_comments(text):
    """Comments as blanks of the same length; strings stay."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda match: re.sub(r"[^\n]", " ", match.group()), text, flags=re.S)


def is_ordered_here(text, name, before):
    """Whether the last declaration of `name` before a place is of another type."""
    last = None
    for match in re.finditer(rf"(?P<type>[\w:]+(?:<[^;{{}}()]*?>+)?)\s*(?:const\b)?\s*[&*]*\s+[&*]*{name}\b\s*[;={{(),\[]", text[:before]):
        if match["type"] not in ("return", "in", "of", "auto"):
            last = match
    return last is not None and not CONTAINER.match(last["type"])


def breaches(root):
    files = sorted(path for folder in ("include", "lib", "tools") for path in (root / folder).rglob("*")
                   if path.suffix in (".h", ".cpp"))
    texts = {path: path.read_text() for path in files}
    plain = {path: without_comments(text) for path, text in texts.items()}
    declared = {path: set(declared_names(text)) for path, text in plain.items()}
    by_name = {path.name: path for path in files if path.suffix == ".h"}
    for path, text in plain.items():
        names = set(declared[path])
        for header in re.findall(r'#include "([^"]+)"', texts[path]):
            names |= declared.get(by_name.get(header.rsplit("/", 1)[-1]), set())
        # auto set = containerOf(...)
        for variable, function in re.findall(r"\bauto\s*[&*]*\s*(\w+)\s*=\s*(?:\w+(?:::|\.|->))*(\w+)\s*\(", text):
            if function in names:
                names.add(variable)
        lines = texts[path].splitlines()
        for match in LOOP.finditer(text):
            last = re.search(r"(\w+)\s*\)?\s*$", (match["begin"] or match["range"]).strip())
            if not last or last.group(1) not in names or is_ordered_here(text, last.group(1), match.start()):
                continue
            line = text.count("\n", 0, match.start())
            if not any(REASON in lines[at] for at in (line - 1, line) if at >= 0):
                yield f"{path.relative_to(root)}:{line + 1}: {last.group(1)} is in the order of addresses"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1])
    lines = list(breaches(root))
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
