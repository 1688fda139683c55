"""Reshape of symbolic sizes in ONNX models: random chains against onnx's own evaluator, at sizes that a wrong guess of the axes refuses."""
import itertools
import random

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_cases import load, model, node  # noqa: F401

pytestmark = pytest.mark.oracle

SYMBOLS = {"b": 0, "t": 1}
CALLS = [{"b": 1, "t": 1}, {"b": 2, "t": 3}, {"b": 3, "t": 1}, {"b": 1, "t": 5}, {"b": 4, "t": 6}]


class Chain:
    """A model of x [b, t, 24] whose axes are merged, split, and moved. An axis is a list of factors, symbols and numbers, that are its size."""

    def __init__(self, seed: int):
        self.random, self.names, self.nodes, self.constants = random.Random(seed), itertools.count(), [], {}
        self.value, self.axes = "x", [["b"], ["t"], [2, 3, 4]]
        self.shape = self.op("Shape", "x")

    def op(self, kind, *inputs, **attributes):
        name = f"v{next(self.names)}"
        self.nodes.append(node(kind, [*inputs], [name], **attributes))
        return name

    def constant(self, value):
        name = f"c{next(self.names)}"
        self.constants[name] = np.array(value, np.int64)
        return name

    def reshape(self, axes):
        inferred = self.random.randrange(2 * len(axes))
        asked = [-1 if place == inferred else 0 if axis in self.axes[place:place + 1] and self.random.random() < 0.5 else self.size_of(axis)
                 for place, axis in enumerate(axes)]
        if all(isinstance(size, int) for size in asked):
            shape = self.constant(asked)
        else:
            shape = self.op("Concat", *(self.constant([size]) if isinstance(size, int) else size for size in asked), axis=0)
        self.value, self.axes = self.op("Reshape", self.value, shape), axes

    def size_of(self, axis):
        """A number, or the name of the product of sizes that the model is called with."""
        number = int(np.prod([factor for factor in axis if isinstance(factor, int)]))
        symbols = [self.op("Gather", self.shape, self.constant([SYMBOLS[factor]])) for factor in axis if factor in SYMBOLS]
        if not symbols:
            return number
        product = symbols[0]
        for factor in [*symbols[1:], *([self.constant([number])] if number != 1 else [])]:
            product = self.op("Mul", product, factor)
        return product

    def step(self):
        kind = self.random.randrange(4)
        if kind == 0 and len(self.axes) > 1:
            order = self.random.sample(range(len(self.axes)), len(self.axes))
            self.value, self.axes = self.op("Transpose", self.value, perm=order), [self.axes[place] for place in order]
        elif kind == 1:
            self.value = self.op("Neg", self.value)
        else:
            factors = [factor for axis in self.axes for factor in axis]
            cuts = sorted(self.random.sample(range(1, len(factors)), self.random.randrange(len(factors)))) if len(factors) > 1 else []
            axes = [factors[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(factors)])]
            if self.random.random() < 0.3:
                axes.insert(self.random.randrange(len(axes) + 1), [])
            self.reshape(axes)

    def model(self):
        for _ in range(6):
            self.step()
        factors = [factor for axis in self.axes for factor in axis]
        self.reshape([["b"], ["t"], [24]] if factors == ["b", "t", 2, 3, 4] else [factors])
        self.nodes[-1].output[0] = "y"
        return model(self.nodes, [("x", T.FLOAT, ["b", "t", 24])], [("y", T.FLOAT, [None] * len(self.axes))], self.constants)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(24))
def test_chains(load, seed):
    made = Chain(seed).model()
    loaded, reference = load(made), ReferenceEvaluator(made)
    for sizes in CALLS:
        x = np.arange(sizes["b"] * sizes["t"] * 24, dtype=np.float32).reshape(sizes["b"], sizes["t"], 24)
        np.testing.assert_array_equal(loaded(x), reference.run(None, {"x": x})[0])


def is_right(load, made, *shapes):
    loaded, reference, random = load(made), ReferenceEvaluator(made), np.random.default_rng(0)
    for given in shapes:
        arrays = {value.name: random.standard_normal(shape).astype(np.float32) for value, shape in zip(loaded.inputs, given)}
        np.testing.assert_allclose(loaded(**arrays), reference.run(None, arrays)[0], rtol=1e-5, atol=1e-6)
    return loaded


def test_windows(load):
    """Windows have 7 rows: their number is that of the rows divided by 7, and what -1 leaves."""
    nodes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "one"], ["h"]), node("Div", ["h", "seven"], ["n"]),
             node("Concat", ["zero", "n", "seven", "five"], ["apart"], axis=0), node("Reshape", ["x", "apart"], ["w"]), node("Neg", ["w"], ["v"]),
             node("Reshape", ["v", "windows"], ["u"]), node("Relu", ["u"], ["r"]), node("Reshape", ["r", "s"], ["y"])]
    constants = {"one": [1], "seven": [7], "zero": [0], "five": [5], "windows": [-1, 7, 5]}
    made = model(nodes, [("x", T.FLOAT, ["b", "h", 5])], [("y", T.FLOAT, ["b", "h", 5])], {name: np.array(value) for name, value in constants.items()})
    is_right(load, made, [(1, 7, 5)], [(3, 21, 5)], [(2, 7, 5)])


