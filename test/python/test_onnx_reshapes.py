"""Reshape of symbolic sizes in ONNX models: random chains against onnx's own evaluator, at sizes that a wrong guess of the axes refuses."""
import itertools
import random

import numpy as np
import pytest
from onnx import TensorProto as T
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


@pytest.mark.parametrize("seed", range(24))
def test_chains(load, seed):
    made = Chain(seed).model()
    loaded, reference = load(made), ReferenceEvaluator(made)
    for sizes in CALLS:
        x = np.arange(sizes["b"] * sizes["t"] * 24, dtype=np.float32).reshape(sizes["b"], sizes["t"], 24)
        np.testing.assert_array_equal(loaded(x), reference.run(None, {"x": x})[0])
