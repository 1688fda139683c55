"""Failures of the compiler and of compiled code."""

from __future__ import annotations


class DiffAttnError(RuntimeError):
    """A failure of the compiler or of compiled code; the subclasses say whose hands can put it right."""

    #: What the command `diffattn` ends with; never 0.
    code = 1


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


class InputError(DiffAttnError, ValueError):
    """Types and shapes of arguments."""

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
