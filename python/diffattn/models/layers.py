"""The layers that models share, each a function that writes its ops into a `Function`.

Rows are 2-D: `[M, D]` with M = batch times length. Sums, norms, vectors of weights and the residual stream are f32; what
goes into a matrix product has the element type of the weights, and the product itself is f32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .mlir_text import Dim, Function, Value, float_attr

if TYPE_CHECKING:
    from .probe import Probe

#: Names of transformers, with what they are where that has another name.
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "quick_gelu": "quick_gelu", "gelu": "gelu", "gelu_python": "gelu",
                "gelu_pytorch_tanh": "gelu_tanh", "gelu_python_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
                "gelu_accurate": "gelu_tanh", "relu": "relu", "relu2": "relu2", "relu6": "relu6", "leaky_relu": "leaky_relu",
                "sigmoid": "sigmoid", "tanh": "tanh", "mish": "mish", "linear": "linear"}
ACTIVATIONS = tuple(_ACTIVATIONS)


def lambda_init(depth: int) -> float:
    """The constant part of lambda in the layer with 0-based index `depth`."""
    return 0.8 - 0.6 * math.exp(-0.3 * depth)


def cast(f: Function, x: Value, elem: str) -> Value:
    """`x` with another float type."""
    if x.elem == elem:
        return x
    loops = " ".join(f"i{axis}" for axis in range(len(x.dims)))
    return f.generic(f"{loops} -> {loops}", [x], f.empty(x.dims, elem), lambda a, o: f.convert(a, o.elem))


def row_sum(f: Function, x: Value, *, squared: bool) -> Value:
    """The sum, or the sum of squares, of each row of `[M, D]`, f32."""

    def add(a: Value, total: Value) -> Value:
        return f.scalar("arith.addf", total, f.scalar("arith.mulf", a, a) if squared else a)

    return f.generic("m k -> m", [x], f.fill(f.f32(0), [x.dims[0]]), add)


def inverse_root(f: Function, x: Value, eps: float, *, outside: bool = False) -> Value:
    """`1 / sqrt(mean square + eps)` of each row, or `1 / (sqrt(mean square) + eps)`: once a row, not once an element."""

    def invert(total: Value, _: Value) -> Value:
        mean = f.scalar("arith.divf", total, f.f32(x.dims[1]))
        if outside:
            root = f.scalar("arith.addf", f.scalar("math.sqrt", mean), f.f32(eps))
        else:
            root = f.scalar("math.sqrt", f.scalar("arith.addf", mean, f.f32(eps)))
        return f.scalar("arith.divf", f.f32(1), root)

    return f.generic("m -> m", [row_sum(f, x, squared=True)], f.empty([x.dims[0]], "f32"), invert)


def mean_over_length(f: Function, x: Value) -> Value:
    """The mean over the second axis of `[B, T, K]`."""
    batch, length, width = x.dims
    total = f.generic("b t k -> b k", [x], f.fill(f.f32(0), [batch, width]),
                      lambda a, total: f.scalar("arith.addf", total, a))
    count = f.to_f32(f.index(length))
    return f.generic("b k -> b k", [total], f.empty(total.dims, "f32"), lambda a, _: f.scalar("arith.divf", a, count))


def max_over_length(f: Function, x: Value) -> Value:
    """The largest number over the second axis of `[B, T, K]`; 0xFF800000 is minus infinity."""
    batch, _, width = x.dims
    return f.generic("b t k -> b k", [x], f.fill(f.constant("0xFF800000", "f32"), [batch, width]),
                     lambda a, most: f.scalar("arith.maximumf", most, a))


def rms_norm(f: Function, x: Value, weight: Value, eps: float, elem: str, *, outside: bool = False) -> Value:
    """Rows divided by their root mean square, times `weight`; `outside` adds eps to the root, not under it."""

    def scale(value: Value, factor: Value, w: Value, out: Value) -> Value:
        value = f.scalar("arith.mulf", value, factor)
        return f.convert(f.scalar("arith.mulf", value, w), out.elem)

    factors = inverse_root(f, x, eps, outside=outside)
    return f.generic("m k, m, k -> m k", [x, factors, weight], f.empty(x.dims, elem), scale)


def layer_norm(f: Function, x: Value, weight: Value, bias: Value, eps: float, elem: str) -> Value:
    """Rows without their mean, divided by their standard deviation, times `weight` plus `bias`."""
    width = f.f32(x.dims[1])
    mean = f.generic("m -> m", [row_sum(f, x, squared=False)], f.empty([x.dims[0]], "f32"),
                     lambda total, _: f.scalar("arith.divf", total, width))
    centred = f.generic("m k, m -> m k", [x, mean], f.empty(x.dims, "f32"),
                        lambda a, m, _: f.scalar("arith.subf", a, m))

    def scale(value: Value, factor: Value, w: Value, b: Value, out: Value) -> Value:
        value = f.scalar("arith.mulf", f.scalar("arith.mulf", value, factor), w)
        return f.convert(f.scalar("arith.addf", value, b), out.elem)

    factors = inverse_root(f, centred, eps)
    return f.generic("m k, m, k, k -> m k", [centred, factors, weight, bias], f.empty(x.dims, elem), scale)


def linear(f: Function, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """`x * weight^T + bias` in f32."""
    if bias is None:
        return f.matmul(x, weight)
    dims = [x.dims[0], weight.dims[0]]
    return f.matmul(x, weight, f.generic("n -> m n", [bias], f.empty(dims, "f32"), lambda b, _: b))


def linear_onto(f: Function, residual: Value, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """`residual + x * weight^T + bias` in f32; the residual's buffer is taken."""
    if bias is not None:
        residual = add_bias(f, residual, bias)
    return f.matmul(x, weight, residual)


