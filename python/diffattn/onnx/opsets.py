"""Models of older opsets as those of opset 18, whose forms the other modules and torch-mlir read: lists that were attributes are inputs,
and ops that changed are others."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from .builder import ONNX, Builder, Refused, constants_of, own_marker, replace, types_of

OPSET = 18
#: The first opset in which element-wise ops broadcast as NumPy does.
OLDEST = 7


def upgrade(proto: onnx.ModelProto, infer) -> onnx.ModelProto:
    """`infer` gives a model with the sizes of its values, of which the ranks count. Raises Refused."""
    imported = next((one for one in proto.opset_import if one.domain in ONNX), None)
    if imported is None or imported.version >= OPSET:
        return proto
    if imported.version < OLDEST:
        raise Refused(f"expected a model of opset {OLDEST} or later, but got one of opset {imported.version}")
    inferred, made = infer(proto), onnx.ModelProto()
    made.CopyFrom(proto)
    _upgrade_graph(made.graph, inferred.graph, imported.version, {}, own_marker(made.graph))
    next(one for one in made.opset_import if one.domain in ONNX).version = OPSET
    return made


def _upgrade_graph(graph: onnx.GraphProto, inferred: onnx.GraphProto, opset: int, outer: dict, marker: str) -> None:
    known, constants = {**outer, **types_of(inferred)}, constants_of(graph)
    nodes = []
    for number, (node, told) in enumerate(zip(graph.node, inferred.node)):
        for attribute, other in zip(node.attribute, told.attribute):
            if attribute.HasField("g"):
                _upgrade_graph(attribute.g, other.g, opset, known, f"{marker}{number}{marker}")
        builder = Builder(node, known, constants, f"{marker}{number}{marker}")
        since, form = _FORMS.get(node.op_type, (0, None)) if node.domain in ONNX else (0, None)
        nodes += builder.nodes if opset < since and replace(builder, form, opset) else [node]
    del graph.node[:]
    graph.node.extend(nodes)


def _without(builder: Builder, *names: str) -> dict:
    return {name: value for name, value in builder.options.items() if name not in names}


def _axes(builder: Builder, opset: int) -> bool:
    """An attribute in old opsets; an input in new ones."""
    axes = builder.options.get("axes")
    if axes is None:
        return False
    return builder.finish(builder.node.op_type, builder.input(0), builder.constant(axes), **_without(builder, "axes"))


def _split(builder: Builder, opset: int) -> bool:
    node, sizes = builder.node, builder.options.get("split")
    if builder.input(1):
        return False
    given = [builder.input(0)] if sizes is None else [builder.input(0), builder.constant(sizes)]
    options = _without(builder, "split") | ({"num_outputs": len(node.output)} if sizes is None else {})
    return builder.finish_all("Split", *given, **options)


def _softmax(builder: Builder, opset: int) -> bool:
    """Over all axes from `axis` on, as one."""
    x, rank, kind = builder.input(0), len(builder.sizes(builder.input(0)) or ()), builder.node.op_type
    axis = builder.options.get("axis", 1)
    if rank and not -rank <= axis <= rank:
        raise Refused(f"expected {kind} along an axis of a tensor of {rank} axes, but got axis {axis}")
    axis += rank * (axis < 0)
    if rank and axis >= rank - 1:
        x = x if axis < rank else builder.op("Unsqueeze", x, builder.constant([rank]))
        made = builder.op(kind, x, axis=-1)
        return builder.finish("Identity", made) if axis < rank else builder.finish("Squeeze", made, builder.constant([rank]))
    if kind == "Hardmax" or not rank:
        flat = builder.op(kind, builder.op("Flatten", x, axis=axis), axis=-1)
        return builder.finish("Reshape", flat, builder.op("Shape", x))
    axes = builder.constant(list(range(axis, rank)))
    shifted = builder.op("Sub", x, builder.op("ReduceMax", x, axes, keepdims=1))
    powers = builder.op("Exp", shifted)
    total = builder.op("ReduceSum", powers, axes, keepdims=1)
    return builder.finish("Div", powers, total) if kind == "Softmax" else builder.finish("Sub", shifted, builder.op("Log", total))


def _clip(builder: Builder, opset: int) -> bool:
    limits = [builder.number(builder.options[name], builder.input(0)) if name in builder.options else "" for name in ("min", "max")]
    return builder.finish("Clip", builder.input(0), *limits)


def _pad(builder: Builder, opset: int) -> bool:
    pads, value = builder.constant(builder.options["pads"]), builder.options.get("value")
    given = [] if value is None else [builder.number(value, builder.input(0))]
    return builder.finish("Pad", builder.input(0), pads, *given, **_without(builder, "pads", "value"))


def _slice(builder: Builder, opset: int) -> bool:
    starts = builder.options["starts"]
    lists = [starts, builder.options["ends"], builder.options.get("axes", list(range(len(starts))))]
    return builder.finish("Slice", builder.input(0), *map(builder.constant, lists))


def _dropout(builder: Builder, opset: int) -> bool:
    if len(builder.node.output) > 1:
        raise Refused(f"expected Dropout without a mask, or of opset 12 and later, but got one of opset {opset} that makes {builder.node.output[1]!r}")
    return builder.finish("Identity", builder.input(0))


def _batch_normalization(builder: Builder, opset: int) -> bool:
    if not builder.options.get("spatial", 1):
        raise Refused("expected BatchNormalization over all places of a channel, but got spatial = 0")
    if any(builder.node.output[1:]):
        raise Refused(f"expected BatchNormalization that makes one result, but got one of opset {opset} that makes {list(builder.node.output)}")
    return builder.finish("BatchNormalization", *builder.node.input, **_without(builder, "spatial", "momentum"))


def _resize(builder: Builder, opset: int) -> bool:
    """Upsample, and Resize of opset 10: a place is that in the result divided by the scale."""
    if builder.node.op_type == "Resize" and opset > 10:
        given = [builder.input(0), *(builder.input(n) if not _is_empty(builder, builder.input(n)) else "" for n in (1, 2, 3))]
        return builder.finish("Resize", *_trimmed(given), **builder.options)
    x, told = builder.input(0), builder.options.get("scales")
    scales = builder.constant(told, np.float32) if told is not None else builder.input(1)
    known = np.array(told) if told is not None else builder.array(scales)
    mode = builder.options.get("mode", b"nearest").decode()
    if mode == "nearest" and (known is None or (known < 1).any() and (known > 1).any()):
        raise Refused(f"expected {builder.node.op_type} of opset {opset} by constant scales that are all at least 1 or all at most 1, but got "
                      f"{'others' if known is None else known.tolist()}")
    nearest = {"nearest_mode": "ceil" if (known < 1).any() else "floor"} if mode == "nearest" else {}
    return builder.finish("Resize", x, "", scales, mode=mode, coordinate_transformation_mode="asymmetric", **nearest)


def _is_empty(builder: Builder, name: str) -> bool:
    """Of a constant without elements, which is as none."""
    array = builder.array(name)
    return array is not None and not array.size


def _trimmed(names: list[str]) -> list[str]:
    while names and not names[-1]:
        names.pop()
    return names


def _scatter(builder: Builder, opset: int) -> bool:
    return builder.finish("ScatterElements", *builder.node.input, **builder.options)


def _roi_align(builder: Builder, opset: int) -> bool:
    return builder.finish("RoiAlign", *builder.node.input, **{"coordinate_transformation_mode": "output_half_pixel", **builder.options})


def _scan(builder: Builder, opset: int) -> bool:
    raise Refused(f"expected Scan of opset 9 and later, but got one of opset {opset}")


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
#: Of each op: the opset whose form `OPSET` has, and what makes it of older ones.
_FORMS = {**{f"Reduce{name}": (18, _axes) for name in _REDUCTIONS}, **{name: (13, _softmax) for name in ("Hardmax", "LogSoftmax", "Softmax")},
          "BatchNormalization": (14, _batch_normalization), "Clip": (11, _clip), "Dropout": (12, _dropout), "Pad": (11, _pad),
          "ReduceSum": (13, _axes), "Resize": (18, _resize), "RoiAlign": (16, _roi_align), "Scan": (9, _scan), "Scatter": (11, _scatter),
          "Slice": (10, _slice), "Split": (18, _split), "Squeeze": (13, _axes), "Unsqueeze": (13, _axes), "Upsample": (10, _resize)}
