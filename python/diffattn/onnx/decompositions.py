"""ONNX ops that torch-mlir does not lower, or to ops which MLIR 22 does not parse, or with other numbers, or as raising does not read them,
as ops that serve."""

from __future__ import annotations

import functools

import numpy as np
import onnx
from onnx import numpy_helper

from .attention import attention, split_heads
from .builder import ONNX, Builder, Refused, constants_of, numbers_of, own_marker, replace, types_of
from .elementwise import ELEMENTWISE
from .quantized import QUANTIZED
from .rearranging import REARRANGING
from .recurrent import RECURRENT
from .reductions import REDUCTIONS
from .sampling import SAMPLING
from .sizes import Sizes
from .windows import WINDOWS


def decompose(proto: onnx.ModelProto) -> bool:
    """Changes the graph, and those within; gives whether there was anything to do. The sizes of every value must have been inferred.
    Raises Refused."""
    return _decompose(proto.graph, {}, {}, own_marker(proto.graph), _numbers(proto.graph))


def _numbers(graph: onnx.GraphProto):
    """What gives the number that stands for a size of the graph."""
    @functools.cache
    def sizes() -> Sizes:
        made = Sizes(graph, divides=False)
        for node in graph.node:
            made.follow(node)
        return made

    return lambda dim: sizes().of(dim)


def _decompose(graph: onnx.GraphProto, known: dict, constants: dict, marker: str, number_of) -> bool:
    """`known` and `constants`: types, and tensors of numbers, of values outside of the graph. `number_of`: as of Builder."""
    known = {**known, **types_of(graph)}
    constants = {**constants, **constants_of(graph)}
    nodes, changes, shared = [], False, {}
    for number, node in enumerate(graph.node):
        function = _DECOMPOSITIONS.get(node.op_type) if node.domain in ONNX else None
        for attribute in node.attribute:
            if attribute.HasField("g"):
                changes |= _decompose(attribute.g, known, constants, f"{marker}{number}{marker}", number_of)
        builder = Builder(node, known, constants, f"{node.op_type}{marker}{number}{marker}", number_of, shared)
        if function is not None and replace(builder, function):
            nodes.extend(builder.nodes)
            changes = True
        else:
            nodes.append(node)
    if changes:
        del graph.node[:]
        graph.node.extend(nodes)
    return changes


def _cumsum(builder: Builder) -> bool:
    """The sum over the places that count: at place i those up to i, without i itself if it is exclusive, from the other end if it is
    reversed."""
    x, axis = builder.input(0), builder.integer(builder.input(1))
    rank = len(builder.sizes(x) or ())
    if axis is None or not -rank <= axis < rank:
        return False
    axis %= rank
    compare = ("Less" if builder.options.get("exclusive") else "LessOrEqual") if not builder.options.get("reverse") else (
        "Greater" if builder.options.get("exclusive") else "GreaterOrEqual")
    places = builder.places(x, axis)
    # [place of the sum, place of the term], with axes of 1 behind them for those behind `axis`.
    counts = builder.op(compare, builder.op("Unsqueeze", places, builder.constant([0])), builder.op("Unsqueeze", places, builder.constant([1])))
    if axis < rank - 1:
        counts = builder.op("Unsqueeze", counts, builder.constant(list(range(2, rank - axis + 1))))
    terms = builder.op("Where", counts, builder.op("Unsqueeze", x, builder.constant([axis])), builder.number(0, x))
    return builder.finish("ReduceSum", terms, builder.constant([axis + 1]), keepdims=0)


def _rms_normalization(builder: Builder) -> bool:
    """In f32, unless `stash_type` says otherwise, over the last axes from `axis` on."""
    x, rank = builder.input(0), len(builder.sizes(builder.input(0)) or ())
    axis, inner = builder.options.get("axis", -1), builder.options.get("stash_type", onnx.TensorProto.FLOAT)
    if not -rank <= axis < rank:
        return False
    wide = builder.op("Cast", x, to=inner)
    mean = builder.op("ReduceMean", builder.op("Mul", wide, wide), builder.constant(list(range(axis % rank, rank))), keepdims=1)
    root = builder.op("Sqrt", builder.op("Add", mean, builder.number(builder.options.get("epsilon", 1e-5), mean)))
    normed = builder.op("Mul", wide, _inverse(builder, root))
    return builder.finish("Mul", builder.cast(normed, x), builder.input(1))


