"""Failures of the compiler, of compiled code and of what a model is made from. Every one is a `DiffAttnError`."""

from __future__ import annotations

from .text import printable


class DiffAttnError(RuntimeError):
    """A failure of the compiler or of compiled code; the subclasses say whose hands can put it right."""

    #: Exit status of the command `diffattn`; never 0.
    code = 1

    def __str__(self) -> str:
        # A message may name what a file calls itself, and a traceback goes to a terminal.
        return printable(super().__str__())


class UsageError(DiffAttnError, ValueError):
    """Options, names of entries, numbers of arguments."""

    code = 2


class IRError(DiffAttnError):
    """The module does not parse or verify."""

    code = 3


class CompileError(DiffAttnError):
    """A sound module that the passes could not lower."""

    code = 4


class WeightsError(DiffAttnError):
    """Weight files: form, names, types, shapes."""

    code = 5


class CheckpointError(WeightsError, ValueError):
    """A directory that holds no usable checkpoint."""


class ConfigError(CheckpointError):
    """A value of config.json or generation_config.json that no model can be made or used with."""


class InputError(DiffAttnError, ValueError):
    """Types and shapes of arguments, prompts and texts."""

    code = 6


class RunError(DiffAttnError):
    """A check of the compiled code failed, or memory ran out."""

    code = 7


class OutputError(DiffAttnError, OSError):
    """Results could not be written."""

    code = 8


class BundleError(DiffAttnError):
    """A bundle that is damaged, too new, or for another machine."""

    code = 9


class LibraryError(DiffAttnError):
    """The compiled library is missing, does not load, or is of another version."""

    code = 10


#: By their codes, which are those of the C interfaces.
ERRORS = {e.code: e for e in (UsageError, IRError, CompileError, WeightsError, InputError, RunError, OutputError,
                              BundleError)}
