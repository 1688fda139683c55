"""Commands that are printed to go on with. Each works where it is pasted: in the same folder and environment."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from .errors import LibraryError
from .library import program

#: Sizes that a function leaves open: one for all, as some of them must be equal.
OPEN_SIZE = 4


def _spelled(path: str | Path, name: str) -> str:
    """A program as the shell finds it: its name if PATH leads to it, else its path, from here if it lies below."""
    program = shutil.which(name)
    if program and os.path.exists(path) and os.path.samefile(program, path):
        return name
    relative = os.path.relpath(path)
    return shlex.quote(str(path) if relative.startswith("..") else relative)


def command() -> str:
    """This command, as it was called."""
    called = sys.argv[0]
    if os.path.basename(called) == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m diffattn"
    if not os.path.isfile(called):  # called from Python, as with -c
        return "diffattn"
    return _spelled(called, "diffattn")


def runner() -> str:
    """diffattn-run of the libraries in use, else that of PATH."""
    try:
        own = program("diffattn-run")
    except LibraryError:
        return "diffattn-run"
    # A wheel's lies within the package, and has a command beside this one.
    command = Path(sysconfig.get_path("scripts")) / "diffattn-run"
    return _spelled(command if own.parents[1] == Path(__file__).resolve().parent and command.exists() else own, "diffattn-run")


def run_graph(file: str | Path, directory: str | Path, arguments: Sequence[tuple[Sequence[int | None], str]]) -> str:
    """Runs `forward` of a graph that was written, whose arguments have these shapes and element types."""
    words = [f"{file}", "--entry=forward", f"--weights={directory}"]
    for shape, element in arguments:
        sizes = "x".join(str(OPEN_SIZE if n is None else n) for n in shape)
        words.append(f"--input={sizes}x{element}=1" if element.startswith("i") else f"--input=random:{sizes}x{element}")
    return " ".join([runner(), *map(shlex.quote, words)])


def run_bundle(folder: str | Path, arguments: Sequence[tuple[Sequence[int | None], str]]) -> str:
    """Calls `forward` of a bundle that was written."""
    arrays = [f"np.zeros({tuple(OPEN_SIZE if n is None else n for n in shape)}, np.{'int64' if element == 'i64' else 'float32'})"
              for shape, element in arguments]
    call = ", ".join(["'forward'", *arrays])
    code = f"import numpy as np, diffattn; print(diffattn.bundle.load({str(folder)!r}).call({call}))"
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}"