def _reciprocal(builder: Builder) -> bool:
    return builder.finish("Identity", _inverse(builder, builder.input(0)))


def _instance_normalization(builder: Builder) -> bool:
    """Over all axes behind the channels, in f32 where `x` is narrower. torch-mlir divides by a product of sizes in which those it does
    not know are -1."""
    x, rank = builder.input(0), len(builder.sizes(builder.input(0)) or ())
    if rank < 3:
        return False
    channels = builder.constant(list(range(1, rank - 1)))
    narrow = builder.type(x) in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    wide = builder.op("Cast", x, to=onnx.TensorProto.FLOAT) if narrow else x
    normed = _centred_and_scaled(builder, wide, list(range(2, rank)))
    scale, bias = (builder.op("Unsqueeze", builder.cast(builder.input(number), wide), channels) for number in (1, 2))
    return builder.finish_as(builder.op("Add", builder.op("Mul", normed, scale), bias), x)


def _group_normalization(builder: Builder) -> bool:
    """Over the channels of a group and all axes behind them, in f32, unless `stash_type` says otherwise. onnx infers no sizes of it."""
    x, groups = builder.input(0), builder.options.get("num_groups")
    rank = len(builder.sizes(x) or ())
    if rank < 2 or not groups:
        return False
    wide = builder.op("Cast", x, to=builder.options.get("stash_type", onnx.TensorProto.FLOAT))
    normed = _centred_and_scaled(builder, builder.op("Reshape", wide, builder.constant([0, groups, -1])), [2])
    normed = builder.op("Reshape", builder.cast(normed, x), builder.op("Shape", x))
    scale, bias = builder.input(1), builder.input(2)
    if rank > 2:
        behind = builder.constant(list(range(1, rank - 1)))
        scale, bias = (builder.op("Unsqueeze", one, behind) for one in (scale, bias))
    return builder.finish("Add", builder.op("Mul", normed, scale), bias)


def _centred_and_scaled(builder: Builder, x: str, axes: list[int]) -> str:
    """To a mean of 0 and a variance of 1 over `axes`, but for `epsilon`."""
    over = builder.constant(axes)
    centred = builder.op("Sub", x, builder.op("ReduceMean", x, over, keepdims=1))
    variance = builder.op("ReduceMean", builder.op("Mul", centred, centred), over, keepdims=1)
    root = builder.op("Sqrt", builder.op("Add", variance, builder.number(builder.options.get("epsilon", 1e-5), variance)))
    return builder.op("Mul", centred, _inverse(builder, root))


def _inverse(builder: Builder, x: str) -> str:
    """1 / x: torch-mlir refuses an element of 0 in `Reciprocal`."""
    return builder.op("Div", builder.number(1, x), x)


def _softplus(builder: Builder) -> bool:
    """Of a constant, a learned number say, the constant: torch-mlir's program crashes there."""
    value = builder.array(builder.input(0))
    if value is None:
        return False
    made = np.logaddexp(value.astype(np.float64), 0).astype(value.dtype)
    return builder.finish("Constant", value=numpy_helper.from_array(made))


def _softsign(builder: Builder) -> bool:
    x = builder.input(0)
    return builder.finish("Div", x, builder.op("Add", builder.op("Abs", x), builder.number(1, x)))


