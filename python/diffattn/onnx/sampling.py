"""ONNX ops that read images at places which are computed, and cut or fill them around their middle."""

from __future__ import annotations

import onnx

from .builder import Builder, Refused


def grid_sample(builder: Builder) -> bool:
    """Of images [batch, channels, height, width] at places [batch, rows, columns, (x, y)] from -1 to 1. torch-mlir reads outside of the image."""
    x, grid, options = builder.input(0), builder.input(1), builder.options
    sizes, places = builder.sizes(x), builder.sizes(grid)
    mode = {b"bilinear": b"linear"}.get(options.get("mode", b"linear"), options.get("mode", b"linear"))
    padding, aligned = options.get("padding_mode", b"zeros"), options.get("align_corners", 0)
    if sizes is None or len(sizes) != 4 or None in sizes[1:] or places is None or len(places) != 4 or mode == b"cubic":
        raise Refused("expected GridSample by mode linear or nearest of [batch, channels, height, width] of known sizes, but got "
                      f"mode {mode.decode()} and sizes {sizes}")
    _, channels, height, width = sizes
    kind = builder.type(grid)

    def number(value: float) -> str:
        return builder.number(value, grid)

    def limited(value: str, size: int) -> str:
        return builder.op("Clip", value, number(0), number(size - 1))

    def reflected(value: str, size: int) -> str:
        """At the edges of the image, or at the middles of its outermost elements."""
        low, span = (0, size - 1) if aligned else (-0.5, size)
        if not span:
            return builder.op("Mul", value, number(0))
        away = builder.op("Abs", builder.op("Sub", value, number(low)))
        turns = builder.op("Floor", builder.op("Div", away, number(span)))
        rest = builder.op("Sub", away, builder.op("Mul", turns, number(span)))
        half = builder.op("Floor", builder.op("Mul", turns, number(0.5)))
        is_odd = builder.op("Equal", builder.op("Sub", turns, builder.op("Mul", half, number(2))), number(1))
        return builder.op("Add", builder.op("Where", is_odd, builder.op("Sub", number(span), rest), rest), number(low))

    def coordinate(axis: int, size: int) -> str:
        value = builder.op("Gather", grid, builder.constant(axis), axis=3)
        scale, shift = ((size - 1) / 2, (size - 1) / 2) if aligned else (size / 2, (size - 1) / 2)
        value = builder.op("Add", builder.op("Mul", value, number(scale)), number(shift))
        if padding == b"reflection":
            value = reflected(value, size)
        return value if padding == b"zeros" else limited(value, size)

    flat = builder.op("Reshape", x, builder.constant([0, channels, height * width]))

    def element(row: str, column: str) -> str:
        """At whole places; those outside give 0."""
        place = builder.op("Add", builder.op("Mul", limited(row, height), number(width)), limited(column, width))
        place = builder.op("Reshape", builder.op("Cast", place, to=onnx.TensorProto.INT64), builder.constant([0, 1, -1]))
        every = builder.op("Add", place, builder.constant([[[0]] * channels]))
        taken = builder.op("GatherElements", flat, every, axis=2)
        if padding != b"zeros":
            return taken
        within = builder.op("And", builder.op("Equal", row, limited(row, height)), builder.op("Equal", column, limited(column, width)))
        seen = builder.op("Reshape", builder.op("Cast", within, to=builder.type(x)), builder.constant([0, 1, -1]))
        return builder.op("Mul", taken, seen)

    column, row = coordinate(0, width), coordinate(1, height)
    if mode == b"nearest":
        made = element(builder.op("Round", row), builder.op("Round", column))
    else:
        parts = {}
        for name, value in (("row", row), ("column", column)):
            low = builder.op("Floor", value)
            part = builder.op("Sub", value, low)
            parts[name] = [(low, builder.op("Sub", number(1), part)), (builder.op("Add", low, number(1)), part)]
        made = None
        for at_row, row_part in parts["row"]:
            for at_column, column_part in parts["column"]:
                weight = builder.op("Reshape", builder.op("Mul", row_part, column_part), builder.constant([0, 1, -1]))
                term = builder.op("Mul", element(at_row, at_column), builder.op("Cast", weight, to=builder.type(x)) if kind != builder.type(x) else weight)
                made = builder.op("Add", made, term) if made else term
    if None not in places[1:3]:
        return builder.finish("Reshape", made, builder.constant([0, channels, *places[1:3]]))
    shape = builder.op("Concat", builder.size(x, 0), builder.constant([channels]), builder.size(grid, 1), builder.size(grid, 2), axis=0)
    return builder.finish("Reshape", made, shape)


def center_crop_pad(builder: Builder) -> bool:
    """Along axes of known sizes."""
    x, shape, sizes = builder.input(0), builder.array(builder.input(1)), builder.sizes(builder.input(0))
    if shape is None or sizes is None:
        return False
    axes = [axis % len(sizes) for axis in builder.options.get("axes", range(len(sizes)))]
    if any(sizes[axis] is None for axis in axes):
        raise Refused(f"expected CenterCropPad along axes of known sizes, but got axes {axes} of sizes {sizes}")
    begins, ends, pads = [0] * len(axes), [sizes[axis] for axis in axes], [[0] * len(sizes), [0] * len(sizes)]
    for number, (axis, wanted) in enumerate(zip(axes, shape.tolist())):
        more = wanted - sizes[axis]
        if more < 0:
            begins[number] = -more // 2
            ends[number] = begins[number] + wanted
        else:
            pads[0][axis], pads[1][axis] = more // 2, more - more // 2
    cut = builder.op("Slice", x, *map(builder.constant, (begins, ends, axes)))
    return builder.finish("Pad", cut, builder.constant(pads[0] + pads[1]), builder.number(0, x))


SAMPLING = {"CenterCropPad": center_crop_pad, "GridSample": grid_sample}
