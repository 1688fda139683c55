"""`MultiHeadAttention` of the domain `com.microsoft`, as ONNX Runtime's optimizer writes it: as products of matrices, masks and a Softmax,
which raising reads. Its numbers are those of ONNX Runtime on a CPU: a mask adds `mask_filter_value` to the scores of keys that it hides."""

from __future__ import annotations

import functools

import numpy as np
import onnx

from .attention import split_heads
from .builder import Builder, Refused, sizes_text

DOMAIN, NAME = "com.microsoft", "MultiHeadAttention"
_INPUTS = ("query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value", "past_sequence_length",
           "cache_indirection")
_KIND = onnx.defs.OpSchema.AttrType
_OPTIONS = {"num_heads": _KIND.INT, "mask_filter_value": _KIND.FLOAT, "scale": _KIND.FLOAT, "unidirectional": _KIND.INT}


@functools.lru_cache(maxsize=None)
def register() -> None:
    """Lets onnx check nodes of the op and infer the types and sizes of what they make."""
    if onnx.defs.has(NAME, domain=DOMAIN):
        return
    schema, option = onnx.defs.OpSchema, onnx.defs.OpSchema.FormalParameterOption
    floats = [f"tensor({name})" for name in ("float", "float16", "bfloat16", "double")]
    kinds = {name: "int32" if name in ("key_padding_mask", "past_sequence_length", "cache_indirection") else "T" for name in _INPUTS}
    inputs = [schema.FormalParameter(name, f"tensor({kind})" if kind != "T" else kind, param_option=option.Optional if number else option.Single)
              for number, (name, kind) in enumerate(kinds.items())]
    outputs = [schema.FormalParameter(name, "T", param_option=option.Optional if number else option.Single)
               for number, name in enumerate(("output", "present_key", "present_value", "qk"))]
    made = schema(NAME, DOMAIN, 1, inputs=inputs, outputs=outputs, type_constraints=[("T", floats, "")],
                  attributes=[schema.Attribute(name, kind, "", required=name == "num_heads") for name, kind in _OPTIONS.items()])
    made.set_type_and_shape_inference_function(_infer)
    onnx.defs.register_schema(made)


def _infer(context) -> None:
    kinds = [context.get_input_type(number) if number < context.get_num_inputs() else None for number in range(8)]
    shapes = [_dims(kind) for kind in kinds]
    query, key, value, past = shapes[0], shapes[1], shapes[2], shapes[6]
    heads = context.get_attribute("num_heads").i
    for number in range(context.get_num_outputs()):
        made = onnx.TypeProto()
        made.tensor_type.elem_type = kinds[0].tensor_type.elem_type
        if query is not None:
            packed = query if len(query) == 5 else key if key is not None and len(key) == 5 else None
            width = None if packed is None else packed[4]
            if number == 0:
                rows = value[2] if value is not None and len(value) == 3 else _times(heads, width if packed is not None else value and value[3])
                _add(made, [query[0], query[1], rows])
            elif number < 3:
                source = (key, value)[number - 1] if packed is None else packed
                new = source and source[2 if len(source) == 4 else 1]
                each = width if packed is not None else source and (source[3] if len(source) == 4 else _share(source[2], heads))
                _add(made, [query[0], heads, new if past is None else _plus(past[2], new), each])
        context.set_output_type(number, made)


def _dims(kind) -> list | None:
    """Sizes: numbers, names, or None."""
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in kind.tensor_type.shape.dim]


def _times(count: int, size):
    return count * size if isinstance(size, int) else None


def _share(size, count: int):
    return size // count if isinstance(size, int) else None


def _plus(a, b):
    return a + b if isinstance(a, int) and isinstance(b, int) else None


def _add(made, sizes) -> None:
    made.tensor_type.shape.SetInParent()
    for size in sizes:
        dim = made.tensor_type.shape.dim.add()
        if isinstance(size, int):
            dim.dim_value = size
        elif size:
            dim.dim_param = size


