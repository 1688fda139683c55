"""ONNX ops that move elements, sums of products by name, and what is refused lest the numbers be wrong, against onnx's own evaluator."""
import numpy as np
import pytest
from onnx import TensorProto as T
from onnx.reference import ReferenceEvaluator
from onnx_cases import load, model, node  # noqa: F401

from diffattn import errors

pytestmark = pytest.mark.oracle


def arrays(*shapes):
    random = np.random.default_rng(0)
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("sizes", [[2, 16, 2, 3], ["b", 16, "h", "w"], ["b", 4, "h", 3], [2, 4, 2, "w"]])
def test_depth_to_space(load, sizes):
    made = model([node("DepthToSpace", ["x"], ["y"], blocksize=2)], [("x", T.FLOAT, sizes)], [("y", T.FLOAT, [None] * 4)])
    (x,) = arrays((2, sizes[1], 2, 3))
    np.testing.assert_array_equal(load(made)(x), ReferenceEvaluator(made).run(None, {"x": x})[0])


@pytest.mark.parametrize("given", [["b", "t"], ["b", 3], ["t"]])
def test_rows_of_a_table(load, given):
    """GatherND of numbers of rows, which PyTorch's exporter makes of `table[ids]`."""
    made = model([node("Unsqueeze", ["ids", "last"], ["places"]), node("GatherND", ["table", "places"], ["y"])], [("ids", T.INT64, given)],
                 [("y", T.FLOAT, [*given, 4])], {"table": arrays((5, 4))[0], "last": np.array([-1])})
    loaded, reference = load(made), ReferenceEvaluator(made)
    for b, t in ((1, 1), (2, 3), (1, 4), (3, 1)):
        shape = [b if n == "b" else t if n == "t" else n for n in given]
        ids = np.random.default_rng(t).integers(-5, 5, shape)
        np.testing.assert_array_equal(loaded(ids), reference.run(None, {"ids": ids})[0])


@pytest.mark.parametrize("equation, x, w", [
    ("btc,dc->btd", ["b", "t", 6], [5, 6]), ("bthk,hkd->btd", ["b", "t", 2, 3], [2, 3, 4]), ("btc,chk->bhtk", ["b", "t", 6], [6, 2, 3]),
    ("btc,c->bt", ["b", "t", 6], [6]), ("bhtk,hk->bht", ["b", 2, "t", 3], [2, 3]), ("b h i j, h g -> b g i j", ["b", 2, "t", "s"], [2, 3]),
    ("hd,bhtd->hbt", [2, 3], ["b", 2, "t", 3]), ("tc,c->t", ["t", 6], [6]), ("c,tc->t", [6], ["t", 6]), ("btc,btc->bt", ["b", "t", 6], [2, 3, 6])])
def test_sums_of_products_with_a_weight(load, equation, x, w):
    made = model([node("Einsum", ["x", "w"], ["y"], equation=equation)], [("x", T.FLOAT, x), ("w", T.FLOAT, w)],
                 [("y", T.FLOAT, [None] * len(equation.partition("->")[2].replace(" ", "")))])
    loaded = load(made)
    for b, t in [(2, 3)] if equation == "btc,btc->bt" else [(1, 1), (2, 3), (1, 5), (3, 1)]:
        shapes = [[{"b": b, "t": t, "s": t + 1}.get(n, n) for n in shape] for shape in (x, w)]
        given = arrays(*shapes)
        np.testing.assert_allclose(loaded(*given), np.einsum(equation, *given), rtol=1e-5, atol=1e-6)


def test_constants_of_floats(load):
    made = model([node("Constant", [], ["c"], value_floats=[1.0, 2.5, -3.0]), node("Mul", ["x", "c"], ["y"])])
    assert load(made)(np.ones((2, 3), np.float32)).tolist() == [[1, 2.5, -3]] * 2


@pytest.mark.parametrize("op, sizes, options", [
    ("MaxPool", [2, 4, 6, 7], dict(auto_pad="SAME_UPPER", strides=[2, 2])), ("MaxPool", ["b", 4, "h", "w"], dict(pads=[1, 1, 1, 1], strides=[2, 2])),
    ("AveragePool", ["b", 4, "h", "w"], dict(pads=[1, 1, 1, 1])), ("AveragePool", ["b", 4, "h", "w"], dict(auto_pad="SAME_UPPER"))])
def test_pools(load, op, sizes, options):
    made = model([node(op, ["x"], ["y"], kernel_shape=[3, 3], **options)], [("x", T.FLOAT, sizes)], [("y", T.FLOAT, [None] * 4)])
    (x,) = arrays((2, 4, 6, 7))
    np.testing.assert_allclose(load(made)(x), ReferenceEvaluator(made).run(None, {"x": x})[0], rtol=1e-5, atol=1e-6)


def test_a_crash_that_waits_for_ever_ends(load, monkeypatch):
    """torch-mlir's program writes over its heap, and its report of the crash waits for the lock of the heap: at the time of writing, for a
    form of the op that no longer reaches it."""
    monkeypatch.setattr("diffattn.onnx.lowering.upgrade", lambda proto: proto)
    made = model([node("LogSoftmax", ["x"], ["y"], axis=0)], [("x", T.FLOAT, ["b", "t", 6])], [("y", T.FLOAT, ["b", "t", 6])], opset=11)
    with pytest.raises(errors.CompileError, match="its program crashed"):
        load(made)
