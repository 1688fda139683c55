"""Convolutions and pools of ONNX whose pads torch-mlir refuses, forgets, or counts wrongly: pads become an op of their own, or numbers."""

from __future__ import annotations

import math

import numpy as np
import onnx

from .builder import Builder, Refused

_INTEGERS = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)


def _same_pads(builder: Builder, kernel: list[int], strides: list[int], dilations: list[int]) -> list[int] | None:
    """What `auto_pad` SAME means; None: it depends on sizes that are not known."""
    begins, ends = [], []
    sizes = (builder.sizes(builder.input(0)) or [None] * (len(kernel) + 2))[2:]
    for size, width, stride, dilation in zip(sizes, kernel, strides, dilations):
        if size is None and stride != 1:
            return None
        extent = (width - 1) * dilation + 1
        total = max(extent - 1 if stride == 1 else (math.ceil(size / stride) - 1) * stride + extent - size, 0)
        less, more = total // 2, total - total // 2
        begin, end = (more, less) if builder.options["auto_pad"] == b"SAME_LOWER" else (less, more)
        begins.append(begin)
        ends.append(end)
    return begins + ends


def _is_same(builder: Builder) -> bool:
    return builder.options.get("auto_pad", b"NOTSET").startswith(b"SAME")


def _kernel(builder: Builder) -> list[int]:
    return builder.options.get("kernel_shape") or (builder.sizes(builder.input(1)) or [])[2:]


def _lists(builder: Builder, kernel: list[int]) -> tuple[list[int], list[int]]:
    ones = [1] * len(kernel)
    return builder.options.get("strides") or ones, builder.options.get("dilations") or ones


def convolution(builder: Builder) -> bool:
    """With pads that are numbers."""
    kernel = _kernel(builder)
    if not _is_same(builder) or not kernel or None in kernel:
        return False
    pads = _same_pads(builder, kernel, *_lists(builder, kernel))
    if pads is None:
        raise Refused("expected Conv with auto_pad of known sizes, or with strides of 1, but got strides "
                      f"{builder.options['strides']} and sizes that are not known")
    options = {name: value for name, value in builder.options.items() if name != "auto_pad"}
    return builder.finish("Conv", *builder.node.input, **options, pads=pads)


