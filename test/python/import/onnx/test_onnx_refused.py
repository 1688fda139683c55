"""Refusals of diffattn.onnx.load and of its functions, each by one error of the package."""
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper
from onnx_cases import FLOAT, LINEAR, data, external, load, model, node  # noqa: F401

import diffattn
from diffattn import errors

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("call, message", [
    (lambda f, x, b: f(x), "expected arguments x, b, but b is missing"),
    (lambda f, x, b: f(x, b, b), "expected at most 2 arguments, x, b, but got 3"),
    (lambda f, x, b: f(x, x=x, b=b), "x: expected it once, but got it by place and by name"),
    (lambda f, x, b: f(x, c=b), "expected arguments among x, b, but got 'c'"),
    (lambda f, x, b: f(x.astype(np.float64), b), "x: expected elements of float32, but got float64"),
    (lambda f, x, b: f(x[:, :5], b), r"x: expected shape \[rows, 6\], but got \[3, 5\]"),
    (lambda f, x, b: f(x[0], b), r"x: expected shape \[rows, 6\], but got \[6\]"),
    (lambda f, x, b: f(x, b[:2]), "b, size of axis 0: expected rows = 3, as for x, size of axis 0, but got 2"),
    (lambda f, x, b: f("x", b), "x: expected elements of float32, but got <U1"),
    (lambda f, x, b: f(1.5, b), "x: expected elements of float32, but got float64"),
])
def test_calls(load, call, message):
    loaded, x, b = load(model(**LINEAR)), np.ones((3, 6), np.float32), np.ones((3, 1), np.float32)
    with pytest.raises(errors.InputError, match=message):
        call(loaded, x, b)
    loaded(x, b)


@pytest.mark.parametrize("fields, message", [
    (dict(location="../secret.bin"), "expected external data in a file below the model's folder, but got '../secret.bin'"),
    (dict(location="link.bin"), "expected external data in a file below the model's folder, but got 'link.bin'"),
    (dict(location="/dev/zero"), "below the model's folder, but got '/dev/zero'"),
    (dict(location=""), "below the model's folder, but got ''"),
    (dict(location="within"), "expected a regular file, but got a folder"),
    (dict(location="none.bin"), "none.bin: expected a readable file, but got: No such file"),
    (dict(location="within/w.bin", offset=8), "expected 400 bytes at 8 of .*w.bin, but it has 404 in all"),
    (dict(location="within/w.bin", offset=-4), "expected numbers of bytes as the offset and the length of its external data, but got: .*must be non-negative, got -4"),
    (dict(location="within/w.bin", length=100), r"expected 400 bytes for shape \[100\], but the model says 100"),
])
def test_external_data_that_is_refused(load, data, fields, message):
    with pytest.raises(errors.WeightsError, match=message):
        load(external(**fields))


def raw(dims, data=b"1234"):
    return T(name="w", data_type=T.FLOAT, dims=dims, raw_data=data)


def own(name, calls):
    return helper.make_function("own", name, ["x"], ["y"], [node(calls, ["x"], ["y"], domain="own")],
                                [helper.make_opsetid("own", 1), helper.make_opsetid("", 20)])


