"""diffattn.onnx.load on small models: what goes in and out, and weights."""
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_cases import LINEAR, WIDE, data, external, load, model, node  # noqa: F401

from diffattn import errors

pytestmark = pytest.mark.oracle


def test_arguments_by_place_and_by_name(load):
    loaded = load(model(**LINEAR))
    assert [(value.name, value.dtype, value.sizes) for value in loaded.inputs] == [("x", np.float32, ("rows", 6)), ("b", np.float32, ("rows", 1))]
    assert [value.name for value in loaded.outputs] == ["y", "z"]
    for rows in (1, 4):
        x, b = np.random.default_rng(rows).standard_normal((rows, 6)).astype(np.float32), np.full((rows, 1), 2, np.float32)
        for got in (loaded(x, b), loaded(x, b=b), loaded(b=b, x=x), loaded(x[::-1][::-1], b)):
            assert isinstance(got, tuple) and all(type(one) is np.ndarray for one in got)
            np.testing.assert_allclose(got[0], x @ WIDE + 2, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(got[1], np.maximum(x @ WIDE, 0), rtol=1e-5, atol=1e-6)
    assert 'tensor<6x5xf32> {diffattn.weight = "layer.weight"}' in loaded.mlir


def test_tensors_give_tensors(load):
    import torch

    loaded, x = load(model(**LINEAR)), torch.randn(3, 6)
    y, z = loaded(x, np.zeros((3, 1), np.float32))
    torch.testing.assert_close(y, x @ torch.from_numpy(WIDE), rtol=1e-5, atol=1e-5)
    assert isinstance(z, torch.Tensor)
    y += 1  # its own memory
    with pytest.raises(errors.InputError, match="x: expected a tensor without gradient"):
        loaded(x.requires_grad_(), torch.zeros(3, 1))


@pytest.mark.parametrize("kind", ["FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT64", "INT32", "INT16", "INT8", "UINT8"])
def test_types_of_elements(load, kind):
    """Values that are kept by type, not as raw bytes, and as arguments and results."""
    code = getattr(T, kind)
    loaded = load(model([node("Add", ["x", "c"], ["y"])], [("x", code, ["n"])], [("y", code, ["n"])],
                        [helper.make_tensor("c", code, [1], [3])]))
    dtype = {"BFLOAT16": ml_dtypes.bfloat16}.get(kind) or helper.tensor_dtype_to_np_dtype(code)
    got = loaded(np.arange(100, 104).astype(dtype))
    assert got.dtype == dtype and got.astype(int).tolist() == [103, 104, 105, 106]


def test_truth_values_and_masks_stay_in_the_graph(load):
    mask = np.triu(np.full((40, 40), -np.inf, np.float32), 1)
    seen = np.tril(np.ones((40, 40), bool))
    nodes = [node("Add", ["x", "mask"], ["h"]), node("Where", ["seen", "h", "x"], ["y"])]
    loaded = load(model(nodes, [("x", T.FLOAT, [40, 40])], [("y", T.FLOAT, [40, 40])], {"mask": mask, "seen": seen}))
    assert "diffattn.weight" not in loaded.mlir
    x = np.random.default_rng(0).standard_normal((40, 40)).astype(np.float32)
    assert np.array_equal(loaded(x), x)


@pytest.mark.parametrize("axis, options", [(0, {}), (1, {}), (-1, {"reverse": 1}), (0, {"exclusive": 1}), (1, {"exclusive": 1, "reverse": 1})])
@pytest.mark.parametrize("kind", [T.FLOAT, T.INT64])
def test_cumsum(load, axis, options, kind):
    made = model([node("CumSum", ["x", "axis"], ["y"], **options)], [("x", kind, ["n", "m"])], [("y", kind, ["n", "m"])], {"axis": np.array(axis)})
    x = np.arange(12).reshape(3, 4).astype(helper.tensor_dtype_to_np_dtype(kind)) ** 2
    want = ReferenceEvaluator(made).run(None, {"x": x})[0]
    np.testing.assert_array_equal(load(made)(x), want)


HEADS = dict(q=(2, 4, 5, 8), k=(2, 2, 7, 8), v=(2, 2, 7, 6))
ROWS = dict(q=(2, 5, 32), k=(2, 7, 16), v=(2, 7, 12))


@pytest.mark.parametrize("shapes, options, mask", [
    (HEADS, {}, None), (HEADS, {"is_causal": 1, "scale": 0.3}, None), (ROWS, {"q_num_heads": 4, "kv_num_heads": 2}, None),
    (HEADS, {}, "bool"), (HEADS, {}, "float32"), (HEADS, {"softcap": 2.0}, None)])
def test_attention(load, shapes, options, mask):
    """ONNX's own op, taken apart here or, with a soft cap, as ONNX says; a query that sees no key gives 0."""
    random, given = np.random.default_rng(0), {}
    for name, shape in shapes.items():
        given[name] = random.standard_normal(shape).astype(np.float32)
    if mask:
        seen = random.random((5, 7)) < 0.5
        seen[2] = False
        given["mask"] = seen if mask == "bool" else np.where(seen, 0, -np.inf).astype(np.float32)
    rank, width = len(shapes["q"]), shapes["v"][-1] * (2 if shapes is ROWS else 1)
    sizes = {name: ["b", *array.shape[1:]] if name != "mask" else array.shape for name, array in given.items()}
    made = model([node("Attention", [*given], ["y"], **options)], [(name, helper.np_dtype_to_tensor_dtype(given[name].dtype), sizes[name]) for name in given],
                 [("y", T.FLOAT, ["b", 4, 5, width] if rank == 4 else ["b", 5, width])], opset=23)
    want = ReferenceEvaluator(made).run(None, given)[0]
    np.testing.assert_allclose(load(made)(**given), np.where(np.isnan(want), 0, want), rtol=1e-4, atol=1e-5)


def test_attention_with_a_mask_is_raised(load):
    """Its guard of rows that see no key is the least of truth values."""
    nodes = [node("Attention", [f"q{n}", f"k{n}", "v", "mask"], [f"o{n}"]) for n in "12"]
    nodes += [node("Mul", ["o2", "lambda"], ["noise"]), node("Sub", ["o1", "noise"], ["y"])]
    made = model(nodes, [*[(name, T.FLOAT, [2, 2, 5, 8]) for name in ("q1", "k1", "q2", "k2", "v")], ("mask", T.BOOL, [5, 5])],
                 [("y", T.FLOAT, [2, 2, 5, 8])], {"lambda": np.float32(0.3).reshape(())}, opset=23)
    loaded, random = load(made), np.random.default_rng(0)
    assert not loaded.diagnostics and sum(d.name == "Raised" for d in loaded.applied) == 1
    given = {name: random.standard_normal((2, 2, 5, 8)).astype(np.float32) for name in ("q1", "k1", "q2", "k2", "v")}
    given["mask"] = random.random((5, 5)) < 0.7
    given["mask"][2] = False
    want = ReferenceEvaluator(made).run(None, given)[0]
    np.testing.assert_allclose(loaded(**given), np.where(np.isnan(want), 0, want), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ids", [False, True])
def test_rotary_embedding(load, ids):
    random = np.random.default_rng(0)
    given = {"x": random.standard_normal((2, 4, 5, 8)), "cos": random.random((9, 4) if ids else (2, 5, 4)), "sin": random.random((9, 4) if ids else (2, 5, 4))}
    given = {name: array.astype(np.float32) for name, array in given.items()}
    inputs = [("x", T.FLOAT, ["b", 4, "t", 8]), *[(name, T.FLOAT, [9, 4] if ids else ["b", "t", 4]) for name in ("cos", "sin")]]
    if ids:
        given["ids"] = random.integers(0, 9, (2, 5))
        inputs.append(("ids", T.INT64, ["b", "t"]))
    made = model([node("RotaryEmbedding", [*given], ["y"])], inputs, [("y", T.FLOAT, ["b", 4, "t", 8])], opset=23)
    np.testing.assert_allclose(load(made)(**given), ReferenceEvaluator(made).run(None, given)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"interleaved": 1}, {"rotary_embedding_dim": 4}, {"interleaved": 1, "rotary_embedding_dim": 4, "num_heads": 2}, {"num_heads": 2}])
