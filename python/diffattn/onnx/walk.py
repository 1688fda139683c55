"""Iteration over messages of ONNX, nested at any depth."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def messages(proto, kind=object) -> Iterator:
    """Yields the messages of a kind, `proto` itself too."""
    pending = [proto]
    while pending:
        message = pending.pop()
        if isinstance(message, kind):
            yield message
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                pending += [value] if hasattr(value, "ListFields") else value


def graphs_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [graph for attribute in node.attribute for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else []))]


def nodes_of(graph) -> Iterator[onnx.NodeProto]:
    """Yields the nodes of a graph or a function in their order, each before the nodes of graphs within it."""
    for node in graph.node:
        yield node
        for inner in graphs_of(node):
            yield from nodes_of(inner)
