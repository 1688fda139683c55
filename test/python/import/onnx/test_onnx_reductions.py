"""Places of extremes beside NaN, against NumPy."""
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
    nodes = [node(op, ["x"], [f"{op} {axis}"], axis=axis, keepdims=0) for op in ("ArgMax", "ArgMin") for axis in (0, 1)]
    made, x = model(nodes, [("x", code, sizes)], [(one.output[0], T.INT64, [None]) for one in nodes]), ODD.astype(kind)
    for one, got in zip(nodes, load(made)(x), strict=True):
        name, axis = one.output[0].split()
        np.testing.assert_array_equal(got, (x.argmin if name == "ArgMin" else x.argmax)(int(axis)), err_msg=one.output[0])
