"""Element-wise ops of ONNX on NaN, infinities and zeros of both signs, against onnx's own evaluator."""
import numpy as np
import pytest
from onnx import TensorProto as T
from onnx.reference import ReferenceEvaluator
from onnx_cases import load, model, node  # noqa: F401

pytestmark = pytest.mark.oracle

ODD = np.array([1, np.nan, 2, np.inf, -np.inf, 0.0, -0.0, -1.5, 3e38, -3e38, 0.5, 2.5, -2.5, 7], np.float32)
X, Z = (part.copy() for part in np.meshgrid(ODD, ODD, indexing="ij"))
UNARY = ("Abs Neg Sign Floor Ceil Round Sqrt Exp Log Sin Tanh Erf Sigmoid Relu Softplus Softsign Elu LeakyRelu HardSigmoid HardSwish Reciprocal Identity Gelu").split()
BINARY = "Add Sub Mul Div Pow Max Min".split()
COMPARED = "Equal Less LessOrEqual Greater GreaterOrEqual".split()
LIMITS = {"low": np.array(-1, np.float32), "high": np.array(1, np.float32)}
NODES = [*(node(op, ["x"], [op]) for op in UNARY), *(node(op, ["x", "z"], [op]) for op in BINARY), *(node(op, ["x", "z"], [op]) for op in COMPARED),
         *(node(op, ["x", "x"], [f"{op}, itself"]) for op in COMPARED), node("Gelu", ["x"], ["Gelu, tanh"], approximate="tanh"), node("IsNaN", ["x"], ["IsNaN"]),
         node("Clip", ["x", "low", "high"], ["Clip"]), node("Clip", ["x", "low"], ["Clip, low"]), node("Clip", ["x", "", "high"], ["Clip, high"]), node("Clip", ["x"], ["Clip, none"]),
         node("Max", ["x", "z", "low"], ["Max, three"]), node("Min", ["x"], ["Min, one"])]
TRUTHS = {*COMPARED, *(f"{op}, itself" for op in COMPARED), "IsNaN"}
OUTPUTS = [(one.output[0], T.BOOL if one.output[0] in TRUTHS else T.FLOAT, [14, 14]) for one in NODES]


def close(got, want, name):
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=1e-5, atol=0, err_msg=name)


def test_odd_numbers(load):
    made = model(NODES, [("x", T.FLOAT, [14, 14]), ("z", T.FLOAT, [14, 14])], OUTPUTS, LIMITS)
    with np.errstate(all="ignore"):
        want = ReferenceEvaluator(made).run(None, {"x": X, "z": Z})
    for (name, *_), one, other in zip(OUTPUTS, load(made)(X, Z), want, strict=True):
        close(one, other, name)


def test_rests_of_divisions(load):
    x, z = np.clip(X, -9, 9), Z.copy()
    z[np.abs(z) > 9] = np.inf
    made = model([node("Mod", ["x", "z"], ["y"], fmod=1)], [("x", T.FLOAT, [14, 14]), ("z", T.FLOAT, [14, 14])], [("y", T.FLOAT, [14, 14])])
    with np.errstate(all="ignore"):
        close(load(made)(x, z), np.fmod(x, z), "Mod")


def test_integers_and_limits_as_attributes(load):
    ints = np.arange(-4, 5)
    made = model([node("Max", ["x", "z"], ["m"]), node("Clip", ["m", "low"], ["y"]), node("Equal", ["x", "z"], ["e"])], [("x", T.INT64, [9]), ("z", T.INT64, [9])],
                 [("y", T.INT64, [9]), ("e", T.BOOL, [9])], {"low": np.array(2)})
    got = load(made)(ints, -ints)
    np.testing.assert_array_equal(got[0], np.maximum(abs(ints), 2))
    np.testing.assert_array_equal(got[1], ints == 0)
    made = model([node("Clip", ["x"], ["y"], min=-1.0, max=1.0)], [("x", T.FLOAT, [14, 14])], [("y", T.FLOAT, [14, 14])], opset=10)
    close(load(made)(X), np.clip(X, -1, 1), "Clip")