def _rotary_embedding(builder: Builder) -> bool:
    """Of heads [batch, heads, length, width], or side by side in rows, whose first elements are turned in pairs by cosines and sines [batch,
    length, pairs], or by rows of tables: one of each half, or neighbours."""
    x, cos, sin, ids = (builder.input(number) for number in range(4))
    options, sizes = builder.options, builder.sizes(x) or ()
    heads = options.get("num_heads", 0)
    rows = len(sizes) == 3
    if len(sizes) not in (3, 4) or not sizes[-1] or rows and (not heads or sizes[-1] % heads):
        raise Refused(f"expected RotaryEmbedding of [batch, heads, length, width], or of rows and num_heads, but got sizes {list(sizes)} and num_heads {heads}")
    width = sizes[-1] // heads if rows else sizes[-1]
    turned, whole = options.get("rotary_embedding_dim", 0) or width, x
    if turned % 2 or turned > width:
        raise Refused(f"expected RotaryEmbedding of an even number of up to {width} elements, but got {turned}")
    if rows:
        whole = split_heads(builder, x, heads)
    tables = [builder.op("Gather", table, ids, axis=0) for table in (cos, sin)] if ids else [cos, sin]
    cos, sin = (builder.op("Unsqueeze", table, builder.constant([1])) for table in tables)

    def part(begin: int, end: int, step: int = 1) -> str:
        return builder.op("Slice", whole, *(builder.constant([number]) for number in (begin, end, 3, step)))

    a, b = (part(n, turned, 2) for n in (0, 1)) if options.get("interleaved") else (part(n, n + turned // 2) for n in (0, turned // 2))
    pair = [builder.op("Sub", builder.op("Mul", cos, a), builder.op("Mul", sin, b)), builder.op("Add", builder.op("Mul", sin, a), builder.op("Mul", cos, b))]
    if options.get("interleaved"):
        joined = builder.op("Concat", *(builder.op("Unsqueeze", one, builder.constant([4])) for one in pair), axis=4)
        pair = [builder.op("Reshape", joined, builder.constant([0, 0, 0, turned]))]
    parts = [*pair, *([part(turned, width)] if turned < width else [])]
    if not rows:
        return builder.finish("Concat", *parts, axis=3)
    made = builder.op("Transpose", builder.op("Concat", *parts, axis=3), perm=[0, 2, 1, 3])
    return builder.finish("Reshape", made, builder.constant([0, 0, heads * width]))


def _mean_variance_normalization(builder: Builder) -> bool:
    """onnx infers no sizes of it."""
    x, axes = builder.input(0), builder.constant(builder.options.get("axes", [0, 2, 3]))
    wide = builder.op("Cast", x, to=onnx.TensorProto.FLOAT) if builder.type(x) in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16) else x
    centred = builder.op("Sub", wide, builder.op("ReduceMean", wide, axes, keepdims=1))
    deviation = builder.op("Sqrt", builder.op("ReduceMean", builder.op("Mul", centred, centred), axes, keepdims=1))
    return builder.finish_as(builder.op("Div", centred, builder.op("Add", deviation, builder.number(1e-9, wide))), x)


def _lp_normalization(builder: Builder) -> bool:
    """What has a norm of 0 is 0."""
    x, axis = builder.input(0), builder.constant([builder.options.get("axis", -1)])
    norm = builder.op("ReduceL1" if builder.options.get("p", 2) == 1 else "ReduceL2", x, axis, keepdims=1)
    zero = builder.number(0, x)
    return builder.finish("Where", builder.op("Equal", norm, zero), zero, builder.op("Div", x, norm))


def _cross_entropy(builder: Builder) -> bool:
    """torch-mlir divides a mean by weights by 0."""
    if builder.input(2) and builder.options.get("reduction", b"mean") == b"mean":
        raise Refused("expected SoftmaxCrossEntropyLoss without weights, or another reduction, but got reduction mean and the weights "
                      f"{builder.input(2)!r}")
    return False


def _loop(builder: Builder) -> bool:
    """torch-mlir runs every iteration, whatever the body says."""
    body, names = builder.options["body"], set()
    made = {name: node for node in body.node for name in node.output}
    name = body.output[0].name
    while name in made and made[name].op_type in ("Identity", "Cast"):
        name = made[name].input[0]
    names.update(value.name for value in body.input[1:2])
    value = numbers_of(made[name]) if name in made else builder.array(name)
    goes_on = name in names or value is not None and bool(value.all())
    first = builder.array(builder.input(1)) if builder.input(1) else np.array(True)
    if not goes_on or first is None or not first.all() or not builder.input(0):
        raise Refused("expected Loop that ends by its number of iterations alone, but got one with a condition that "
                      f"{'its body' if not goes_on else 'the graph'} decides")
    return False


_DECOMPOSITIONS = {**ELEMENTWISE, **QUANTIZED, **REARRANGING, **RECURRENT, **REDUCTIONS, **SAMPLING, **WINDOWS,
                   "Attention": attention, "CumSum": _cumsum, "GroupNormalization": _group_normalization,
                   "InstanceNormalization": _instance_normalization, "Loop": _loop, "LpNormalization": _lp_normalization,
                   "MeanVarianceNormalization": _mean_variance_normalization, "RMSNormalization": _rms_normalization,
                   "Reciprocal": _reciprocal, "RotaryEmbedding": _rotary_embedding,
                   "SoftmaxCrossEntropyLoss": _cross_entropy, "Softplus": _softplus, "Softsign": _softsign}
