"""The releases of other libraries that the fused classes were compared with, and the calls that they take the place of.

A fused class computes what the class of one release does. Another release may call its modules by other names, or hand over what
changes the result; that is found here, by the parameters of the forward that is replaced, before anything is computed.
"""

from __future__ import annotations

import inspect

from ...errors import UsageError

#: Releases whose modules agreed with the fused ones in test/python/models/test_patch.py.
TRIED = {
    "transformers": ("5.18.0", "5.19.0", "5.20.0", "5.20.1", "5.20.2", "5.21.0", "5.21.1", "5.22.0", "5.22.1", "5.22.2", "5.23.0",
                     "5.24.0"),
    "timm": ("1.0.26", "1.0.27", "1.0.28", "1.0.29", "1.0.30", "1.0.31"),
}


def library_of(fused: type) -> str:
    """The package that the replaced class belongs to."""
    return fused.unfused.__module__.partition(".")[0]


def is_tried(fused: type) -> bool:
    """Whether the release that is installed is one of `TRIED`."""
    return fused.version in TRIED[library_of(fused)]


def span(library: str) -> str:
    """The tried releases, for messages."""
    return f"{library} {TRIED[library][0]} to {TRIED[library][-1]}"


def parameters(forward) -> tuple[str, ...]:
    """The names of a forward's parameters, without self; those that take all others with their stars."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    given = list(inspect.signature(forward).parameters.values())[1:]
    return tuple(stars.get(parameter.kind, "") + parameter.name for parameter in given)


def check_forward(fused: type, name: str) -> None:
    """Raises UsageError where the replaced forward has other parameters than one of `fused.forms`, so that their meaning is not
    known. `name`: the module, for the message."""
    library, got = library_of(fused), parameters(fused.unfused.forward)
    if got not in fused.forms:
        forms = " or ".join(f"({', '.join(form)})" for form in fused.forms)
        raise UsageError(f"model: expected the forward of {name!r} to take {forms}, as {fused.unfused.__name__} does in {span(library)}, "
                         f"but that of {library} {fused.version} takes ({', '.join(got)})")


def untried_warning(fused: type) -> str:
    """The warning of `patch` about a release that was not tried, and whose forwards have known parameters."""
    library = library_of(fused)
    return (f"{library} {fused.version} was not tried with diffattn.patch, as {span(library)} were; its modules are called with "
            "parameters that are known, so they are replaced: compare the results once")
