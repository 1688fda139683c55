"""Conversions by the package onnx: models of older opsets to opset 18, whose forms the other modules and torch-mlir read, and ops to the
functions that define them in ONNX."""

from __future__ import annotations

import onnx
import onnx.inliner
import onnx.version_converter
from onnx import helper

from .builder import ONNX, Refused
from .files import message_of
from .walk import graphs_of, nodes_of

OPSET = 18
#: The first opset in which element-wise ops broadcast as NumPy does.
OLDEST = 7
#: Ops that onnx converts to what means something else, with the first opset of which it does not.
_CHANGED = {"Resize": 11, "Scan": 9, "Upsample": 10}
#: Ops that torch-mlir does not lower, or to other numbers, or that raising does not read as they are.
_FUNCTIONS = {"Gelu", "RMSNormalization", "RotaryEmbedding", "Selu", "Shrink", "Softsign", "Swish"}


def upgrade(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Raises Refused."""
    version = opset_of(proto)
    if version is None or version >= OPSET:
        return proto
    if version < OLDEST:
        raise Refused(f"expected a model of opset {OLDEST} or later, but got one of opset {version}")
    for node in nodes_of(proto.graph):
        if version < _CHANGED.get(node.op_type, 0) and node.domain in ONNX:
            raise Refused(f"expected {node.op_type} of opset {_CHANGED[node.op_type]} or later, but got one of opset {version}", node.name)
    try:
        made = onnx.version_converter.convert_version(proto, OPSET)
    except (onnx.version_converter.ConvertError, RuntimeError) as error:
        raise Refused(f"expected a model that onnx converts from opset {version} to {OPSET}, but got: {message_of(error)}") from None
    # The converter infers sizes under names of its own: the model's take their place.
    del made.graph.value_info[:], made.graph.output[:]
    made.graph.value_info.extend(proto.graph.value_info)
    made.graph.output.extend(proto.graph.output)
    _name_nodes(made.graph, _makers(proto.graph))
    return made


def expand(proto: onnx.ModelProto) -> bool:
    """Changes the model; gives whether there was anything to do. The types of its values must have been inferred."""
    nodes = [node for node in nodes_of(proto.graph) if node.op_type in _FUNCTIONS and node.domain in ONNX]
    for node in nodes:  # onnx leaves attributes out of functions where they are left out of nodes
        given = {attribute.name for attribute in node.attribute}
        schema = onnx.defs.get_schema(node.op_type, opset_of(proto), "")
        node.attribute.extend(one.default_value for name, one in schema.attributes.items() if one.default_value.name and name not in given)
    if nodes:
        makers = _makers(proto.graph)
        for graph in (proto.graph, *(inner for node in nodes_of(proto.graph) for inner in graphs_of(node))):  # onnx knows no types of inner initialisers
            graph.value_info.extend(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in graph.initializer)
        proto.CopyFrom(onnx.inliner.inline_selected_functions(proto, [("", name) for name in _FUNCTIONS], inline_schema_functions=True))
        _name_nodes(proto.graph, makers)
    return bool(nodes)


def opset_of(proto: onnx.ModelProto) -> int | None:
    return next((one.version for one in proto.opset_import if one.domain in ONNX), None)


def _makers(graph: onnx.GraphProto) -> dict[str, str]:
    """The name of the node that makes each value."""
    return {name: node.name for node in nodes_of(graph) for name in node.output}


def _name_nodes(graph: onnx.GraphProto, makers: dict[str, str]) -> None:
    """onnx gives no names to nodes that it puts before one, or in the place of one: they have that of this one, which makes the last of
    what they lead to."""
    name = ""
    for node in reversed(graph.node):
        name = node.name or next((makers[made] for made in node.output if made in makers), name)
        node.name = name
        for inner in graphs_of(node):
            _name_nodes(inner, makers)
