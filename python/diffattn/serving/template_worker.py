"""The process that renders a chat template: a line of JSON in, a line of JSON out. It imports nothing of this package.

The first line is the template, each other one the variables of a rendering. Filters and functions are those that transformers gives
to templates, whose texts these are to be byte for byte.
"""

from __future__ import annotations

import datetime
import json
import resource
import sys

import jinja2
import jinja2.debug  # Jinja imports it when a template fails, where no file can be opened any more
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

#: Bytes of memory, and characters of a text.
MEMORY, LONGEST = 1 << 30, 1 << 24


class Refused(Exception):
    """An error that a template raises by itself."""


class Generation(jinja2.ext.Extension):
    """`{% generation %}`, which marks what an assistant says in training, and changes no text."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_as_it_is"), [], [], body).set_lineno(line)

    def _as_it_is(self, caller: jinja2.runtime.Macro) -> str:
        return caller()


class Dict:
    """`dict(...)`, and nothing of the class behind it."""

    def __call__(self, *args, **kwargs) -> dict:
        return dict(*args, **kwargs)

    def fromkeys(self, *args) -> dict:
        return dict.fromkeys(*args)


class Namespace(jinja2.utils.Namespace):
    """`namespace(...)`, whose names do not begin as Python's internals do."""

    def __init__(*args, **kwargs) -> None:  # so that `namespace(self=...)` is one too
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            Namespace._check(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value) -> None:
        Namespace._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name: str) -> None:
        if str(name).startswith("_"):
            raise jinja2.exceptions.SecurityError(f"expected names in a namespace to begin with no underscore, but got {name!r}")


def refuse(message: str) -> None:
    raise Refused(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """The value as JSON, without the escapes of HTML that Jinja's own filter makes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def compiled(template: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                               extensions=[Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = to_json
    environment.globals |= {"raise_exception": refuse, "dict": Dict(), "namespace": Namespace}
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment.from_string(template)


def rendered(template: jinja2.Template, variables: dict) -> dict[str, str]:
    parts, length = [], 0
    try:
        for part in template.generate(**variables):
            length += len(part)
            if length > LONGEST:
                return {"error": f"a text of more than {LONGEST} characters"}
            parts.append(part)
    except Refused as error:
        return {"error": str(error)}
    except Exception as error:  # whatever a template does wrong
        return {"error": f"{type(error).__name__}: {error}"}
    return {"text": "".join(parts)}


def main() -> None:
    compiled(r"{{ '\n' | tojson }}").render()  # imports what is imported on the way
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))  # nothing is opened from here on
    lines = (json.loads(line) for line in sys.stdin)

    def say(answer: dict[str, str]) -> None:
        print(json.dumps(answer), flush=True)

    try:
        template = compiled(next(lines))
    except Exception as error:
        return say({"error": f"{type(error).__name__}: {error}"})
    say({})
    for variables in lines:
        say(rendered(template, variables))


if __name__ == "__main__":
    main()