RELU, ADD = [node("Relu", ["x"], ["y"])], [node("Add", ["x", "w"], ["y"])]
REFUSED = {
    "circular": (dict(nodes=[node("Add", ["x", "b"], ["a"]), node("Add", ["a", "x"], ["b"]), node("Relu", ["b"], ["y"])]), "IRError", "topologically sorted"),
    "functions": (dict(nodes=[node("F", ["x"], ["y"], domain="own")], functions=[own("F", "G"), own("G", "F")]), "IRError", "must not be recursive"),
    "twice": (dict(nodes=RELU * 2), "IRError", "has been used as output names multiple times"),
    "no output": (dict(nodes=[node("Relu", ["x"], ["z"])]), "IRError", "'y' is not an output of any node"),
    "no such op": (dict(nodes=[node("Frobnicate", ["x"], ["y"])]), "IRError", "No Op registered for Frobnicate"),
    "short": (dict(nodes=ADD, weights=[raw([2, 3])]), "IRError", r"tensor 'w': expected elements for shape \[2, 3\], but got: .*raw_data size \(4 bytes\) is too small"),
    "huge": (dict(nodes=ADD, weights=[raw([1 << 40] * 3)]), "IRError", "tensor 'w': .*Tensor dimension product overflow"),
    "negative": (dict(nodes=ADD, weights=[raw([-1])]), "IRError", "tensor 'w': .*Negative dimension value"),
    "constant": (dict(nodes=[node("Constant", [], ["w"], value=raw([2, 3])), *ADD]), "IRError", r"raw_data size \(4 bytes\) is too small"),
    "names": (dict(nodes=ADD, weights=[raw([1])] * 2), "IRError", "'w initializer name is not unique"),
    "names of large ones": (dict(nodes=ADD, weights=[raw([20], bytes(80))] * 2), "IRError", "expected a sound ONNX model"),
    "shapes": (dict(nodes=ADD, weights=[raw([5], bytes(20))]), "CompileError", r"expected a model whose sizes onnx infers, but got 'Add', which makes 'y' of 'x' \[2, 3\], 'w' \[5\]: 'Incompatible dimensions'"),
    "reshape": (dict(nodes=[node("Reshape", ["x", "s"], ["y"])], outputs=[("y", T.FLOAT, [4, 2])], weights={"s": np.array([4, 2])}), "CompileError", "Reshape"),
    "not lowered": (dict(nodes=[node("TopK", ["x", "k"], ["y", "i"])], outputs=[("y", T.FLOAT, [2, 2])], weights={"k": np.array([2])}), "CompileError",
                    "expected ops that torch-mlir lowers to upstream dialects, but got 'TopK', which makes 'y', 'i'"),
    "other ops": (dict(nodes=[node("Frob", ["x"], ["y"], domain="com.microsoft")]), "CompileError", "but got 'com.microsoft.Frob', which makes 'y'"),
    "random": (dict(nodes=[node("RandomNormalLike", ["x"], ["y"])]), "CompileError", "expected a model without random numbers, but got 'RandomNormalLike', which makes 'y'"),
    "texts": (dict(nodes=[node("Identity", ["x"], ["y"])], inputs=[("x", T.STRING, [2])], outputs=[("y", T.STRING, [2])]), "CompileError",
              "input 'x': expected elements of float, .*, but got string"),
    "sequence": (dict(nodes=[node("SplitToSequence", ["x"], ["s"]), node("ConcatFromSequence", ["s"], ["y"], axis=0)]), "CompileError", "'SplitToSequence'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_are_refused(load, name):
    made, error, message = REFUSED[name]
    with pytest.raises(getattr(errors, error), match=rf"^\S+model\.onnx: .*{message}"):
        load(model(**made))


def within(*nodes):
    """The branch of an If."""
    return helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info(nodes[-1].output[0], T.FLOAT, [None, None])])


SUM = helper.make_function("own", "Sum3", ["a", "b", "c"], ["d"], [node("Add", ["a", "b"], ["t"]), node("Add", ["t", "c"], ["d"], name="second")], [helper.make_opsetid("", 20)])
PLACES = {
    "named": ([node("Add", ["x", "w"], ["y"], name="sum of \x1b")], r"'Add' 'sum of \\x1b', which makes 'y' of 'x' \[2, 3\], 'w' \[n, 5\]: 'Incompatible dimensions'"),
    "the first of them": ([node("Add", ["x", "w"], ["h"]), node("Softmax", ["h"], ["g"]), node("MatMul", ["g", "w"], ["y"])], "'Add', which makes 'h' of 'x' .*Incompatible"),
    "in a branch": ([node("If", ["c"], ["y"], then_branch=within(node("Add", ["x", "w"], ["a"])), else_branch=within(node("Relu", ["x"], ["b"])))],
                    "'Add', which makes 'a' of 'x'.*, 'w'.*Incompatible"),
    "in a function": ([node("Sum3", ["x", "x", "w"], ["y"], domain="own")], "'Add' 'second' of function 'own.Sum3', which makes 'd' of 't', 'c': 'Incompatible"),
    "taken apart": ([node("RMSNormalization", ["x", "w"], ["y"], name="norm")], r"'RMSNormalization' 'norm', which makes 'y' of 'x' \[2, 3\], 'w' \[n, 5\]: 'Incompatible"),
    "taken apart in a branch": ([node("If", ["c"], ["y"], then_branch=within(node("Einsum", ["x", "w"], ["a"], equation="ab,bc->a")), else_branch=within(node("Relu", ["x"], ["b"])))],
                                "'Einsum', which makes 'a' of 'x'.*, 'w'.*"),
    "not lowered in a branch": ([node("If", ["c"], ["y"], then_branch=within(node("TopK", ["x", "k"], ["a", "i"])), else_branch=within(node("Relu", ["x"], ["b"])))], "'TopK', which makes 'a', 'i'"),
}