def sigmoid(f: Function, x: Value) -> Value:
    one = f.f32(1)
    return f.scalar("arith.divf", one, f.scalar("arith.addf", one, f.scalar("math.exp", f.scalar("arith.negf", x))))


def activate(f: Function, kind: str, x: Value) -> Value:
    """The activation of an f32 scalar."""

    def times(a: Value, b: Value | float) -> Value:
        return f.scalar("arith.mulf", a, f.f32(b) if isinstance(b, float) else b)

    def plus(a: Value, b: Value | float) -> Value:
        return f.scalar("arith.addf", a, f.f32(b) if isinstance(b, float) else b)

    def larger(a: Value, b: Value | float) -> Value:
        return f.scalar("arith.maximumf", a, f.f32(b) if isinstance(b, float) else b)

    form = _ACTIVATIONS[kind]
    if form == "silu":
        return times(x, sigmoid(f, x))
    if form == "quick_gelu":
        return times(x, sigmoid(f, times(x, 1.702)))
    if form == "relu":
        return larger(x, 0.0)
    if form == "relu2":
        positive = larger(x, 0.0)
        return times(positive, positive)
    if form == "relu6":
        return f.scalar("arith.minimumf", larger(x, 0.0), f.f32(6.0))
    if form == "leaky_relu":
        return larger(x, times(x, 0.01))
    if form == "sigmoid":
        return sigmoid(f, x)
    if form == "tanh":
        return f.scalar("math.tanh", x)
    if form == "mish":
        small = f.scalar("math.log1p", f.scalar("math.exp", f.scalar("arith.negf", f.scalar("math.absf", x))))
        return times(x, f.scalar("math.tanh", plus(larger(x, 0.0), small)))
    if form == "linear":
        return x
    if form == "gelu":
        inner = f.scalar("math.erf", times(x, math.sqrt(0.5)))
    else:
        inner = f.scalar("math.tanh", times(plus(x, times(times(times(x, x), x), 0.044715)), math.sqrt(2 / math.pi)))
    return times(times(x, 0.5), plus(inner, 1.0))


def gated(f: Function, kind: str, gate: Value, up: Value, elem: str) -> Value:
    """`activation(gate) * up`."""
    return f.generic("m k, m k -> m k", [gate, up], f.empty(gate.dims, elem),
                     lambda g, u, o: f.convert(f.scalar("arith.mulf", activate(f, kind, g), u), o.elem))


def activated(f: Function, kind: str, x: Value, out: Value) -> Value:
    loops = " ".join(f"i{axis}" for axis in range(len(x.dims)))
    return f.generic(f"{loops} -> {loops}", [x], out, lambda a, o: f.convert(activate(f, kind, a), o.elem))


def add_bias(f: Function, x: Value, bias: Value) -> Value:
    """`x + bias`, in place of x."""
    return f.generic("n -> m n", [bias], x, lambda b, r: f.scalar("arith.addf", r, b))


