"""ONNX's Attention as products of matrices, masks and a Softmax, which raising reads. The body that ONNX gives it would become a
function beside that of the graph, where torch-mlir guesses the sizes that are symbols."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from ..text import shown
from .builder import FITS, Builder, Refused, sizes_text


def attention(builder: Builder) -> bool:
    """Raises Refused for inputs that ONNX does not allow together, and for masks that do not fit the scores."""
    heads = _checked_heads(builder)
    q, k, v = (builder.input(number) for number in range(3))
    rows = len(builder.sizes(q)) == 3
    if rows:
        q, k, v = (split_heads(builder, one, count) for one, count in zip((q, k, v), (heads[0], heads[1], heads[1])))
    if builder.input(4):
        k, v = (builder.op("Concat", builder.input(number), one, axis=2) for number, one in ((4, k), (5, v)))
    for number, present in ((1, k), (2, v)):
        builder.give(number, present)
    keys, values = (_repeat(builder, one, q, heads) if heads[0] is None or heads[0] != heads[1] else one for one in (k, v))
    scores = builder.op("MatMul", builder.op("Mul", q, _scale(builder, q)), builder.op("Transpose", keys, perm=[0, 1, 3, 2]))
    mode, cap = builder.options.get("qk_matmul_output_mode", 0), builder.options.get("softcap", 0.0)
    if mode == 0:
        builder.give(3, scores)
    if cap > 0:
        limit = builder.number(cap, scores)
        scores = builder.op("Mul", builder.op("Tanh", builder.op("Div", scores, limit)), limit)
    if mode == 1:
        builder.give(3, scores)
    scores = _masked(builder, scores, q, k)
    if mode == 2:
        builder.give(3, builder.cast(scores, q))
    maps = builder.cast(_maps(builder, scores), q)
    if mode == 3:
        builder.give(3, maps)
    made = builder.op("MatMul", maps, builder.cast(values, q))
    if not rows:
        return builder.finish("Identity", made)
    width = builder.sizes(builder.input(2))[-1]
    joined = builder.constant([0, 0, -1 if width is None else width // heads[1] * heads[0]])
    return builder.finish("Reshape", builder.op("Transpose", made, perm=[0, 2, 1, 3]), joined)


def split_heads(builder: Builder, x: str, heads: int) -> str:
    """[batch, length, heads · width] as [batch, heads, length, width]."""
    return builder.op("Transpose", builder.op("Reshape", x, builder.constant([0, 0, heads, -1])), perm=[0, 2, 1, 3])


def _checked_heads(builder: Builder) -> list[int | None]:
    """The numbers of heads of queries and of keys; None: a symbol."""
    options, names = builder.options, [builder.input(number) for number in range(3)]
    shapes = [builder.sizes(name) for name in names]
    if None in shapes or {len(shape) for shape in shapes} not in ({3}, {4}):
        raise Refused(f"expected q, k and v of 3 axes each, or of 4, but got {_sizes_of_each(builder, names)}")
    if (mode := options.get("qk_matmul_output_mode", 0)) not in range(4):
        raise Refused(f"expected qk_matmul_output_mode from 0 to 3, but got {mode}")
    past_key, past_value, lengths = (builder.input(number) for number in (4, 5, 6))
    if bool(past_key) != bool(past_value):
        raise Refused(f"expected past_key and past_value together, but got {shown(past_key or past_value)} alone")
    if past_key and lengths:
        raise Refused(f"expected past_key or nonpad_kv_seqlen, but got both, {shown(past_key)} and {shown(lengths)}")
    if any(len(builder.sizes(name) or ()) != 4 for name in (past_key, past_value) if name):
        raise Refused(f"expected past_key and past_value of 4 axes, but got {_sizes_of_each(builder, [past_key, past_value])}")
    if len(shapes[0]) == 4:
        heads = [shape[1] for shape in shapes[:2]]
    else:
        heads = [options.get("q_num_heads", 0), options.get("kv_num_heads", 0)]
        divided = zip(shapes, (heads[0], heads[1], heads[1]))
        if not all(heads) or any(shape[2] is not None and shape[2] % count for shape, count in divided):
            raise Refused("expected q_num_heads and kv_num_heads that divide the widths of rows, but got "
                          f"{heads[0]} and {heads[1]} for {_sizes_of_each(builder, names)}")
    if None not in heads and (not all(heads) or heads[0] % heads[1]):
        raise Refused("expected a number of query heads that is a multiple of that of key heads, but got "
                      f"{heads[0]} and {heads[1]}")
    _check_mask(builder, heads[0])
    return heads


def _check_mask(builder: Builder, heads: int | None) -> None:
    mask, q = builder.input(3), builder.sizes(builder.input(0))
    if not mask:
        return
    sizes, length = builder.sizes(mask), _length(builder)
    if not sizes or len(sizes) > 4:
        raise Refused(f"expected attn_mask of 1 to 4 axes, but got {_sizes_of_each(builder, [mask])}")
    scores = [q[0], heads, q[-2], length]
    fits = all(size in (1, None) or full in (size, None) for size, full in zip(reversed(sizes[:-1]), reversed(scores[:-1])))
    if not fits or None not in (sizes[-1], length) and sizes[-1] > length:
        raise Refused(f"expected attn_mask that fits [batch, query heads, queries, keys] = {sizes_text(scores)}, whose last axis "
                      f"may be shorter, but got {_sizes_of_each(builder, [mask])}")


def _length(builder: Builder) -> int | None:
    """The number of keys, those of the past among them; None: a symbol is in it."""
    parts = [builder.sizes(builder.input(1))[-2], *([builder.sizes(builder.input(4))[2]] if builder.input(4) else [])]
    return None if None in parts else sum(parts)


def _sizes_of_each(builder: Builder, names: list[str]) -> str:
    return " and ".join(f"{shown(name)} {builder.describe_sizes(name)}" for name in names)


def _scale(builder: Builder, q: str) -> str:
    scale, width = builder.options.get("scale"), builder.sizes(builder.input(0))[-1]
    if scale is None and width is None:
        width = builder.op("Cast", builder.size(q, 3), to=onnx.TensorProto.FLOAT)
        return builder.cast(builder.op("Div", builder.number(1, width), builder.op("Sqrt", width)), q)
    if scale is None:
        scale = (width // builder.options["q_num_heads"] if len(builder.sizes(builder.input(0))) == 3 else width) ** -0.5
    return builder.number(scale, q)


def _repeat(builder: Builder, x: str, q: str, heads: list[int | None]) -> str:
    """Each key head for the query heads that share it."""
    batch, count, length, width = (builder.size(x, axis) for axis in range(4))
    if None in heads:
        every = builder.size(q, 1)
        share = builder.op("Div", every, count)
    else:
        count, every, share = (builder.constant([number]) for number in (heads[1], heads[0], heads[0] // heads[1]))
    each = builder.op("Concat", batch, count, share, length, width, axis=0)
    wide = builder.op("Expand", builder.op("Unsqueeze", x, builder.constant([2])), each)
    return builder.op("Reshape", wide, builder.op("Concat", batch, every, length, width, axis=0))


def _masked(builder: Builder, scores: str, q: str, k: str) -> str:
    """Scores of the type in which ONNX adds them and the mask; those of keys that a query does not see are -inf."""
    mask = builder.input(3)
    is_bool = builder.type(mask) == onnx.TensorProto.BOOL
    if mask and not is_bool:
        kinds = [helper.tensor_dtype_to_np_dtype(builder.type(one)) for one in (scores, mask)]
        kind = helper.np_dtype_to_tensor_dtype(np.promote_types(*kinds))
        scores, mask = (one if builder.type(one) == kind else builder.op("Cast", one, to=kind) for one in (scores, mask))
    none = builder.number(-np.inf, scores)
    for seen in _seen(builder, q, k):
        scores = builder.op("Where", seen, scores, none)
    if not mask:
        return scores
    mask = _padded(builder, mask, k)
    return builder.op("Where", mask, scores, none) if is_bool else builder.op("Add", scores, mask)


def _padded(builder: Builder, mask: str, k: str) -> str:
    """The mask with as many elements along its last axis as there are keys. Those behind its end are not seen, also where it has one
    element."""
    given, length = builder.sizes(builder.input(3)), _length(builder)
    axis = len(given) - 1
    parts = [builder.numbered(builder.input(1), -2), *([builder.numbered(builder.input(4), 2)] if builder.input(4) else [])]
    keys = None if None in parts else sum(parts)
    if keys is not None and builder.numbered(builder.input(3), axis) == keys:
        return mask
    # One for both maps of differential attention, which raising asks to have the same mask.
    known = ("padded mask", builder.input(3), builder.type(mask), keys)
    if keys is not None and known in builder.shared:
        return builder.shared[known]
    pads, is_known = [0] * (2 * axis + 1), None not in (given[axis], length)
    if is_known:
        behind = builder.constant([*pads, length - given[axis]])
    else:
        missing = builder.op("Sub", builder.size(k, 2), builder.size(mask, axis))
        behind = builder.op("Concat", builder.constant(pads), missing, axis=0)
    fill = builder.number(False if builder.type(mask) == onnx.TensorProto.BOOL else -np.inf, mask)
    builder.shared[known] = builder.op("Pad", mask, behind, fill, name=builder.node.name + ("" if is_known else FITS))
    return builder.shared[known]


def _seen(builder: Builder, q: str, k: str) -> list[str]:
    """Truth values for [.., queries, keys] or [batch, 1, queries, keys]."""
    options, lengths = builder.options, builder.input(6)
    before, after = (options.get(f"{side}_window_size", -1) for side in ("left", "right"))
    seen, key = [], builder.op("Unsqueeze", builder.places(k, 2), builder.constant([0]))
    if options.get("is_causal") or max(before, after) >= 0:
        query = builder.op("Unsqueeze", builder.places(q, 2), builder.constant([1]))
        if builder.input(4):
            query = builder.op("Add", query, builder.size(builder.input(4), 2))
        if lengths:
            # onnx would follow the elements of both sides of the sum, and refuse lists of other lengths; through Identity it does not.
            first = builder.op("Identity", builder.op("Sub", lengths, builder.size(q, 2)))
            query = builder.op("Add", query, builder.op("Unsqueeze", first, builder.constant([1, 2, 3])))
    if options.get("is_causal"):
        seen.append(builder.op("GreaterOrEqual", query, key))
    if before >= 0:
        seen.append(builder.op("GreaterOrEqual", key, builder.op("Sub", query, builder.constant([before]))))
    if after >= 0:
        seen.append(builder.op("GreaterOrEqual", builder.op("Add", query, builder.constant([after])), key))
    if lengths:
        seen.append(builder.op("Less", key, builder.op("Unsqueeze", lengths, builder.constant([1, 2, 3]))))
    return seen


def _maps(builder: Builder, scores: str) -> str:
    """A query that sees no key gives 0."""
    options = builder.options
    precision = options.get("softmax_precision") or builder.type(scores)
    scores = scores if precision == builder.type(scores) else builder.op("Cast", scores, to=precision)
    maps = builder.op("Softmax", scores, axis=-1)
    windows = [options.get(f"{side}_window_size", -1) for side in ("left", "right")]
    if not builder.input(3) and not builder.input(6) and max(windows) < 0:
        return maps
    hidden = builder.op("Equal", scores, builder.number(-np.inf, scores))
    empty = builder.op("ReduceMin", hidden, builder.constant([-1]), keepdims=1)
    return builder.op("Where", empty, builder.number(0, maps), maps)