def multi_head(builder: Builder) -> bool:
    """Raises Refused for forms that ONNX Runtime has for GPUs alone, and for inputs that do not fit."""
    q, k, v = _heads(builder)
    past_key, past_value = builder.input(6), builder.input(7)
    if past_key:
        k, v = builder.op("Concat", past_key, k, axis=2), builder.op("Concat", past_value, v, axis=2)
    for number, present in ((1, k), (2, v)):
        builder.give(number, present)
    scale = builder.options.get("scale") or _width(builder) ** -0.5
    scores = builder.op("MatMul", builder.op("Mul", q, builder.number(scale, q)), builder.op("Transpose", k, perm=[0, 1, 3, 2]))
    if builder.input(5):
        scores = builder.op("Add", scores, builder.input(5))
    if builder.input(4):
        fill = builder.number(builder.options.get("mask_filter_value", -10000.0), scores)
        scores = builder.op("Add", scores, builder.op("Where", _kept(builder, k), builder.number(0, scores), fill))
    if builder.options.get("unidirectional"):
        query = builder.op("Unsqueeze", builder.places(q, 2), builder.constant([1]))
        if past_key:
            query = builder.op("Add", query, builder.size(past_key, 2))
        seen = builder.op("GreaterOrEqual", query, builder.op("Unsqueeze", builder.places(k, 2), builder.constant([0])))
        scores = builder.op("Where", seen, scores, builder.number(-np.inf, scores))
    made = builder.op("Transpose", builder.op("MatMul", builder.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    return builder.finish("Reshape", made, builder.constant([0, 0, _count(builder) * _width(builder, of_values=True)]))


def _count(builder: Builder) -> int:
    return builder.options["num_heads"]


def _packed(builder: Builder) -> tuple[str, int] | None:
    """The input that packs queries, keys and values on the axis before the last, and how many of them; None: none is packed."""
    for number, parts in ((0, 3), (1, 2)):
        if len(builder.sizes(builder.input(number)) or ()) == 5:
            return builder.input(number), parts
    return None


def _width(builder: Builder, of_values: bool = False) -> int:
    """Width of a head of queries, or of values."""
    packed, name = _packed(builder), builder.input(2 if of_values else 0)
    sizes = builder.sizes(packed[0] if packed and (of_values or packed[1] == 3) else name)
    width = sizes[-1] // _count(builder) if sizes and len(sizes) == 3 and sizes[-1] else sizes[-1] if sizes else None
    if width is None:
        raise Refused(f"expected {NAME} of heads of known width, but got {builder.describe_sizes(name)}")
    return width


def _heads(builder: Builder) -> tuple[str, str, str]:
    """Queries, keys and values as [batch, heads, length, width]."""
    _check(builder)
    heads, packed, bias = _count(builder), _packed(builder), builder.input(3)
    whole = [builder.input(number) for number in range(3)]
    if packed:
        name, parts = packed
        made = [builder.op("Transpose", builder.op("Gather", name, builder.constant(number), axis=3), perm=[0, 2, 1, 3]) for number in range(parts)]
        return tuple(made if parts == 3 else [split_heads(builder, whole[0], heads), *made])
    rows = [len(builder.sizes(name)) == 3 for name in whole]
    if bias:
        begin = 0
        for number, name in enumerate(whole):
            width = builder.sizes(name)[-1] if rows[number] else builder.sizes(name)[-1] * heads
            part = builder.op("Slice", bias, builder.constant([begin]), builder.constant([begin + width]))
            whole[number] = builder.op("Add", name, part) if rows[number] else name
            begin += width
    return tuple(split_heads(builder, name, heads) if row else name for name, row in zip(whole, rows))


def _check(builder: Builder) -> None:
    given = [name for number, name in enumerate(_INPUTS) if builder.input(number)]
    for name in ("past_sequence_length", "cache_indirection"):
        if name in given:
            raise Refused(f"expected {NAME} whose cache grows, but got {name}")
    if len(builder.node.output) > 3 and builder.node.output[3]:
        raise Refused(f"expected {NAME} of at most 3 results, but got one that gives qk")
    if ("past_key" in given) != ("past_value" in given):
        raise Refused(f"expected past_key and past_value together, but got {'past_key' if 'past_key' in given else 'past_value'} alone")
    ranks = [len(builder.sizes(builder.input(number)) or ()) if builder.input(number) else None for number in range(3)]
    if ranks not in ([3, 3, 3], [3, 4, 4], [3, 5, None], [5, None, None]):
        shapes = " and ".join(f"{name} {builder.describe_sizes(builder.input(number))}" for number, name in enumerate(_INPUTS[:3]) if builder.input(number))
        raise Refused(f"expected {NAME} of rows, of rows and heads, or of packed heads, but got {shapes}")
    if "bias" in given and _packed(builder):
        raise Refused(f"expected {NAME} of packed heads without a bias, but got one")
    if "bias" in given and any(builder.sizes(builder.input(number))[-1] is None for number in range(3)):
        raise Refused(f"expected {NAME} of known widths with a bias, but got a symbol")
    if builder.options.get("unidirectional"):
        lengths = [builder.numbered(builder.input(number), 2 if rank == 4 else 1) for number, rank in enumerate(ranks[:2]) if rank]
        if None in lengths or len(set(lengths)) > 1:
            raise Refused(f"expected unidirectional {NAME} of as many new keys as queries, but got {sizes_text(lengths)}")


def _kept(builder: Builder, k: str) -> str:
    """Truth values that broadcast to [batch, heads, queries, keys]."""
    mask = builder.input(4)
    rank = len(builder.sizes(mask) or ())
    if rank == 1:
        if builder.numbered(mask, 0) is None or builder.numbered(mask, 0) != builder.numbered(builder.input(0), 0):
            raise Refused(f"expected key_padding_mask with one number of keys for each sequence, but got {builder.describe_sizes(mask)}")
        lengths = builder.op("Cast", mask, to=onnx.TensorProto.INT64)
        return builder.op("Less", builder.places(k, 2), builder.op("Unsqueeze", lengths, builder.constant([1, 2, 3])))
    if rank not in (2, 3):
        raise Refused(f"expected key_padding_mask of 1 to 3 axes, but got {builder.describe_sizes(mask)}")
    axes = builder.constant([1, 2] if rank == 2 else [1])
    return builder.op("Greater", builder.op("Unsqueeze", mask, axes), builder.number(0, mask))
