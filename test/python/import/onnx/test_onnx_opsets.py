"""Models of older opsets: forms that changed, each against what it means in NumPy."""
import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper
from onnx_cases import load, node  # noqa: F401

from diffattn import errors

pytestmark = pytest.mark.oracle

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
IMAGE = np.random.default_rng(1).standard_normal((1, 2, 4, 6)).astype(np.float32)


def model_of(opset, nodes, sizes, outputs, inputs=(), weights=()):
    graph = helper.make_graph(nodes, "graph", [helper.make_tensor_value_info("x", T.FLOAT, sizes), *inputs],
                              [helper.make_tensor_value_info(name, T.FLOAT, [None] * rank) for name, rank in outputs], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def softmax(x, axes):
    powers = np.exp(x - x.max(axes, keepdims=True))
    return powers / powers.sum(axes, keepdims=True)


#: Node and value of `x`, for opsets 7 and 11.
FORMS = [
    *((node(op, ["x"], [f"{op} {axis}"], **({} if axis is None else {"axis": axis})), function)
      for axis, axes in ((None, (1, 2)), (0, (0, 1, 2)), (2, (2,)), (-2, (1, 2)))
      for op, function in (("Softmax", lambda x, axes=axes: softmax(x, axes)), ("LogSoftmax", lambda x, axes=axes: np.log(softmax(x, axes))))),
    *((node(f"Reduce{op}", ["x"], [f"{op} {axes} {keep}"], keepdims=keep, **({} if axes is None else {"axes": axes})),
       lambda x, function=function, axes=axes, keep=keep: function(x, None if axes is None else tuple(axes), bool(keep)))
      for axes in (None, [-1, 0]) for keep in (0, 1)
      for op, function in (("Sum", lambda x, a, k: x.sum(a, keepdims=k)), ("Mean", lambda x, a, k: x.mean(a, keepdims=k)), ("Max", lambda x, a, k: x.max(a, keepdims=k)),
                           ("Min", lambda x, a, k: x.min(a, keepdims=k)), ("L1", lambda x, a, k: abs(x).sum(a, keepdims=k)),
                           ("SumSquare", lambda x, a, k: (x * x).sum(a, keepdims=k)))),
    (node("Squeeze", ["unsqueezed"], ["squeezed"], axes=[0, 2]), lambda x: x), (node("Unsqueeze", ["x"], ["unsqueezed"], axes=[0, 2]), lambda x: x[None, :, None]),
    (node("Split", ["x"], ["a", "b"], axis=2, split=[1, 3]), lambda x: x[..., :1]), (node("Split", ["x"], ["c", "d"], axis=-1), lambda x: x[..., :2]),
    (node("Dropout", ["x"], ["dropped"]), lambda x: x), (node("Reciprocal", ["x"], ["reciprocal"]), lambda x: 1 / x), (node("Softsign", ["x"], ["softsign"]), lambda x: x / (1 + abs(x))),
    (node("Max", ["x", "softsign"], ["max"]), lambda x: np.maximum(x, x / (1 + abs(x)))), (node("Min", ["x", "softsign"], ["min"]), lambda x: np.minimum(x, x / (1 + abs(x)))),
]
OLD = [(node("Clip", ["x"], ["clipped"], min=-0.5, max=0.25), lambda x: np.clip(x, -0.5, 0.25)), (node("Slice", ["x"], ["sliced"], starts=[1, -3], ends=[9, -1], axes=[0, 2]), lambda x: x[1:, :, 1:3]),
       (node("Slice", ["x"], ["first"], starts=[0], ends=[1]), lambda x: x[:1]), (node("Pad", ["x"], ["padded"], pads=[0, 1, 0, 0, 0, 2], value=1.5), lambda x: np.pad(x, [(0, 0), (1, 0), (0, 2)], constant_values=1.5))]


@pytest.mark.parametrize("opset, sizes", [(7, ["b", 3, 4]), (11, [2, "t", 4])])
def test_forms_of_old_opsets(load, opset, sizes):
    forms = sorted([*FORMS, *(OLD if opset < 10 else ())], key=lambda one: one[0].op_type == "Squeeze")
    made = model_of(opset, [one for one, _ in forms], sizes, [(one.output[0], np.ndim(function(X))) for one, function in forms])
    for (one, function), got in zip(forms, load(made)(X), strict=True):
        np.testing.assert_allclose(got, function(X), rtol=1e-5, atol=1e-6, err_msg=str(one))


def test_softmax_of_a_rank_that_onnx_does_not_infer(load):
    """As behind a Resize by scales that are computed."""
    nodes = [node("Shape", ["x"], ["s"]), node("Cast", ["s"], ["f"], to=T.FLOAT), node("Div", ["f", "f"], ["ones"]), node("Mul", ["ones", "twice"], ["scales"]),
             node("Resize", ["x", "roi", "scales"], ["r"], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"), node("Flatten", ["r"], ["rows"]), node("Softmax", ["rows"], ["y"], axis=1)]
    made = model_of(11, nodes, [1, 2, 4, 6], [("y", 2)], weights=[helper.make_tensor("twice", T.FLOAT, [4], [1, 1, 2, 2]), helper.make_tensor("roi", T.FLOAT, [0], [])])
    np.testing.assert_allclose(load(made)(IMAGE), softmax(IMAGE.repeat(2, 2).repeat(2, 3).reshape(1, -1), (1,)), rtol=1e-5)


def test_what_is_refused_of_old_opsets(load):
    """onnx converts the last two of them to what means something else."""
    norm = [helper.make_tensor_value_info(name, T.FLOAT, [3]) for name in "sbmv"]
    for opset, one, message in ((6, node("Relu", ["x"], ["y"]), "expected a model of opset 7 or later, but got one of opset 6"),
                                (7, node("BatchNormalization", ["x", *"sbmv"], ["y"], spatial=0), "expected a model that onnx converts from opset 7 to 18, but got: .*spatial must have value 1"),
                                (9, node("Upsample", ["x", "s"], ["y"]), "'Upsample', which makes 'y': expected Upsample of opset 10 or later, but got one of opset 9"),
                                (10, node("Resize", ["x", "s"], ["y"]), "'Resize', which makes 'y': expected Resize of opset 11 or later, but got one of opset 10")):
        with pytest.raises(errors.CompileError, match=message):
            load(model_of(opset, [one], [2, 3, 4], [("y", 3)], norm))


def test_branches_of_old_opsets(load):
    """Are converted too, and errors name their nodes."""
    def made(*nodes):
        branches = [helper.make_graph(inner, "branch", [], [helper.make_tensor_value_info(inner[-1].output[0], T.FLOAT, [None] * 3)])
                    for inner in (nodes, [node("Relu", ["x"], ["b"])])]
        return model_of(11, [node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])], [2, 3, 4], [("y", 3)],
                        [helper.make_tensor_value_info("c", T.BOOL, [])])

    loaded = load(made(node("ReduceSum", ["x"], ["s"], axes=[1]), node("Softmax", ["s"], ["a"], axis=1)))
    np.testing.assert_allclose(loaded(X, np.array(True)), softmax(X.sum(1, keepdims=True), (1, 2)), rtol=1e-5)
    np.testing.assert_array_equal(loaded(X, np.array(False)), np.maximum(X, 0))
    with pytest.raises(errors.CompileError, match="but got 'TopK', which makes 'a', 'i'"):
        load(made(node("Constant", [], ["k"], value=helper.make_tensor("k", T.INT64, [1], [1])), node("TopK", ["x", "k"], ["a", "i"]), node("Relu", ["a"], ["r"])))