def test_forms_of_rotary_embeddings(load, options):
    """Neighbours in pairs, the first elements of a head alone, heads side by side in rows."""
    random, rows, turned = np.random.default_rng(0), "num_heads" in options, options.get("rotary_embedding_dim", 8)
    given = {"x": random.standard_normal((2, 5, 16) if rows else (2, 2, 5, 8)), "cos": random.random((2, 5, turned // 2)), "sin": random.random((2, 5, turned // 2))}
    given = {name: array.astype(np.float32) for name, array in given.items()}
    sizes = {"x": ["b", "t", 16] if rows else ["b", 2, "t", 8], "cos": ["b", "t", turned // 2], "sin": ["b", "t", turned // 2]}
    made = model([node("RotaryEmbedding", [*given], ["y"], **options)], [(name, T.FLOAT, one) for name, one in sizes.items()], [("y", T.FLOAT, sizes["x"])], opset=23)
    np.testing.assert_allclose(load(made)(**given), ReferenceEvaluator(made).run(None, given)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("left, right", [(2, 0), (1, 2), (-1, 1)])
def test_attention_in_windows(load, left, right):
    """Each query sees the keys from `left` before it to `right` behind it."""
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((1, 2, 6, 4)).astype(np.float32) for _ in range(3))
    made = model([node("Attention", ["q", "k", "v"], ["y"], left_window_size=left, right_window_size=right)], [(name, T.FLOAT, [1, 2, 6, 4]) for name in "qkv"], [("y", T.FLOAT, [1, 2, 6, 4])], opset=25)
    away = np.arange(6)[None] - np.arange(6)[:, None]
    scores = np.where((left < 0) | (away >= -left) & (away <= right) if left >= 0 else away <= right, q @ k.swapaxes(2, 3) / 2, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(load(made)(q, k, v), powers / powers.sum(-1, keepdims=True) @ v, rtol=1e-4, atol=1e-5)


def test_reciprocal_of_zero(load):
    made = model([node("Reciprocal", ["x"], ["y"])], [("x", T.FLOAT, ["n"])], [("y", T.FLOAT, ["n"])])
    np.testing.assert_array_equal(load(made)(np.array([0, 2, -0.0, np.inf], np.float32)), np.array([np.inf, 0.5, -np.inf, 0], np.float32))


@pytest.mark.parametrize("kind, tolerance", [(T.FLOAT, 1e-5), (T.FLOAT16, 2e-3)])
def test_rms_normalization(load, kind, tolerance):
    made = model([node("RMSNormalization", ["x", "w"], ["y"], axis=1, epsilon=0.1)], [("x", kind, ["n", 3, 4]), ("w", kind, [3, 4])], [("y", kind, ["n", 3, 4])], opset=23)
    dtype, random = helper.tensor_dtype_to_np_dtype(kind), np.random.default_rng(0)
    x, w = random.standard_normal((2, 3, 4)).astype(dtype), random.random((3, 4)).astype(dtype)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide ** 2).mean((1, 2), keepdims=True) + 0.1) * w
    np.testing.assert_allclose(load(made)(x, w).astype(np.float64), want, rtol=tolerance, atol=tolerance)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind, tolerance", [(T.FLOAT, 1e-5), (T.FLOAT16, 3e-3), (T.DOUBLE, 1e-12)])
@pytest.mark.parametrize("sizes", [[2, 3, 5], ["n", 3, 5], [2, 3, "t"], [2, 3, "h", "w"], ["n", 3, "h", 7]])
def test_instance_normalization(load, sizes, kind, tolerance):
    made = model([node("InstanceNormalization", ["x", "scale", "bias"], ["y"], epsilon=0.1)],
                 [("x", kind, sizes), ("scale", kind, [3]), ("bias", kind, [3])], [("y", kind, sizes)])
    dtype, random = helper.tensor_dtype_to_np_dtype(kind), np.random.default_rng(0)
    x, scale, bias = (random.standard_normal(shape).astype(dtype) for shape in ((2, 3, 5, 7)[:len(sizes)], 3, 3))
    wide, axes = x.astype(np.float64), tuple(range(2, x.ndim))
    normed = (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + np.float32(0.1))
    want = normed * scale.reshape(3, *[1] * len(axes)) + bias.reshape(3, *[1] * len(axes))
    got = load(made)(x, scale, bias)
    assert got.dtype == dtype
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind, tolerance", [(T.FLOAT, 1e-5), (T.FLOAT16, 3e-3)])
@pytest.mark.parametrize("sizes", [[2, 6, 5], ["n", 6, "t"], ["n", "c", 5], [2, 6, "h", "w"], ["n", 6]])
def test_group_normalization(load, sizes, kind, tolerance):
    """The model does not say the result's sizes."""
    made = model([node("GroupNormalization", ["x", "scale", "bias"], ["y"], num_groups=2, epsilon=0.1)],
                 [("x", kind, sizes), ("scale", kind, [6]), ("bias", kind, [6])], [("y", kind, [None] * len(sizes))], opset=21)
    dtype, random = helper.tensor_dtype_to_np_dtype(kind), np.random.default_rng(0)
    x, scale, bias = (random.standard_normal(shape).astype(dtype) for shape in ((2, 6, 5, 7)[:len(sizes)], 6, 6))
    groups, behind = x.astype(np.float64).reshape(2, 2, -1), [1] * (x.ndim - 2)
    normed = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 0.1)
    want = normed.reshape(x.shape) * scale.reshape(6, *behind) + bias.reshape(6, *behind)
    got = load(made)(x, scale, bias)
    assert got.dtype == dtype
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=tolerance, atol=tolerance)


def test_groups_whose_means_are_far_from_0(load):
    """The variance is that of what is left, no difference of squares."""
    made = model([node("GroupNormalization", ["x", "one", "zero"], ["y"], num_groups=2)], [("x", T.FLOAT, ["n", 4, "t"])], [("y", T.FLOAT, [None] * 3)],
                 {"one": np.ones(4, np.float32), "zero": np.zeros(4, np.float32)}, opset=21)
    x = (np.random.default_rng(0).standard_normal((2, 4, 50)) + 100).astype(np.float32)
    rows = x.astype(np.float64).reshape(2, 2, -1)
    want = (rows - rows.mean(2, keepdims=True)) / np.sqrt(rows.var(2, keepdims=True) + 1e-5)
    np.testing.assert_allclose(load(made)(x), want.reshape(x.shape), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", ["Softplus", "Softsign"])
@pytest.mark.parametrize("constant", [False, True])
def test_softplus_and_softsign(load, op, constant):
    """The operand is an argument or a learned number, which is a constant of the graph."""
    values = np.array([-50, -1, 0, 2, 90], np.float32)
    nodes, weights = [node(op, ["w"], ["s"]), node("Mul", ["x", "s"], ["y"])], {"w": values} if constant else {}
    inputs = [("x", T.FLOAT, ["n", 5]), *([] if constant else [("w", T.FLOAT, [5])])]
    given = {"x": np.ones((3, 5), np.float32), **({} if constant else {"w": values})}
    want = np.logaddexp(values, 0) if op == "Softplus" else values / (1 + abs(values))
    np.testing.assert_allclose(load(model(nodes, inputs, [("y", T.FLOAT, ["n", 5])], weights))(**given), [want] * 3, rtol=1e-6)


def test_functions_of_the_model(load):
    function = helper.make_function("own", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 20)])
    loaded = load(model([node("Twice", ["x"], ["y"], domain="own")], functions=[function]))
    assert loaded(np.ones((2, 3), np.float32)).tolist() == [[2] * 3] * 2


def test_names_that_text_cannot_hold(load):
    """Weights keep apart whose names differ only in characters that are written as others."""
    names = ['w\x1b[2J{}"\n', "w\x1b[2J{ }'\n", "w{}"]
    made = model([node("Sum", ["x", *names], ["y"])], [("x", T.FLOAT, [20])], [("y", T.FLOAT, [20])],
                 {name: np.full(20, 10.0 ** i, np.float32) for i, name in enumerate(names)})
    assert load(made)(np.zeros(20, np.float32)).tolist() == [111] * 20


@pytest.mark.parametrize("offset, shift", [(None, 0), (4, 1), (1, None)])
def test_external_data(load, data, offset, shift):
    loaded = load(external("within/w.bin", offset, 400))
    got = loaded(np.zeros(100, np.float32))
    (bound,) = loaded._function._weights
    assert bound.flags.aligned and bound.flags.owndata == (shift is None)  # copied only where it lies at no multiple
    if shift is None:  # not at a multiple of the elements' size
        want = np.frombuffer(np.arange(101, dtype=np.float32).tobytes()[1:401], np.float32)
    else:
        want = np.arange(100, dtype=np.float32) + shift
    assert np.array_equal(got, want)


def test_torch_is_not_imported(tmp_path):
    (tmp_path / "m.onnx").write_bytes(model(**LINEAR).SerializeToString())
    code = ("import sys, numpy, diffattn; assert not {'onnx', 'torch', 'torch_mlir'} & set(sys.modules)\n"
            f"sys.modules['torch'] = None; f = diffattn.onnx.load({str(tmp_path / 'm.onnx')!r})\n"
            "assert f(numpy.ones((2, 6), 'float32'), numpy.ones((2, 1), 'float32'))[0].shape == (2, 5)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