@pytest.mark.parametrize("asked", [[0, -1, 3], [-1, 2, 3], [-1, 5], [0, -1, 3, 1]])
def test_what_is_left_is_a_quotient(load, asked):
    """Sizes are symbols, where any number may stand for the size that is left."""
    inputs = [(name, T.FLOAT, [symbol]) for name, symbol in zip("def", "uvw")]
    nodes = [node("Reshape", ["x", "asked"], ["r"]), node("Neg", ["r"], ["n"]), node("Shape", ["x"], ["s"]), node("Reshape", ["n", "s"], ["z"]),
             *[node("ReduceSum", [name], [f"{name}s"], keepdims=0) for name in "def"], node("Sum", ["z", "ds", "es", "fs"], ["y"])]
    made = model(nodes, [*inputs, ("x", T.FLOAT, ["b", "m"])], [("y", T.FLOAT, ["b", "m"])], {"asked": np.array(asked)})
    is_right(load, made, [(1,), (2,), (3,), (2, 30)], [(3,), (1,), (2,), (4, 60)])


def test_known_sizes_are_constants(load):
    """Half of the last axis is a computed size, 4, and so the axes of the pieces are known, too."""
    nodes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "last"], ["c"]), node("Add", ["c", "one"], ["d"]), node("Div", ["d", "two"], ["half"]),
             node("Slice", ["x", "zero", "half", "last"], ["a"]), node("Slice", ["s", "zero", "two"], ["bt"]), node("Concat", ["bt", "heads"], ["apart"], axis=0),
             node("Reshape", ["a", "apart"], ["h"]), node("Relu", ["h"], ["g"]), node("Reshape", ["g", "rows"], ["r"]), node("Neg", ["r"], ["n"]),
             node("Concat", ["bt", "four"], ["back"], axis=0), node("Reshape", ["n", "back"], ["y"])]
    constants = {"last": [-1], "one": [1], "two": [2], "zero": [0], "four": [4], "heads": [2, -1], "rows": [-1, 4]}
    made = model(nodes, [("x", T.FLOAT, ["b", "t", 8])], [("y", T.FLOAT, ["b", "t", 4])], {name: np.array(value) for name, value in constants.items()})
    is_right(load, made, [(1, 1, 8)], [(2, 5, 8)], [(3, 1, 8)])


def test_what_a_division_leaves_is_no_constant(load):
    """Rows up to the next window of 7: 7 * (t / 7) - t is 0 only where nothing is left."""
    nodes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "one"], ["t"]), node("Div", ["t", "seven"], ["n"]), node("Mul", ["n", "seven"], ["whole"]),
             node("Sub", ["t", "whole"], ["left"]), node("Equal", ["t", "five"], ["is_five"]), node("Where", ["is_five", "one", "seven"], ["chosen"]),
             node("Cast", ["left"], ["f"], to=T.FLOAT), node("Cast", ["chosen"], ["g"], to=T.FLOAT), node("Add", ["x", "f"], ["h"]), node("Mul", ["h", "g"], ["y"])]
    constants = {"one": [1], "five": [5], "seven": [7]}
    made = model(nodes, [("x", T.FLOAT, ["b", "t"])], [("y", T.FLOAT, ["b", "t"])], {name: np.array(value) for name, value in constants.items()})
    is_right(load, made, ((2, 5),), ((1, 7),), ((2, 10),))


def test_sizes_in_floats_and_of_several_axes(load):
    """Half of 7 in floats is 3.5; what is filled may have any axes."""
    nodes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "last"], ["c"]), node("Cast", ["c"], ["f"], to=T.FLOAT), node("Cast", ["two"], ["g"], to=T.FLOAT),
             node("Div", ["f", "g"], ["half"]), node("Mul", ["half", "g"], ["again"]), node("Cast", ["again"], ["i"], to=T.INT64),
             node("Cast", ["i"], ["j"], to=T.FLOAT), node("ConstantOfShape", ["known"], ["zeros"]), node("Add", ["x", "zeros"], ["z"]), node("Add", ["z", "j"], ["y"])]
    made = model(nodes, [("x", T.FLOAT, ["b", 7])], [("y", T.FLOAT, ["b", 7])], {"last": np.array([-1]), "two": np.array([2]), "known": np.array([1, 7])})
    is_right(load, made, ((2, 7),))


