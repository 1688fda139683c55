"""Element-wise ops of ONNX on NaN, infinities and zeros of both signs, against onnx's own evaluator."""
import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper
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


def test_selu_has_the_constants_of_onnx(load):
    x = np.linspace(-5, 5, 40, dtype=np.float32)
    made = model([node("Selu", ["x"], ["y"]), node("Selu", ["x"], ["z"], alpha=2.0)], [("x", T.FLOAT, [40])], [("y", T.FLOAT, [40]), ("z", T.FLOAT, [40])])
    for got, alpha in zip(load(made)(x), (1.67326319217681884765625, 2.0)):
        np.testing.assert_allclose(got, 1.05070102214813232421875 * np.where(x > 0, x, alpha * np.expm1(x.astype(np.float64))), rtol=4e-7)


def test_ops_within_branches(load):
    """As outside of them, also of values that are made outside."""
    branches = {f"{name}_branch": helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(made, T.FLOAT, ["n"])]) for name, made, nodes in (
        ("then", "a", [node("Min", ["x", "z"], ["least"]), node("Selu", ["least"], ["a"])]), ("else", "b", [node("Max", ["x", "z"], ["b"])]))}
    made = model([node("Add", ["x", "x"], ["z"]), node("If", ["c"], ["y"], **branches)], [("x", T.FLOAT, ["n"]), ("c", T.BOOL, [])], [("y", T.FLOAT, ["n"])])
    loaded, x = load(made), np.array([1, np.nan, -2.5, np.inf, 3e7], np.float32)
    with np.errstate(all="ignore"):
        least = np.minimum(x, x + x)
        want = 1.05070102214813232421875 * np.where(least > 0, least, 1.67326319217681884765625 * np.expm1(least))
    np.testing.assert_array_equal(loaded(x, np.array(False)), np.maximum(x, x + x))
    np.testing.assert_allclose(loaded(x, np.array(True)), want, rtol=4e-7)


def test_integers_and_limits_as_attributes(load):
    ints = np.arange(-4, 5)
    made = model([node("Max", ["x", "z"], ["m"]), node("Clip", ["m", "low"], ["y"]), node("Equal", ["x", "z"], ["e"])], [("x", T.INT64, [9]), ("z", T.INT64, [9])],
                 [("y", T.INT64, [9]), ("e", T.BOOL, [9])], {"low": np.array(2)})
    got = load(made)(ints, -ints)
    np.testing.assert_array_equal(got[0], np.maximum(abs(ints), 2))
    np.testing.assert_array_equal(got[1], ints == 0)
    made = model([node("Clip", ["x"], ["y"], min=-1.0, max=1.0)], [("x", T.FLOAT, [14, 14])], [("y", T.FLOAT, [14, 14])], opset=10)
    close(load(made)(X), np.clip(X, -1, 1), "Clip")


def test_integers_are_negated_as_integers(load):
    n = np.array([-16777217, 2**31 - 1, 5], np.int32)
    made = model([node("Neg", ["n"], ["y"])], [("n", T.INT32, [3])], [("y", T.INT32, [3])])
    np.testing.assert_array_equal(load(made)(n), -n)


@pytest.mark.parametrize("options", [{}, {"transB": 1}, {"transA": 1}])
def test_gemm_without_c(options, load):
    a, b = np.ones((2, 3), np.float32), np.arange(12, dtype=np.float32).reshape(3, 4)
    a, b = a.T if options.get("transA") else a, b.T if options.get("transB") else b
    made = model([node("Gemm", ["a", "b"], ["y"], **options)], [("a", T.FLOAT, list(a.shape)), ("b", T.FLOAT, list(b.shape))], [("y", T.FLOAT, [2, 4])])
    np.testing.assert_allclose(load(made)(a.copy(), b.copy()), ReferenceEvaluator(made).run(None, {"a": a, "b": b})[0], rtol=1e-6)