def check_ids(f: Function, ids: Value, limit: int) -> None:
    """An error of the run unless every id of `[M]` is in the vocabulary."""

    def narrow(i: Value, fine: Value) -> Value:
        # As unsigned numbers, negative ids are large too.
        return f.scalar("arith.andi", fine, f.compare("ult", i, f.i64(limit)))

    fine = f.generic("m ->", [ids], f.rank0(f.true()), narrow)
    f.require(f.extract(fine), f"expected every token id to be at least 0 and below {limit}")


def embed(f: Function, ids: Value, weight: Value) -> Value:
    """The rows of `weight` that the ids `[M]` name, f32. An id outside reads the nearest row: `check_ids` reports it."""
    last, zero = f.i64(weight.dims[0] - 1), f.i64(0)

    def read(i: Value, _: Value) -> Value:
        i = f.emit(f"arith.maxsi {i}, {zero} : i64", "i64")
        row = f.to_index(f.emit(f"arith.minsi {i}, {last} : i64", "i64"))
        return f.convert(f.extract(weight, row, f.loop_index(1)), "f32")

    return f.generic("m -> m k", [ids], f.empty([ids.dims[0], weight.dims[1]], "f32"), read)


def pick_rows(f: Function, x: Value, rows: Value) -> Value:
    """Row `rows[b]` of the f32 tensor `[M, D]` for each b; `rows` holds indices."""
    return f.generic("b -> b k", [rows], f.empty([rows.dims[0], x.dims[1]], "f32"),
                     lambda r, _: f.extract(x, r, f.loop_index(1)))


def vector_lambda(f: Function, vectors: Sequence[Value], init: Value) -> Value:
    """`exp(q1 . k1) - exp(q2 . k2) + init` of four vectors, as a tensor of rank 0."""

    def exp_dot(a: Value, b: Value) -> Value:
        def add(x: Value, y: Value, total: Value) -> Value:
            product = f.scalar("arith.mulf", x, y)
            return f.scalar("arith.addf", total, product)

        return f.scalar("math.exp", f.extract(f.generic("d, d ->", [a, b], f.fill(f.f32(0), []), add)))

    q1, k1, q2, k2 = vectors
    return f.rank0(f.scalar("arith.addf", f.scalar("arith.subf", exp_dot(q1, k1), exp_dot(q2, k2)), init))


def split_pairs(f: Function, x: Value, pairing: str) -> tuple[Value, Value]:
    """The two maps of `[B, T, 2n, w]` as strided views `[B, T, n, w]`.

    `adjacent` pairs heads 2j and 2j + 1, `halves` pairs heads j and j + n; `shared` has one head for both maps.
    """
    return _pair_views(f, x, pairing, [], list(x.dims[:2]))


def split_heads(f: Function, x: Value, first: int) -> tuple[Value, Value]:
    """The `first` heads of `[B, T, heads, w]` and those behind them, as views."""
    *lead, heads, width = x.dims
    return (f.slice(x, [0, 0, 0, 0], [*lead, first, width]), f.slice(x, [0, 0, first, 0], [*lead, heads - first, width]))


def split_cache(f: Function, cache: Value, pairing: str, layer: Value, batch: Dim, length: Dim) -> tuple[Value, Value]:
    """The two maps of the first `length` keys of a layer in a cache `[L, B, C, heads, w]`.

    Cut from the whole cache: a slice that undoes an insertion would be folded to what was inserted, and bufferization
    would then see a read of the old value after the write and copy it.
    """
    return _pair_views(f, cache, pairing, [layer], [batch, length])


def _pair_views(f: Function, x: Value, pairing: str, lead: list[Value], size: list[Dim]) -> tuple[Value, Value]:
    heads, width = x.dims[-2:]
    first = [*lead, 0, 0]
    ones, drop = [1] * len(lead), list(range(len(lead)))
    if pairing == "shared":
        both = f.slice(x, [*first, 0, 0], [*ones, *size, heads, width], drop) if lead else x
        return both, both
    axis, count = len(first), heads // 2
    pairs = f.expand(x, axis, [2, count] if pairing == "halves" else [count, 2])
    views = []
    for m in (0, 1):
        at, cut = ([m, 0], [1, count]) if pairing == "halves" else ([0, m], [count, 1])
        gone = axis if pairing == "halves" else axis + 1
        views.append(f.slice(pairs, [*first, *at, 0], [*ones, *size, *cut, width], [*drop, gone]))
    return tuple(views)


