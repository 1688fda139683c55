"""`diffattn import`: a model of another framework as a module of MLIR and a file of weights."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import checks, hints
from .errors import InputError, IRError, UsageError
from .files import MEBIBYTE, open_regular
from .output import tell, write_files
from .text import printable_name, shown

if TYPE_CHECKING:
    from .importing.function import Imported

FORMATS = ("onnx", "pt2", "stablehlo")
#: The bytes at the beginning of a file that tell its format.
_TELLING = 16 * MEBIBYTE
#: The formats of files by the endings of their names.
_ENDINGS = {".onnx": "onnx", ".pt2": "pt2", ".mlir": "stablehlo", ".mlirbc": "stablehlo", ".stablehlo": "stablehlo"}
#: How bytecode of MLIR begins, which an export of JAX holds.
_BYTECODE = b"ML\xefR"
#: A function, or an operation of StableHLO, as text.
_TEXT = re.compile(r"\bfunc\.func\b|\bfunc @|\bstablehlo\.")


def add_to(commands, size: Callable[[str], int]) -> None:
    """The command among others; `size` converts a text to a size."""
    sub = commands.add_parser("import", help="write a model of ONNX, PyTorch or JAX as MLIR", description="Write a model of ONNX (.onnx), of "
                              "torch.export (.pt2), or of StableHLO (text, bytecode, what jax.export has serialized) as MLIR with a file of "
                              "weights, for diffattn-run and diffattn-opt.",
                              epilog="example: diffattn import m.onnx -o m.mlir --weights=m.safetensors")
    sub.set_defaults(function=run)
    sub.add_argument("file", metavar="FILE", help="the model")
    sub.add_argument("-o", "--output", required=True, metavar="OUT", help="the module, as text")
    sub.add_argument("--weights", metavar="OUT", help="the weights, as safetensors; needed if the model has any")
    sub.add_argument("--format", choices=FORMATS, help="what FILE is (default: as its name ends, or what is in it)")
    sub.add_argument("--size", action="append", default=[], metavar="NAME=N", type=_named(size),
                     help="of StableHLO, a size that is a symbol; may be repeated")


def _named(size: Callable[[str], int]):
    def convert(text: str) -> tuple[str, int]:
        name, equals, number = text.partition("=")
        if not equals or not name:
            raise argparse.ArgumentTypeError(f"expected NAME=N, but got {text!r}")
        return name, size(number)

    return convert


def run(args) -> int:
    path, output = checks.path("FILE", args.file), checks.path("--output", args.output)
    if args.weights is not None and os.path.realpath(args.weights) == os.path.realpath(output):
        raise UsageError(f"--weights: expected another file than that of --output, but got {args.weights} twice")
    imported = read(path, args.format, dict(args.size))
    if imported.weights and args.weights is None:
        raise UsageError(f"expected --weights=FILE, because {path} has {len(imported.weights)} weights, as {next(iter(imported.weights))}")
    files = [(output, [_as_module(path, imported.text)])]
    if args.weights is not None:
        from .importing.safetensors import pieces

        files.insert(0, (checks.path("--weights", args.weights), pieces(imported.weights)))
    write_files(files)
    command = [hints.runner(), shlex.quote(output)] + ([f"--weights={shlex.quote(args.weights)}"] if imported.weights else [])
    tell(f"diffattn: wrote {' and '.join(printable_name(path) for path, _ in reversed(files))}; run it with: {' '.join(command)}")
    return 0


def read(path: str, format_: str | None, sizes: dict[str, int]) -> Imported:
    """Raises as `diffattn.onnx.load` and `diffattn.jax.load`; LibraryError if the packages for this format are missing."""
    kind = format_ or _ENDINGS.get(os.path.splitext(path)[1].lower()) or _found_format(path)
    if sizes and kind != "stablehlo":
        raise UsageError(f"--size: expected it with StableHLO, whose modules are for fixed sizes, but {path} is imported as {kind}")
    if kind == "onnx":
        from . import onnx

        onnx.require()
        from .onnx.model import read as read_onnx

        return read_onnx(path)
    if kind == "pt2":
        from .torch import options

        options.require()
        from .torch.saved import read as read_saved

        return read_saved(path)
    from . import jax

    jax.require()
    from .jax.sources import import_file

    return import_file(path, sizes)


def _found_format(path: str) -> str:
    """The format that the content of a file shows. Raises IRError that lists the formats if it shows none."""
    descriptor, _ = open_regular(path, InputError)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(_TELLING)
    if _BYTECODE in data or _TEXT.search(data.decode("utf-8", "replace")):
        return "stablehlo"
    got = "a file that is none of them by its name or content" if data else "an empty file"
    raise IRError(f"{path}: expected a model of ONNX (a file .onnx), of torch.export (.pt2), or of StableHLO (text .mlir, bytecode, "
                  f"or what jax.export has serialized), but got {got}; --format={{{','.join(FORMATS)}}} says which it is")


def _as_module(path: str, text: str) -> bytes:
    """An importer's output as a module that every MLIR 22 reads, with its weights, and with ops of ours written out."""
    from .runtime import emit

    try:
        return emit(text, "imported")
    except IRError as error:
        reason = shown(" ".join(str(error).split()), 400)
        raise IRError(f"{path}: expected to be imported as a module that this MLIR reads, but got: {reason}") from None
