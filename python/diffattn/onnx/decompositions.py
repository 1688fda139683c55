"""ONNX ops that torch-mlir does not lower, or to ops which MLIR 22 does not parse, or with other numbers, or as raising does not read them,
as ops that serve."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from .attention import attention
from .builder import ONNX, Builder, Refused, constants_of, own_marker, types_of
from .elementwise import ELEMENTWISE
from .multihead import DOMAIN, NAME, multi_head
from .rearranging import REARRANGING
from .refused import refuse
from .sizes import Sizes
from .walk import graphs_of


def decompose(proto: onnx.ModelProto) -> bool:
    """Changes the graph, and those within; gives whether there was anything to do. The sizes of every value must have been inferred.
    Raises Refused."""
    return _decompose(proto.graph, {}, {}, own_marker(proto.graph), Sizes.followed(proto.graph).of)


def _decompose(graph: onnx.GraphProto, known: dict, constants: dict, marker: str, number_of) -> bool:
    """`known` and `constants`: types, and tensors of numbers, of values outside of the graph. `number_of`: as of Builder."""
    known = {**known, **types_of(graph)}
    constants = {**constants, **constants_of(graph)}
    nodes, changes, shared = [], False, {}
    for number, node in enumerate(graph.node):
        for inner in graphs_of(node):
            changes |= _decompose(inner, known, constants, f"{marker}{number}{marker}", number_of)
        builder = Builder(node, known, constants, f"{node.op_type}{marker}{number}{marker}", number_of, shared)
        if (node.domain in ONNX or (node.domain, node.op_type) in _FOREIGN) and _replace(builder):
            nodes.extend(builder.nodes)
            changes = True
        else:
            nodes.append(node)
    if changes:
        del graph.node[:]
        graph.node.extend(nodes)
    return changes


def _replace(builder: Builder) -> bool:
    """Whether other nodes take the place of that of `builder`."""
    try:
        if builder.node.domain not in ONNX:
            return _FOREIGN[builder.node.domain, builder.node.op_type](builder)
        refuse(builder)
        return builder.node.op_type in _DECOMPOSITIONS and _DECOMPOSITIONS[builder.node.op_type](builder)
    except Refused as error:
        error.name = builder.node.name
        raise


def _cumsum(builder: Builder) -> bool:
    """The sum over the places that count: at place i those up to i, without i itself if it is exclusive, from the other end if it is
    reversed."""
    x, constant = builder.input(0), builder.array(builder.input(1))
    rank = len(builder.sizes(x) or ())
    if constant is None or not -rank <= constant.item() < rank:
        return False
    axis = constant.item() % rank
    compare = ("Less" if builder.options.get("exclusive") else "LessOrEqual") if not builder.options.get("reverse") else (
        "Greater" if builder.options.get("exclusive") else "GreaterOrEqual")
    places = builder.places(x, axis)
    # [place of the sum, place of the term], with axes of 1 behind them for those behind `axis`.
    counts = builder.op(compare, builder.op("Unsqueeze", places, builder.constant([0])), builder.op("Unsqueeze", places, builder.constant([1])))
    if axis < rank - 1:
        counts = builder.op("Unsqueeze", counts, builder.constant(list(range(2, rank - axis + 1))))
    terms = builder.op("Where", counts, builder.op("Unsqueeze", x, builder.constant([axis])), builder.number(0, x))
    return builder.finish("ReduceSum", terms, builder.constant([axis + 1]), keepdims=0)


def _reciprocal(builder: Builder) -> bool:
    """torch-mlir refuses an element of 0."""
    return builder.finish("Div", builder.number(1, builder.input(0)), builder.input(0))


def _normalization(builder: Builder) -> bool:
    """Normalizes instances, or groups of channels, over all places, in f32 where `x` is narrower. torch-mlir divides by a product of sizes in which
    those it does not know are -1, and lowers no groups; ONNX's function for these loses variances that are small beside means."""
    x, rank, groups = builder.input(0), len(builder.sizes(builder.input(0)) or ()), builder.options.get("num_groups")
    if rank < (2 if groups else 3):
        return False
    wide = builder.op("Cast", x, to=onnx.TensorProto.FLOAT) if builder.type(x) in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16) else x
    rows = builder.op("Reshape", wide, builder.constant([0, groups, -1])) if groups else wide
    places = builder.constant([2] if groups else list(range(2, rank)))
    centred = builder.op("Sub", rows, builder.op("ReduceMean", rows, places, keepdims=1))
    variance = builder.op("ReduceMean", builder.op("Mul", centred, centred), places, keepdims=1)
    root = builder.op("Sqrt", builder.op("Add", variance, builder.number(builder.options.get("epsilon", 1e-5), variance)))
    normed = builder.op("Div", centred, root)
    if groups:
        normed = builder.op("Reshape", normed, builder.op("Shape", x))
    scale, bias = (builder.cast(builder.input(number), wide) for number in (1, 2))
    if rank > 2:
        behind = builder.constant(list(range(1, rank - 1)))
        scale, bias = (builder.op("Unsqueeze", one, behind) for one in (scale, bias))
    return builder.finish("Identity", builder.cast(builder.op("Add", builder.op("Mul", normed, scale), bias), x))


def _softplus(builder: Builder) -> bool:
    """Folds the softplus of a constant, such as a learned number: torch-mlir crashes there."""
    value = builder.array(builder.input(0))
    if value is None:
        return False
    made = np.logaddexp(value.astype(np.float64), 0).astype(value.dtype)
    return builder.finish("Constant", value=numpy_helper.from_array(made))


def _dequantize(builder: Builder) -> bool:
    """Replaces DequantizeLinear with scales of channels, of which torch-mlir makes wrong numbers, or without a zero point, which it refuses."""
    x, scale, zero = (builder.input(number) for number in range(3))
    if zero and builder.is_number(scale) and builder.is_number(zero):
        return False
    if zero:
        x = builder.op("Sub", *(builder.op("Cast", one, to=onnx.TensorProto.INT32) for one in (x, _along(builder, zero))))
    return builder.finish("Mul", builder.cast(x, scale), _along(builder, scale))


def _along(builder: Builder, name: str) -> str:
    """A scale or zero point, which has one number, or one for each place of `axis`."""
    rank, sizes, axis = len(builder.sizes(builder.input(0)) or ()), builder.sizes(name) or (), builder.options.get("axis", 1)
    if builder.is_number(name) and len(sizes) <= rank:
        return name
    if not -rank <= axis < rank or len(sizes) != 1:
        raise Refused(f"expected DequantizeLinear along an axis, not by blocks, but got axis {axis} of "
                      f"{builder.describe_sizes(builder.input(0))} and scales of {builder.describe_sizes(name)}")
    behind = list(range(1, rank - axis % rank))
    return builder.op("Unsqueeze", name, builder.constant(behind)) if behind else name


_DECOMPOSITIONS = {**ELEMENTWISE, **REARRANGING, "Attention": attention, "CumSum": _cumsum, "DequantizeLinear": _dequantize,
                   "GroupNormalization": _normalization, "InstanceNormalization": _normalization, "Reciprocal": _reciprocal, "Softplus": _softplus}
#: Ops of other domains.
_FOREIGN = {(DOMAIN, NAME): multi_head}