def attention(
    f: Function,
    q: tuple[Value, Value],
    k: tuple[Value, Value],
    v: Value,
    lam: Value,
    *,
    scale: float,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    norm_weight: Value | None = None,
    norm: bool = False,
    norm_eps: float = 1e-5,
    out_scale: float = 1.0,
    lambda_act: str = "identity",
    kv_len: Value | None = None,
    q_offset: Value | None = None,
    block_table: Value | None = None,
    out: Value | None = None,
    probe: Probe | None = None,
) -> Value:
    """Adds one `diffattn.attention` on `[B, T, heads, width]` views. With `block_table` `[B, M]`, keys and values are
    pages `[P, S, heads, width]`; the result is `[B, Tq, Hs, dv]`. `probe` keeps the values that it used."""
    (q1, q2), (k1, k2) = q, k
    if probe is not None:
        lam, lambda_act = probe.scaled(f, lam, lambda_act), "identity"
    out = out or f.empty([*q1.dims[:3], v.dims[3]], v.elem)
    operands = [q1, k1, q2, k2, v]
    text = (f"diffattn.attention ins({', '.join(map(str, operands))} : {', '.join(o.type for o in operands)}) "
            f"lambda({lam} : {lam.type})")
    optional = {"norm_weight": norm_weight, "kv_len": kv_len, "q_offset": q_offset, "block_table": block_table}
    for name, operand in optional.items():
        if operand is not None:
            text += f" {name}({operand} : {operand.type})"
    attributes = [f"scale = {float_attr(scale)}"]
    attributes += ["is_causal"] * causal
    attributes += [f"window = array<i64: {window[0]}, {window[1]}>"] if window else []
    if lambda_act != "identity":
        attributes.append(f"lambda_act = #diffattn.activation<{lambda_act}>")
    if norm or norm_weight is not None:
        attributes += ["norm = #diffattn.norm<rms>", f"norm_eps = {float_attr(norm_eps)}"]
    if out_scale != 1.0:
        attributes.append(f"out_scale = {float_attr(out_scale)}")
    attributes += [f"{side}_layout = #diffattn.layout<bthd>" for side in "qkvo"]
    more = probe.destinations(f, q, v, has_norm=norm or norm_weight is not None) if probe is not None else {}
    text += f" outs({out} : {out.type})" + "".join(f" {name}({value} : {value.type})" for name, value in more.items())
    inits = [out, *more.values()]
    text += f" {{{', '.join(attributes)}}} -> {', '.join(init.type for init in inits)}"
    result, *others = f.emit_several(text, inits)
    if probe is not None:
        probe.keep(f, operands, lam, result, dict(zip(more, others)))
    return result


def plain_block(f: Function, h: Value, names: dict[str, str], layer: Value, eps: float, elem: str) -> Value:
    """Pre-norm feed-forward of two dense layers with a GELU between, onto the residual `h`."""
    w = {key: f.weight(name, layer) for key, name in names.items()}
    x = layer_norm(f, h, w["norm"], w["norm_bias"], eps, elem)
    x = linear(f, x, w["up"], w["up_bias"])
    x = activated(f, "gelu", x, f.empty(x.dims, elem))
    if "gamma" not in w:
        return linear_onto(f, h, x, w["down"], w["down_bias"])
    return scale_onto(f, h, linear(f, x, w["down"], w["down_bias"]), w["gamma"])


def scale_onto(f: Function, residual: Value, x: Value, gamma: Value) -> Value:
    """`residual + gamma * x`, in place of the residual."""
    return f.generic("m k, k -> m k", [x, gamma], residual,
                     lambda a, g, r: f.scalar("arith.addf", r, f.scalar("arith.mulf", a, g)))


def heads_of(f: Function, x: Value, batch: Dim, length: Dim, heads: int) -> Value:
    """Rows `[M, heads * w]` as `[B, T, heads, w]`."""
    return f.expand(f.expand(x, 0, [batch, length]), 2, [heads, x.dims[1] // heads])


def rows_of(f: Function, x: Value, rows: Dim) -> Value:
    """Heads `[B, T, heads, w]` as rows `[M, heads * w]`."""
    return f.collapse(x, [[0, 1], [2, 3]], [rows, x.dims[2] * x.dims[3]])