@pytest.mark.parametrize("name", PLACES)
def test_which_node_of_the_model_it_is(load, name):
    """Also of nodes that others took the place of: no others are named, nor errors that follow from the first."""
    nodes, message = PLACES[name]
    inputs = [*FLOAT, ("w", T.FLOAT, ["n", 5]), ("c", T.BOOL, [])]
    with pytest.raises(errors.CompileError, match=rf"^\S+model\.onnx: expected [^:]*, but got {message}") as caught:
        load(model(nodes, inputs, [("y", T.FLOAT, [None, None])], {"k": np.array([1])}, [SUM], opset=23))
    assert "op_type" not in str(caught.value) and "origin:" not in str(caught.value)


def test_files_that_are_no_models(load, tmp_path):
    whole = model(**LINEAR).SerializeToString()
    for cut in range(0, len(whole), 7):
        with pytest.raises((errors.IRError, errors.CompileError)):
            load(whole[:cut])
    load(whole)
    for file in (b"", b"hello", bytes(100), b"\x08" * 50):
        with pytest.raises(errors.IRError, match="expected an ONNX model, but got a file"):
            load(file)
    for path, message in ((tmp_path / "none.onnx", "No such file"), (tmp_path, "expected a regular file, but got a folder")):
        with pytest.raises(errors.InputError, match=message):
            diffattn.onnx.load(path)
    newer = model(RELU)
    newer.ir_version = 99
    with pytest.raises(errors.IRError, match="ir_version 99 is higher"):
        load(newer)


def test_damaged_bytes(load):
    """Whatever a byte becomes, there is a function or one error of the package."""
    whole, random = bytearray(model(**LINEAR).SerializeToString()), np.random.default_rng(5)
    for _ in range(40):
        at, was = random.integers(len(whole)), None
        was, whole[at] = whole[at], random.integers(256)
        try:
            load(bytes(whole), cache=False)
        except errors.DiffAttnError:
            pass
        whole[at] = was


@pytest.mark.parametrize("missing, message", [
    ("onnx", "expected the package onnx, but importing it gave: .*; pip install 'diffattn\\[onnx\\]'"),
    ("torch_mlir", "expected the package torch-mlir, but importing it gave: .*; pip install 'diffattn\\[onnx\\]'")])
