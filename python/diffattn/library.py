"""Where the compiled libraries and programs lie."""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys

from . import output
from .errors import DiffAttnError, LibraryError


def library_folder(name: str) -> pathlib.Path:
    """Where the shared library `name` lies: in lib below DIFFATTN_BUILD_DIR if that is set, else in lib beside this file (a
    wheel's), in an installation's lib, or in the build folder of the source tree."""
    here = pathlib.Path(__file__).resolve().parent
    build = os.environ.get("DIFFATTN_BUILD_DIR")
    if build:
        folder = pathlib.Path(build).resolve() / "lib"
        if not (folder / name).exists():
            raise LibraryError(f"DIFFATTN_BUILD_DIR: expected a folder with lib/{name}, but got {build!r}; name the folder that "
                               "the project was built in, or unset the variable")
        return folder
    folders = [here / "lib", here.parents[1] / "lib", here.parents[1] / "build" / "lib"]
    for folder in folders:
        if (folder / name).exists():
            return folder
    raise LibraryError(f"expected {name} in {' or '.join(map(str, folders))}, but it is in none of them; install a "
                       "wheel that has it (scripts/build-wheel.sh), build it (scripts/demo.sh), or name the build folder or the "
                       "prefix of an installation in DIFFATTN_BUILD_DIR")


def load_library(path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryError(f"{path}: expected a shared library that loads, but got: {error}") from None


def program(name: str) -> pathlib.Path:
    """The program `name` that belongs to the compiler's library."""
    path = library_folder("libDiffAttnC.so").parent / "bin" / name
    if not os.access(path, os.X_OK):
        raise LibraryError(f"{path}: expected a program, but there is none; install a wheel that has it (scripts/build-wheel.sh), "
                           "or build it (scripts/demo.sh)")
    return path


def plugin(model: bool = False) -> pathlib.Path:
    """The plugin for the stock mlir-opt, which belongs to the compiler's library: that of attention, or with `model` that of whole models.
    Raises LibraryError where there is none, as in a wheel."""
    path = library_folder("libDiffAttnC.so") / ("libDiffAttnModelPlugin.so" if model else "libDiffAttnPlugin.so")
    if not path.exists():
        raise LibraryError(f"{path}: expected the plugin for mlir-opt, but there is none: it needs the shared library of MLIR 22, which a "
                           "wheel does without; diffattn-opt has all passes of mlir-opt and of diffattn, or build the source tree and run "
                           "cmake --install build --component tools --prefix my-prefix, and my-prefix/lib has it")
    return path


def _become(name: str) -> int:
    """The command `name` of this environment: the program takes the place of this process."""
    try:
        path = program(name)
    except DiffAttnError as error:
        output.prepare_streams()
        output.tell(f"{name}: error: {error}")
        return error.code
    # Where diffattn-run looks for packages that bring an assembler or cuBLASLt.
    os.environ.setdefault("DIFFATTN_VENV", sys.prefix)
    os.execv(path, [str(path), *sys.argv[1:]])


def run() -> int:
    return _become("diffattn-run")


def opt() -> int:
    return _become("diffattn-opt")
