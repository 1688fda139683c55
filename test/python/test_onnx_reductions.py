"""Places of extremes beside NaN, and reductions of f64 and by products, against NumPy."""
import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper
from onnx_cases import load, model, node  # noqa: F401

pytestmark = pytest.mark.oracle

ODD = np.array([[1, 3, 3, 2], [1, np.nan, np.inf, np.nan], [-np.inf] * 4, [np.inf, 1, np.inf, -np.inf], [np.nan] * 4], np.float32)


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("sizes", [[5, 4], ["n", "m"]])
def test_places_of_extremes(load, kind, sizes):
    """The first NaN comes before all numbers, as in NumPy."""
    code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [node(op, ["x"], [f"{op} {axis} {last}"], axis=axis, keepdims=0, select_last_index=last) for op in ("ArgMax", "ArgMin") for axis in (0, 1) for last in (0, 1)]
    nodes += [node("Hardmax", ["x"], [f"Hardmax {axis}"], axis=axis) for axis in (0, -1)]
    made = model(nodes, [("x", code, sizes)], [(one.output[0], code if one.op_type == "Hardmax" else T.INT64, [None] * (2 if one.op_type == "Hardmax" else 1)) for one in nodes])
    x = ODD.astype(kind)
    for one, got in zip(nodes, load(made)(x), strict=True):
        name, axis, *last = one.output[0].split()
        axis, turned = int(axis), np.flip(x, int(axis)) if last == ["1"] else x
        want = turned.argmin(axis) if name == "ArgMin" else turned.argmax(axis)
        want = x.shape[axis] - 1 - want if last == ["1"] else want
        if name == "Hardmax":
            want = np.arange(x.shape[axis]).reshape([-1, 1] if axis == 0 else [1, -1]) == np.expand_dims(want, axis)
        np.testing.assert_array_equal(got, want, err_msg=one.output[0])


def test_reductions_of_f64(load):
    x = np.random.default_rng(0).standard_normal((3, 5)) * 300
    x[1], x[2, 3] = -np.inf, np.inf
    nodes = [node(op, ["x", "axes"], [f"{op} {keep}"], keepdims=keep) for op in ("ReduceL2", "ReduceLogSumExp") for keep in (0, 1)]
    got = load(model(nodes, [("x", T.DOUBLE, ["n", 5])], [(one.output[0], T.DOUBLE, [None] * (1 + n % 2)) for n, one in enumerate(nodes)], {"axes": np.array([1])}))(x)
    for n, one in enumerate(got):
        want = np.sqrt((x * x).sum(1)) if n < 2 else np.logaddexp.reduce(x, 1)
        np.testing.assert_allclose(one, want[:, None] if n % 2 else want, rtol=1e-14)


@pytest.mark.parametrize("kind, tolerance", [("float32", 1e-6), ("float16", 1e-3), ("int64", 0)])
def test_products_of_axes(load, kind, tolerance):
    x = (np.random.default_rng(0).random((3, 7, 4)) * 3 + 1).astype(kind)
    code, cases = helper.np_dtype_to_tensor_dtype(x.dtype), [([1], 1), ([-1, 1], 0), ([2], 0)]
    nodes = [node("ReduceProd", ["x", f"a{n}"], [f"y{n}"], keepdims=keep) for n, (_, keep) in enumerate(cases)]
    made = model(nodes, [("x", code, ["n", 7, 4])], [(one.output[0], code, [None] * rank) for one, rank in zip(nodes, (3, 1, 2))], {f"a{n}": np.array(axes) for n, (axes, _) in enumerate(cases)})
    for (axes, keep), got in zip(cases, load(made)(x), strict=True):
        wide = x.astype(np.float64) if kind != "int64" else x
        want = wide.prod(tuple(axes), keepdims=bool(keep))
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(got, want.astype(kind), rtol=tolerance)
