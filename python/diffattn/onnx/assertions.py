"""Assertions about sizes that only a call knows, in the words of the model's own node."""

from __future__ import annotations

import onnx
from torch_mlir import ir

from ..text import shown
from .builder import FITS
from .origins import Origin, Origins
from .reshapes import create, integer, nodes_of_kind, shape_of, size_of


def assert_pads(module: ir.Operation, graph: onnx.GraphProto, origins: Origins) -> None:
    """Asserts that each Pad whose name ends with FITS takes nothing away from the last axis of its input, a mask of Attention.
    `module` is what torch-mlir's importer makes of `graph`, the function of its name."""
    for op, number in nodes_of_kind(module, graph, "Pad"):
        name = graph.node[number].name
        if name.endswith(FITS):
            _assert_fits(op, origins.of(name))


def _assert_fits(op: ir.Operation, origin: Origin) -> None:
    mask, pads = op.operands[0], op.operands[1]
    rank = shape_of(pads.type)[0] // 2
    with op.context, ir.InsertionPoint(op), op.location:
        own = size_of(mask, rank - 1)
        last = create("torch.aten.select.int", "!torch.vtensor<[1],si64>", [pads, integer(0), integer(2 * rank - 1)])
        keys = create("torch.aten.add.int", "!torch.int", [own, create("torch.aten.item", "!torch.int", [last])])
        fits = create("torch.aten.ge.int", "!torch.bool", [keys, own])
        named = f"{origin}: expected attn_mask {shown(origin.inputs[3])}".replace("{", "(").replace("}", ")")
        message = ir.StringAttr.get(f"{named} with a last axis of at most {{0}}, the number of keys, but got {{1}}")
        ir.Operation.create("torch.runtime.assert", [], [fits], {"message": message})