def test_sizes_of_expand(load):
    """As PyTorch's older exporter asks for them: by a comparison with -1. A number of each head times heads that lie with the batch."""
    nodes = [node("Shape", ["x"], ["s"]), node("Slice", ["s", "zero", "one"], ["b"]), node("Concat", ["b", "three", "minus", "minus"], ["e"], axis=0),
             node("Shape", ["e"], ["es"]), node("ConstantOfShape", ["es"], ["ones"], value=helper.make_tensor("v", T.INT64, [1], [1])),
             node("Mul", ["ones", "minus"], ["all"]), node("Equal", ["e", "all"], ["asks"]), node("Where", ["asks", "ones", "e"], ["wide"]),
             node("Expand", ["l", "wide"], ["le"]), node("Mul", ["b", "three"], ["n"]), node("Concat", ["n", "one", "one"], ["flat"], axis=0),
             node("Reshape", ["le", "flat"], ["lf"]), node("Slice", ["s", "two", "three"], ["t"]), node("Concat", ["n", "t", "four"], ["heads"], axis=0),
             node("Reshape", ["x", "heads"], ["h"]), node("Mul", ["h", "lf"], ["m"]), node("Reshape", ["m", "rows"], ["r"]), node("Neg", ["r"], ["g"]),
             node("Reshape", ["g", "s"], ["y"])]
    constants = {"zero": [0], "one": [1], "two": [2], "three": [3], "four": [4], "minus": [-1], "rows": [-1, 4]}
    weights = {**{name: np.array(value) for name, value in constants.items()}, "l": np.arange(1, 4, dtype=np.float32).reshape(1, 3, 1, 1)}
    made = model(nodes, [("x", T.FLOAT, ["b", 3, "t", 4])], [("y", T.FLOAT, ["b", 3, "t", 4])], weights)
    is_right(load, made, [(1, 3, 1, 4)], [(2, 3, 5, 4)], [(1, 3, 6, 4)], [(2, 3, 1, 4)])


@pytest.mark.parametrize("between", [[], [2, 3, 2]], ids=["result", "between"])
def test_sizes_of_the_traced_call_are_forgotten(load, between):
    """PyTorch's older exporter declares what it traced, [2, 3, 2], and asks by Slices whose bounds are reshaped constants."""
    nodes = [node("Shape", ["x"], ["s"]), node("Reshape", ["zero", "flat"], ["first"]), node("Slice", ["s", "first", "two"], ["bt"]),
             node("Concat", ["bt", "halves"], ["apart"], axis=0), node("Reshape", ["x", "apart"], ["h"]), node("Transpose", ["h"], ["g"], perm=[2, 0, 1, 3]),
             node("Concat", ["minus", "two", "three"], ["asked"], axis=0), node("Reshape", ["g", "asked"], ["r"]), node("Neg", ["r"], ["y"])]
    constants = {"zero": [0], "flat": [-1], "two": [2], "three": [3], "minus": [-1], "halves": [2, -1]}
    made = model(nodes, [("x", T.FLOAT, ["b", "t", 4])], [("y", T.FLOAT, [4, 2, 3])], {name: np.array(value) for name, value in constants.items()})
    if between:
        made.graph.value_info.append(helper.make_tensor_value_info("h", T.FLOAT, [*between, 2]))
    loaded = is_right(load, made, [(2, 3, 4)], [(1, 6, 4)], [(3, 2, 4)], [(3, 4, 4)])
    assert loaded.outputs[0].sizes[0] != 4


def test_sizes_of_one_name_are_equal_where_raising_reads_it(load):
    """Cross attention: the batch is an axis of five arguments."""
    nodes = [node("Transpose", ["k1"], ["t1"], perm=[0, 1, 3, 2]), node("MatMul", ["q1", "t1"], ["s1"]), node("Softmax", ["s1"], ["a1"], axis=-1),
             node("Transpose", ["k2"], ["t2"], perm=[0, 1, 3, 2]), node("MatMul", ["q2", "t2"], ["s2"]), node("Softmax", ["s2"], ["a2"], axis=-1),
             node("Mul", ["a2", "lambda"], ["n"]), node("Sub", ["a1", "n"], ["a"]), node("MatMul", ["a", "v"], ["y"])]
    inputs = [(name, T.FLOAT, ["b", 4, "t" if name[0] == "q" else "n", 16 if name == "v" else 8]) for name in ("q1", "k1", "q2", "k2", "v")]
    made = model(nodes, inputs, [("y", T.FLOAT, ["b", 4, "t", 16])], {"lambda": np.float32(0.3).reshape(())})
    loaded = is_right(load, made, *([(b, 4, t, 8), (b, 4, n, 8), (b, 4, t, 8), (b, 4, n, 8), (b, 4, n, 16)] for b, t, n in ((1, 1, 5), (2, 3, 1), (3, 7, 9))))
    assert not loaded.diagnostics and sum(d.name == "Raised" for d in loaded.applied) == 1


def test_sums_of_places_of_other_lengths(load):
    """onnx would follow the elements of both, as if they were sizes, and refuses lists of 5 and of 2."""
    nodes = [node("Range", ["zero", "five", "one"], ["places"]), node("Unsqueeze", ["places", "last"], ["column"]), node("Unsqueeze", ["x", "first"], ["row"]), node("Add", ["column", "row"], ["y"])]
    weights = {"zero": np.array(0), "five": np.array(5), "one": np.array(1), "first": np.array([0]), "last": np.array([1])}
    got = load(model(nodes, [("x", T.INT64, [2])], [("y", T.INT64, [5, 2])], weights))(np.array([10, 20]))
    np.testing.assert_array_equal(got, np.arange(5)[:, None] + [10, 20])
