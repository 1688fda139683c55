"""Uses of ONNX's ops that are refused, because torch-mlir makes other numbers or sizes of them than ONNX defines, or crashes. Uses that
torch-mlir refuses by itself are not listed here."""

from __future__ import annotations

import onnx

from .builder import Builder, Refused

_KIND = onnx.TensorProto
_FLOATS = {_KIND.FLOAT, _KIND.FLOAT16, _KIND.BFLOAT16, _KIND.DOUBLE}


def refuse(builder: Builder) -> None:
    """Raises Refused."""
    kind = builder.node.op_type
    if kind in _WRONG:
        raise Refused(f"expected ops of which torch-mlir makes ONNX's numbers, but got {kind}")
    for kinds, is_wrong, expected, got in _WRONG_FORMS:
        if kind in kinds.split() and is_wrong(builder):
            raise Refused(f"expected {kind} {expected}, but got {got}")


def _type(builder: Builder) -> int:
    return builder.type(builder.input(0))


def _is_same(builder: Builder) -> bool:
    return builder.options.get("auto_pad", b"NOTSET").startswith(b"SAME")


def _is_open(builder: Builder) -> bool:
    """Whether sizes behind batch and channels are not known."""
    return None in (builder.sizes(builder.input(0)) or [None] * 3)[2:]


def _is_uneven(builder: Builder) -> bool:
    """Whether a window has more pads on one side, if strides are 1."""
    kernel, pads = builder.options["kernel_shape"], builder.options.get("pads") or []
    return any(size % 2 == 0 for size in kernel) if _is_same(builder) else pads[:len(kernel)] != pads[len(kernel):]


_WRONG = {"GridSample", "Hardmax", "LRN", "Loop", "LpNormalization", "QLinearConv", "SoftmaxCrossEntropyLoss"}
#: Ops, which forms of them are wrong, what is expected in place of these, and what came.
_WRONG_FORMS = [
    ("Abs Clip Div Mod", lambda one: _type(one) == _KIND.UINT8, "of other elements than uint8", "these"),
    ("ArgMax ArgMin", lambda one: one.options.get("select_last_index"), "of the first of equal elements", "select_last_index"),
    ("AveragePool", lambda one: one.options.get("ceil_mode"), "without ceil_mode", "it"),
    ("AveragePool", lambda one: _is_uneven(one) and set(one.options.get("dilations", [])) - {1}, "with even pads, or without dilations", "others"),
    ("AveragePool Conv MaxPool", lambda one: _is_same(one) and set(one.options.get("strides", [])) - {1} and _is_open(one),
     "with auto_pad of known sizes, or with strides of 1", "others"),
    ("MaxPool", lambda one: any(one.node.output[1:]), "without the places of what it takes", "one that makes them"),
    ("MaxPool", lambda one: _type(one) not in _FLOATS, "of floats", "integers"),
    ("MaxPool", lambda one: one.options.get("ceil_mode") and (_is_uneven(one) or one.options.get("auto_pad", b"NOTSET") != b"NOTSET"),
     "with even pads, or without ceil_mode", "others"),
    ("MaxPool", lambda one: _is_uneven(one) and _is_open(one), "with even pads, or of known sizes", "others"),
    ("DepthToSpace SpaceToDepth", lambda one: one.options.get("mode") == b"CRD", "of mode DCR", "CRD"),
    ("Gemm", lambda one: not one.input(2) and one.options.get("alpha", 1) != 1, "with C, or with alpha = 1", "another alpha"),
    ("GRU LSTM RNN", lambda one: one.input(4), "of whole sequences", "lengths of them"),
    *(("GRU LSTM RNN", lambda one, name=name: one.options.get(name), f"without {name}", "it")
      for name in ("activations", "clip", "input_forget", "layout")),
    ("LSTM", lambda one: one.input(7), "without peepholes", "them"),
    ("MatMulInteger", lambda one: not one.is_number(one.input(2)), "with one zero point of its left side", "several"),
    ("Mod", lambda one: one.options.get("fmod") and _type(one) in _FLOATS, "of integers, or with the sign of the divisor", "floats and fmod"),
    ("Pad", lambda one: one.options.get("mode") == b"wrap", "of mode constant, reflect or edge", "wrap"),
    ("Pow", lambda one: not _FLOATS & {one.type(name) for name in one.node.input}, "of floats, or by floats", "integers"),
    ("QuantizeLinear", lambda one: not all(map(one.is_number, one.node.input[1:])), "by one scale and zero point", "several"),
    ("ReduceL2", lambda one: _type(one) == _KIND.DOUBLE, "of f16, bf16 or f32", "f64")]
