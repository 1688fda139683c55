"""Quantized ops of ONNX: scales of the whole tensor and of each channel, against NumPy."""
import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper
from onnx_cases import load, model, node  # noqa: F401

from diffattn import errors

pytestmark = pytest.mark.oracle


def whole(kind, *shape, seed=0):
    limits = np.iinfo(kind)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, endpoint=True).astype(kind)


def scales(*shape):
    return (np.random.default_rng(len(shape)).random(shape) + 0.25).astype(np.float32)


def quantized(x, scale, zero, kind):
    limits = np.iinfo(kind)
    return np.clip(np.rint((x / scale).astype(np.float32)) + zero, limits.min, limits.max).astype(kind)


def code(array):
    return helper.np_dtype_to_tensor_dtype(array.dtype)


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("constant", [False, True])
def test_scales(load, kind, constant):
    """One number with and without a zero point; one for each row or column where numbers are made of bytes."""
    q, x = whole(kind, 4, 6), np.random.default_rng(5).standard_normal((4, 6)).astype(np.float32) * 60
    x[0, :4] = 1e9, -1e9, 2.5, 3.5
    nodes, given, wants = [], {"q": q, "x": x}, []
    for name, scale, zero, options in (("one", scales(), whole(kind), {}), ("none", scales(), None, {}), ("rows", scales(4), whole(kind, 4), {"axis": 0}),
                                       ("columns", scales(6), whole(kind, 6), {"axis": -1}), ("bare", scales(6), None, {"axis": 1})):
        inputs = [f"{name}.scale", *([f"{name}.zero"] if zero is not None else [])]
        given.update({f"{name}.scale": scale} | ({f"{name}.zero": zero} if zero is not None else {}))
        wide, narrow = (one[:, None] if name == "rows" else one for one in (scale, np.zeros((), kind) if zero is None else zero))
        nodes.append(node("DequantizeLinear", ["q", *inputs], [f"{name}.x"], **options))
        wants.append((q.astype(np.int32) - narrow.astype(np.int32)).astype(np.float32) * wide)
        if name == "one":
            nodes.append(node("QuantizeLinear", ["x", *inputs], [f"{name}.q"], **options))
            wants.append(quantized(x, wide, narrow.astype(np.int32), kind))
    names = ["q", "x", *([] if constant else [name for name in given if "." in name])]
    made = model(nodes, [(name, code(given[name]), given[name].shape) for name in names], [(one.output[0], code(want), [None] * 2) for one, want in zip(nodes, wants)],
                 {name: array for name, array in given.items() if name not in names}, opset=21)
    for one, got, want in zip(nodes, load(made)(*[given[name] for name in names]), wants, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=0, err_msg=one.output[0])


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_products(load, kind):
    """Products of matrices and of batches, with a zero point and a scale of each column."""
    a, b, wide = whole(kind, 2, 3, 5), whole("int8", 5, 4, seed=1), whole("int8", 2, 5, 4, seed=2)
    constants = {"as": scales(), "az": whole(kind), "bs": scales(4), "bz": whole("int8", 4), "ys": np.float32(900), "yz": whole(kind)}
    constants = {name: np.asarray(one) for name, one in constants.items()}
    nodes = [node("Squeeze", ["part", "zero"], ["m"]), node("QLinearMatMul", ["m", "as", "az", "b", "bs", "bz", "ys", "yz"], ["q"]),
             node("MatMulInteger", ["a", "wide", "az", "bz"], ["i"])]
    made = model(nodes, [("a", code(a), ["n", 3, 5]), ("b", T.INT8, [5, 4]), ("wide", T.INT8, ["n", 5, 4]), ("part", code(a), [1, 3, 5])],
                 [("q", code(a), [None] * 2), ("i", T.INT32, [None] * 3)], {**constants, "zero": np.array([0])})
    centred, columns = a.astype(np.int32) - int(constants["az"]), constants["bz"].astype(np.int32)
    factor = (constants["as"] * constants["bs"]) / constants["ys"]
    wants = [quantized((centred[0] @ (b.astype(np.int32) - columns)).astype(np.float32) * factor, np.float32(1), int(constants["yz"]), kind),
             centred @ (wide.astype(np.int32) - columns)]
    for got, want in zip(load(made)(a, b, wide, a[:1].copy()), wants, strict=True):
        np.testing.assert_array_equal(got, want)


def test_convolutions_of_integers(load):
    """Padding holds the zero point."""
    x, w, constants = whole("uint8", 1, 2, 5, 5), whole("int8", 4, 2, 3, 3, seed=1), {"xz": np.asarray(whole("uint8")), "z": np.asarray(whole("int8", seed=3))}
    made = model([node("ConvInteger", ["x", "w", "xz", "z"], ["y"], pads=[1, 0, 1, 0], strides=[2, 1])], [("x", T.UINT8, ["n", 2, 5, 5])], [("y", T.INT32, [None] * 4)], {**constants, "w": w})
    wide = np.pad(x.astype(np.int64) - int(constants["xz"]), [(0, 0), (0, 0), (1, 1), (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))[:, :, ::2]
    np.testing.assert_array_equal(load(made)(x), np.einsum("nchwij,ocij->nohw", windows, w.astype(np.int64) - int(constants["z"])))


@pytest.mark.parametrize("op, kinds, sizes, options, message", [
    ("QuantizeLinear", (T.FLOAT, T.FLOAT), ([4, 6], [4]), {"axis": 0}, "QuantizeLinear by one scale and zero point, but got several"),
    ("DequantizeLinear", (T.INT8, T.FLOAT), ([4, 6], [4, 2]), {"axis": 1, "block_size": 3}, r"DequantizeLinear along an axis, not by blocks, but got axis 1 of \[4, 6\] and scales of \[4, 2\]"),
    ("MatMulInteger", (T.UINT8, T.INT8, T.UINT8), ([3, 5], [5, 4], [3]), {}, "MatMulInteger with one zero point of its left side, but got several")])
def test_what_is_refused(load, op, kinds, sizes, options, message):
    inputs = [(name, kind, shape) for name, kind, shape in zip("abc", kinds, sizes)]
    made = model([node(op, [name for name, *_ in inputs], ["y"], **options)], inputs, [("y", {"Q": T.UINT8, "D": T.FLOAT, "M": T.INT32}[op[0]], [None] * 2)], opset=21)
    with pytest.raises(errors.CompileError, match=f"'{op}', which makes 'y': expected {message}"):
        load(made)
