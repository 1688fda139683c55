"""The nodes that a model has, so that errors name these, whatever other nodes took their place."""

from __future__ import annotations

import re
from dataclasses import dataclass

import onnx

from ..text import shown
from .walk import nodes_of

_LABEL = re.compile(r"origin:(\d+):")
#: How the importer's locations name the nodes of its graph, whose names begin so.
_NODE = re.compile(r'loc\("node:(\d+):')
#: The heads of a message of onnx's inference: kinds of errors and the nodes around that which it is about.
_HEAD = re.compile(r"(?:\[\w+\] |Inference error\(s\): |\(op_type: ?[^()]*\): )+")


@dataclass
class Origin:
    """A node as the model has it."""

    kind: str
    name: str
    inputs: list[str]
    outputs: list[str]
    #: The function of the model that it stands in, whose names are its own.
    function: str

    def __str__(self) -> str:
        name = f" {shown(self.name)}" if self.name else ""
        place = f" of function {shown(self.function)}" if self.function else ""
        return f"{shown(self.kind)}{name}{place}, which makes {', '.join(map(shown, filter(None, self.outputs))) or 'nothing'}"


class Origins:
    """Names each node of a model by a number, also those of functions and of graphs within. The nodes that take the place of one
    keep its name."""

    def __init__(self, proto: onnx.ModelProto):
        self._origins: list[Origin] = []
        graphs = [(proto.graph, ""), *((function, _full_name(function.domain, function.name)) for function in proto.functions)]
        for graph, function in graphs:
            for node in nodes_of(graph):
                kind = _full_name(node.domain, node.op_type)
                self._origins.append(Origin(kind, node.name, [*node.input], [*node.output], function))
                node.name = f"origin:{len(self._origins) - 1}:"

    def of(self, text: str) -> Origin | None:
        """The first one that `text` names."""
        return self._numbered(_LABEL.findall(text)[:1])

    def of_inference(self, error: Exception) -> tuple[Origin | None, str]:
        """The innermost node of the first error of onnx's inference, and what it says of it; the others follow from that."""
        first = next((line for line in str(error).splitlines() if _LABEL.search(line)), "")
        origin = self._numbered(_LABEL.findall(first)[-1:])
        return (origin, _HEAD.sub("", first).strip()) if origin else (None, str(error))

    def _numbered(self, numbers: list[str]) -> Origin | None:
        number = int(numbers[0]) if numbers and len(numbers[0]) < 10 else len(self._origins)
        return self._origins[number] if number < len(self._origins) else None


def number_of(operation) -> int | None:
    """The number, in the graph that is imported, of the node that the importer made an operation of; None: of no node."""
    match = _NODE.match(str(operation.location))
    return int(match[1]) if match else None


def _full_name(domain: str, name: str) -> str:
    return f"{domain}.{name}" if domain else name
