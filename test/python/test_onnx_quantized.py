"""Quantized ops of ONNX: scales of the whole tensor, of each channel and of blocks, against NumPy."""
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
    """One number with and without a zero point, one for each row or column, or for each three of a row."""
    q, x = whole(kind, 4, 6), np.random.default_rng(5).standard_normal((4, 6)).astype(np.float32) * 60
    x[0, :4] = 1e9, -1e9, 2.5, 3.5
    nodes, given, wants = [], {"q": q, "x": x}, []
    for name, scale, zero, options in (("one", scales(), whole(kind), {}), ("none", scales(), None, {}), ("rows", scales(4), whole(kind, 4), {"axis": 0}), ("columns", scales(6), whole(kind, 6), {"axis": -1}),
                                       ("bare", scales(6), None, {"axis": 1}), ("blocks", scales(4, 2), whole(kind, 4, 2), {"axis": 1, "block_size": 3})):
        inputs = [f"{name}.scale", *([f"{name}.zero"] if zero is not None else [])]
        given.update({f"{name}.scale": scale} | ({f"{name}.zero": zero} if zero is not None else {}))
        spread = [one if one is None or not one.shape else one.repeat(3, 1) if name == "blocks" else one[:, None] if name == "rows" else one for one in (scale, zero)]
        wide, narrow = spread[0], 0 if zero is None else spread[1].astype(np.int32)
        nodes.append(node("DequantizeLinear", ["q", *inputs], [f"{name}.x"], **options))
        wants.append((q.astype(np.int32) - narrow).astype(np.float32) * wide)
        if zero is not None or kind == "uint8":
            nodes.append(node("QuantizeLinear", ["x", *inputs], [f"{name}.q"], **options))
            wants.append(quantized(x, wide, narrow, kind))
    names = ["q", "x", *([] if constant else [name for name in given if "." in name])]
    made = model(nodes, [(name, code(given[name]), given[name].shape) for name in names], [(one.output[0], code(want), [None] * 2) for one, want in zip(nodes, wants)],
                 {name: array for name, array in given.items() if name not in names}, opset=21)
    for one, got, want in zip(nodes, load(made)(*[given[name] for name in names]), wants, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=0, err_msg=one.output[0])


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_products(load, kind):
    """Of matrices and of batches, with a zero point of each row and a scale of each column."""
    a, b, wide = whole(kind, 2, 3, 5), whole("int8", 5, 4, seed=1), whole("int8", 2, 5, 4, seed=2)
    constants = {"as": scales(), "az": whole(kind), "bs": scales(4), "bz": whole("int8", 4), "ys": np.float32(900), "yz": whole(kind), "rows": whole(kind, 3)}
    constants = {name: np.asarray(one) for name, one in constants.items()}
    q = ["az", "as"]
    nodes = [node("QLinearMatMul", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["q"]), node("QLinearMatMul", ["a", "as", "az", "wide", "bs", "bz", "ys", "yz"], ["qw"]),
             node("MatMulInteger", ["a", "wide", "az", "bz"], ["i"]), node("Squeeze", ["part", "zero"], ["m"]), node("MatMulInteger", ["m", "b", "rows"], ["r"])]
    made = model(nodes[:3] + nodes[3:], [("a", code(a), ["n", 3, 5]), ("b", T.INT8, [5, 4]), ("wide", T.INT8, ["n", 5, 4]), ("part", code(a), [1, 3, 5])],
                 [("q", code(a), [None] * 3), ("qw", code(a), [None] * 3), ("i", T.INT32, [None] * 3), ("r", T.INT32, [None] * 2)], {**constants, "zero": np.array([0])})
    centred = a.astype(np.int32) - int(constants["az"])
    columns = constants["bz"].astype(np.int32)
    products = [centred @ (one.astype(np.int32) - columns) for one in (b, wide)]
    factor = (constants["as"] * constants["bs"]) / constants["ys"]
    wants = [*(quantized(one.astype(np.float32) * factor, np.float32(1), int(constants["yz"]), kind) for one in products), products[1],
             (a[0].astype(np.int32) - constants["rows"][:, None].astype(np.int32)) @ b.astype(np.int32)]
    for got, want in zip(load(made)(a, b, wide, a[:1].copy()), wants, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_convolutions(load, kind):
    """With a scale of each channel of the weight, and what lies in pads is the zero point."""
    x, w, bias = whole(kind, 1, 2, 5, 5), whole("int8", 4, 2, 3, 3, seed=1), np.array([1000, -500, 3, 0], np.int32)
    constants = {"xs": scales(), "xz": whole(kind), "w": w, "ws": scales(4), "wz": whole("int8", 4), "ys": np.float32(700), "yz": whole(kind), "bias": bias, "z": whole("int8", seed=3)}
    constants = {name: np.asarray(one) for name, one in constants.items()}
    nodes = [node("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "bias"], ["q"], pads=[1, 1, 1, 1]), node("ConvInteger", ["x", "w", "xz", "z"], ["i"], pads=[1, 0, 1, 0], strides=[2, 1])]
    made = model(nodes, [("x", code(x), ["n", 2, 5, 5])], [("q", code(x), [None] * 4), ("i", T.INT32, [None] * 4)], constants)

    def summed(zero, pads, strides):
        wide = np.pad(x.astype(np.int64) - int(constants["xz"]), [(0, 0), (0, 0), *pads])
        windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))[:, :, ::strides[0], ::strides[1]]
        return np.einsum("nchwij,ocij->nohw", windows, w.astype(np.int64) - zero)

    columns = [one.reshape(4, 1, 1) for one in (constants["wz"].astype(np.int64)[:, None], constants["ws"], bias)]
    sums = summed(columns[0][..., None], [(1, 1), (1, 1)], (1, 1)) + columns[2]
    want = quantized(sums.astype(np.float32) * ((constants["xs"] * columns[1]) / constants["ys"]), np.float32(1), int(constants["yz"]), kind)
    got = load(made)(x)
    np.testing.assert_array_equal(got[0], want)
    np.testing.assert_array_equal(got[1], summed(int(constants["z"]), [(1, 1), (0, 0)], (2, 1)))


def test_types_that_are_refused(load):
    made = model([node("QuantizeLinear", ["x", "s"], ["y"], output_dtype=T.INT16)], [("x", T.FLOAT, [2])], [("y", T.INT16, [2])], {"s": np.array(0.5, np.float32)}, opset=21)
    with pytest.raises(errors.CompileError, match="expected QuantizeLinear to elements of int8 or uint8, but got int16"):
        load(made)