def transposed(builder: Builder) -> bool:
    """Pads take away from the result: those of one side more than those of the other are a slice."""
    kernel, options = _kernel(builder), dict(builder.options)
    if not kernel or None in kernel:
        return False
    strides, dilations = _lists(builder, kernel)
    added, shape = options.get("output_padding") or [0] * len(kernel), options.pop("output_shape", None)
    sizes = (builder.sizes(builder.input(0)) or [None] * (len(kernel) + 2))[2:]
    if _is_same(builder) or shape:
        if shape and None in sizes:
            raise Refused("expected ConvTranspose with output_shape of known sizes, but got sizes that are not known")
        wanted = shape[-len(kernel):] if shape else [None] * len(kernel)
        # All that is more than `size * stride`, or than the shape.
        totals = [(width - 1) * dilation + 1 - stride + more + (stride * size - want if want is not None else 0)
                  for width, dilation, stride, more, size, want in zip(kernel, dilations, strides, added, sizes, wanted)]
        if min(totals) < 0:
            raise Refused(f"expected ConvTranspose whose result is no larger than without pads, but got pads of {totals} in all")
        halves = [total // 2 for total in totals]
        begins = halves if options.get("auto_pad") == b"SAME_UPPER" else [total - half for total, half in zip(totals, halves)]
        ends = [total - begin for total, begin in zip(totals, begins)]
        options.pop("auto_pad", None)
    else:
        pads = options.get("pads") or [0] * 2 * len(kernel)
        begins, ends = pads[:len(kernel)], pads[len(kernel):]
        if begins == ends:
            return False
    both = [min(pair) for pair in zip(begins, ends)]
    options["pads"] = both * 2
    if begins == ends:
        return builder.finish("ConvTranspose", *builder.node.input, **options)
    made = builder.op("ConvTranspose", *builder.node.input, **options)
    begin = [one - least for one, least in zip(begins, both)]
    end = [least - one or np.iinfo(np.int64).max for one, least in zip(ends, both)]
    return builder.finish("Slice", made, builder.constant(begin), builder.constant(end), builder.constant(list(range(2, 2 + len(kernel)))))


def pool(builder: Builder) -> bool:
    """MaxPool and AveragePool. Uneven pads, and the end of the last window where sizes are rounded up, are elements of their own; an average
    that does not count them is divided by one of ones and zeros."""
    x, kernel, options, kind = builder.input(0), _kernel(builder), builder.options, builder.node.op_type
    sizes, indices = (builder.sizes(x) or ())[2:], len(builder.node.output) > 1 and bool(builder.node.output[1])
    strides, dilations = _lists(builder, kernel)
    if indices:  # torch-mlir counts them in each channel of its own
        raise Refused(f"expected MaxPool without the places of what it takes, but got one that makes them as {builder.node.output[1]!r}")
    pads, rounds_up = options.get("pads") or [0] * 2 * len(kernel), bool(options.get("ceil_mode"))
    if _is_same(builder):
        pads, rounds_up = _same_pads(builder, kernel, strides, dilations), False
        if pads is None:
            raise Refused(f"expected {kind} with auto_pad of known sizes, or with strides of 1, but got strides {strides} and sizes that are not known")
    elif options.get("auto_pad", b"NOTSET") == b"VALID":
        pads, rounds_up = [0] * 2 * len(kernel), False
    begins, ends = pads[:len(kernel)], pads[len(kernel):]
    is_narrow = kind == "MaxPool" and builder.type(x) in _INTEGERS
    if begins == ends and not rounds_up and not _is_same(builder) and not is_narrow:
        return False
    more = [0] * len(kernel)
    if rounds_up:
        if None in sizes:
            if begins == ends and not (kind == "AveragePool" and options.get("count_include_pad")) and not is_narrow:
                return False
            raise Refused(f"expected {kind} with ceil_mode and these pads of known sizes, but got pads {pads} and sizes that are not known")
        for axis, (size, width, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations)):
            whole, extent = size + begins[axis] + ends[axis], (width - 1) * dilation + 1
            count = math.ceil((whole - extent) / stride) + 1
            count -= (count - 1) * stride >= size + begins[axis]  # a window that would begin in the pads behind
            more[axis] = max((count - 1) * stride + extent - whole, 0)
    windows = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}

    def padded(value: str, begins: list[int], ends: list[int], number: float) -> str:
        if not any(begins + ends):
            return value
        return builder.op("Pad", value, builder.constant([0, 0, *begins, 0, 0, *ends]), builder.number(number, value))

    if kind == "MaxPool":
        wide = builder.op("Cast", x, to=onnx.TensorProto.INT32) if is_narrow else x
        least = np.iinfo(np.int32).min if is_narrow else -np.inf
        made = builder.op("MaxPool", padded(wide, begins, [a + b for a, b in zip(ends, more)], least), **windows)
        return builder.finish_as(made, x)
    every = [a + b for a, b in zip(ends, more)]
    made = builder.op("AveragePool", padded(x, begins, every, 0), **windows)
    if options.get("count_include_pad") and not any(more):
        return builder.finish("Identity", made)
    channels = (builder.sizes(x) or [None, None])[1]
    one = x if channels is None else builder.op("Slice", x, builder.constant([0]), builder.constant([1]), builder.constant([1]))
    ones = builder.op("Cast", builder.op("Not", builder.op("Less", one, one)), to=builder.type(x))  # also where there is NaN
    counted = padded(padded(ones, begins, ends, 1.0), [0] * len(kernel), more, 0) if options.get("count_include_pad") else padded(ones, begins, every, 0)
    return builder.finish("Div", made, builder.op("AveragePool", counted, **windows))


def local_response(builder: Builder) -> bool:
    """LRN: squares of the channels around one, of which there is one more behind it than before where their number is even."""
    x, size, options = builder.input(0), builder.options["size"], builder.options
    rank = len(builder.sizes(x) or ())
    if rank < 2 or size < 1:
        return False
    before, behind = (size - 1) // 2, size - 1 - (size - 1) // 2
    zeros = [0] * (rank - 2)
    squares = builder.op("Pad", builder.op("Mul", x, x), builder.constant([0, before, *zeros, 0, behind, *zeros]), builder.number(0, x))
    total = None
    for begin in range(size):
        end = begin - size + 1 or np.iinfo(np.int64).max
        part = builder.op("Slice", squares, builder.constant([begin]), builder.constant([end]), builder.constant([1]))
        total = part if total is None else builder.op("Add", total, part)
    scaled = builder.op("Mul", total, builder.number(options.get("alpha", 1e-4) / size, x))
    powers = builder.op("Pow", builder.op("Add", scaled, builder.number(options.get("bias", 1.0), x)), builder.number(options.get("beta", 0.75), x))
    return builder.finish("Div", x, powers)


WINDOWS = {"AveragePool": pool, "Conv": convolution, "ConvTranspose": transposed, "LRN": local_response, "MaxPool": pool}