def test_packages_that_are_missing(missing, message, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    diffattn.onnx.require.cache_clear()
    with pytest.raises(errors.LibraryError, match=message):
        diffattn.onnx.load("none.onnx")
    diffattn.onnx.require.cache_clear()


def test_options(load):
    for options, message in (({"target": "cuda"}, "target: expected one that reads memory of the host"), ({"threads": -1}, "threads: ")):
        with pytest.raises(errors.UsageError, match=message):
            load(model(RELU), **options)
    with pytest.raises(errors.UsageError, match="path: expected a path"):
        diffattn.onnx.load(None)


def test_a_crash_of_torch_mlir(load):
    """This op, at the time of writing, makes torch-mlir's passes read outside of memory; another process ends by that."""
    with pytest.raises(errors.CompileError, match="model.onnx: expected a model that torch-mlir lowers, but got: 'its program crashed'"):
        load(model([node("Unique", ["x"], ["y"])], [("x", T.INT64, [5])], [("y", T.INT64, ["n"])]))


BODY = helper.make_graph([node("Add", ["a", "x"], ["b"]), node("Identity", ["go"], ["on"])], "body", [helper.make_tensor_value_info("i", T.INT64, []), helper.make_tensor_value_info("go", T.BOOL, []), helper.make_tensor_value_info("a", T.FLOAT, [2, 3, 4, 4])],
                         [helper.make_tensor_value_info("on", T.BOOL, []), helper.make_tensor_value_info("b", T.FLOAT, [2, 3, 4, 4])])
#: Inputs are x, float [2, 3, 4, 4], l, int64 [2], i, int64 [2, 3, 4, 4], and d, as x in f64.
WRONG = [
    *((node(op, ["x"], ["y"], **options), f"ops of which torch-mlir makes ONNX's numbers, but got {op}") for op, options in
      (("Hardmax", {}), ("LRN", {"size": 3}), ("LpNormalization", {}))),
    (node("GridSample", ["x", "g"], ["y"]), "ops of which torch-mlir makes ONNX's numbers, but got GridSample"), (node("Loop", ["", "", "x"], ["y"], body=BODY), "ops of which .* but got Loop"),
    (node("SoftmaxCrossEntropyLoss", ["x", "i"], ["y"]), "ops of which .* but got SoftmaxCrossEntropyLoss"), (node("QLinearConv", [*"xxxxxxxx"], ["y"]), "ops of which .* but got QLinearConv"),
    (node("ArgMax", ["x"], ["y"], select_last_index=1), "ArgMax of the first of equal elements, but got select_last_index"), (node("ReduceL2", ["d"], ["y"]), "ReduceL2 of f16, bf16 or f32, but got f64"),
    (node("Mod", ["x", "x"], ["y"], fmod=1), "Mod of integers, or with the sign of the divisor, but got floats and fmod"), (node("Pow", ["i", "i"], ["y"]), "Pow of floats, or by floats, but got integers"),
    (node("Pad", ["x", "p"], ["y"], mode="wrap"), "Pad of mode constant, reflect or edge, but got wrap"), (node("DepthToSpace", ["x"], ["y"], blocksize=1, mode="CRD"), "DepthToSpace of mode DCR, but got CRD"),
    (node("SpaceToDepth", ["x"], ["y"], blocksize=2, mode="CRD"), "SpaceToDepth of mode DCR, but got CRD"), (node("Gemm", ["m", "m"], ["y"], alpha=0.5), "Gemm with C, or with alpha = 1, but got another alpha"),
    (node("MaxPool", ["x"], ["y", "places"], kernel_shape=[2, 2]), "MaxPool without the places of what it takes, but got one that makes them"),
    (node("MaxPool", ["u"], ["y"], kernel_shape=[2, 2]), "MaxPool of floats, but got integers"), (node("Div", ["u", "u"], ["y"]), "Div of other elements than uint8"),
    *((node("LSTM", inputs, ["y"], hidden_size=4, **options), f"LSTM {message}") for inputs, options, message in
      ((["s", "w", "r", "", "l"], {}, "of whole sequences, but got lengths of them"), (["s", "w", "r", "", "", "", "", "c"], {}, "without peepholes"), (["s", "w", "r"], {"clip": 0.5}, "without clip"),
       (["s", "w", "r"], {"activations": ["HardSigmoid", "Tanh", "Tanh"]}, "without activations"), (["s", "w", "r"], {"layout": 1}, "without layout"), (["s", "w", "r"], {"input_forget": 1}, "without input_forget")))]


@pytest.mark.parametrize("one, message", WRONG)
def test_what_torch_mlir_gets_wrong(load, one, message):
    """Is refused by the name of the node, before it is lowered."""
    sizes = {"x": (T.FLOAT, [2, 3, 4, 4]), "l": (T.INT32, [2]), "i": (T.INT64, [2, 3, 4, 4]), "d": (T.DOUBLE, [2, 3, 4, 4]), "u": (T.UINT8, [2, 3, 4, 4]), "m": (T.FLOAT, [4, 4]), "p": (T.INT64, [8]), "g": (T.FLOAT, [2, 5, 5, 2]),
             "s": (T.FLOAT, [3, 2, 3]), "w": (T.FLOAT, [1, 16, 3]), "r": (T.FLOAT, [1, 16, 4]), "c": (T.FLOAT, [1, 12])}
    inputs = [(name, *sizes[name]) for name in dict.fromkeys(one.input) if name]
    rank = {"GridSample": 4, "Loop": 4}.get(one.op_type)
    made = onnx.shape_inference.infer_shapes(model([one], inputs, [("y", T.FLOAT, [None] * rank)] if rank else [], opset=28 if one.op_type == "SpaceToDepth" else 20))
    made.graph.output.extend(value for value in made.graph.value_info if value.name == "y")
    made.ir_version = 13
    with pytest.raises(errors.CompileError, match=f"'{one.op_type}', which makes 'y'.*: expected {message}"):
        load(made)
