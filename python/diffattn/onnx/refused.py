"""What models may not ask of ONNX's ops, since torch-mlir makes other numbers or sizes of it than ONNX says, or crashes. What it refuses by
itself is not listed here."""

from __future__ import annotations

import onnx

from .builder import Builder, Refused

_KIND = onnx.TensorProto
_FLOATS = (_KIND.FLOAT, _KIND.FLOAT16, _KIND.BFLOAT16, _KIND.DOUBLE)
#: What is expected of an op, and what came.
Told = tuple[str, str] | None


def refuse(builder: Builder) -> None:
    """Raises Refused."""
    kind = builder.node.op_type
    if kind in _WRONG:
        raise Refused(f"expected ops of which torch-mlir makes ONNX's numbers, but got {kind}")
    told = _CHECKS[kind](builder) if kind in _CHECKS else None
    if told:
        raise Refused(f"expected {kind} {told[0]}, but got {told[1]}")


def _window(builder: Builder) -> Told:
    """Of a convolution or a pool whose pads follow from sizes."""
    strides = builder.options.get("strides", [])
    if _is_same(builder) and set(strides) - {1} and None in _places(builder):
        return "with auto_pad of known sizes, or with strides of 1", f"strides {strides} and sizes that are not known"
    return None


def _pool(builder: Builder) -> Told:
    options, kernel, is_max = builder.options, builder.options["kernel_shape"], builder.node.op_type == "MaxPool"
    if any(builder.node.output[1:]):
        return "without the places of what it takes", f"one that makes them as {builder.node.output[1]!r}"
    if is_max and builder.type(builder.input(0)) in (_KIND.INT8, _KIND.UINT8):
        return "of floats", "bytes"
    pads = options.get("pads") or [0] * 2 * len(kernel)
    is_uneven = any(size % 2 == 0 for size in kernel) if _is_same(builder) else pads[:len(kernel)] != pads[len(kernel):]
    if options.get("ceil_mode") and (not is_max or is_uneven or options.get("auto_pad", b"NOTSET") != b"NOTSET"):
        return "without ceil_mode, or MaxPool with even pads", f"ceil_mode and pads {pads}"
    if is_uneven and (None in _places(builder) if is_max else set(options.get("dilations", [])) - {1}):
        return "with even pads, or without dilations and of known sizes", f"pads {pads} of sizes {_places(builder)}"
    return _window(builder)


def _is_same(builder: Builder) -> bool:
    return builder.options.get("auto_pad", b"NOTSET").startswith(b"SAME")


def _places(builder: Builder) -> list[int | None]:
    """The sizes behind batch and channels."""
    return (builder.sizes(builder.input(0)) or [None] * 3)[2:]


def _last_extreme(builder: Builder) -> Told:
    return ("of the first of equal elements", "select_last_index") if builder.options.get("select_last_index") else None


def _norm(builder: Builder) -> Told:
    return ("of f16, bf16 or f32", "f64, which torch-mlir computes in f32") if builder.type(builder.input(0)) == _KIND.DOUBLE else None


def _mod(builder: Builder) -> Told:
    """Quotients are rounded."""
    is_float = builder.options.get("fmod") and builder.type(builder.input(0)) in _FLOATS
    return ("of integers, or with the sign of the divisor", "floats and fmod") if is_float else None


def _pow(builder: Builder) -> Told:
    """Of integers it goes through f64, which does not hold every int64, and overflows otherwise."""
    x, y = (builder.type(builder.input(number)) for number in range(2))
    return ("of floats, or by floats", "integers") if x not in _FLOATS and y not in _FLOATS else None


def _pad(builder: Builder) -> Told:
    """Its passes do not end."""
    return ("of mode constant, reflect or edge", "wrap") if builder.options.get("mode") == b"wrap" else None


def _depth(builder: Builder) -> Told:
    return ("of mode DCR", "CRD") if builder.options.get("mode") == b"CRD" else None


def _gemm(builder: Builder) -> Told:
    """Without C it forgets alpha."""
    return ("with C, or with alpha = 1", f"alpha = {builder.options['alpha']}") if not builder.input(2) and builder.options.get("alpha", 1) != 1 else None


def _scales(builder: Builder) -> Told:
    """Of QuantizeLinear, or zero points of the left side of MatMulInteger."""
    several = [name for name in builder.node.input[1 if builder.node.op_type == "QuantizeLinear" else 2:3] if not builder.is_number(name)]
    return ("by one scale and zero point", f"{several[0]!r} {builder.told(several[0])}") if several else None


def _recurrent(builder: Builder) -> Told:
    inputs = {4: "lengths of sequences", 7: "peepholes"}
    forgotten = [said for number, said in inputs.items() if builder.input(number)] + [
        name for name in ("activations", "clip", "input_forget", "layout") if builder.options.get(name)]
    return ("of whole sequences with its usual activations", " and ".join(forgotten)) if forgotten else None


_WRONG = {"GridSample", "Hardmax", "LRN", "Loop", "LpNormalization", "QLinearConv", "SoftmaxCrossEntropyLoss"}
_CHECKS = {**dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent), **dict.fromkeys(("ArgMax", "ArgMin"), _last_extreme),
           **dict.fromkeys(("AveragePool", "MaxPool"), _pool), **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _depth),
           **dict.fromkeys(("MatMulInteger", "QuantizeLinear"), _scales), "Conv": _window, "Gemm": _gemm, "Mod": _mod, "Pad": _pad,
           "Pow": _pow, "ReduceL2": _norm}
