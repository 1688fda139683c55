"""ONNX models that tests make, and files of them."""
import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

import diffattn

FLOAT = [("x", T.FLOAT, [2, 3])]


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, **attributes)


def model(nodes, inputs=FLOAT, outputs=(("y", T.FLOAT, [2, 3]),), weights=(), functions=(), opset=20):
    """Inputs and outputs are (name, type, sizes), weights arrays by name or tensors."""
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()] if isinstance(weights, dict) else weights
    graph = helper.make_graph(nodes, "graph", [helper.make_tensor_value_info(*i) for i in inputs],
                              [helper.make_tensor_value_info(*o) for o in outputs], initializer=tensors)
    opsets = [helper.make_opsetid(*one) for one in (("", opset), ("own", 1), ("com.microsoft", 1))]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


@pytest.fixture
def load(tmp_path):
    def load(made, **options):
        path = tmp_path / "model.onnx"
        path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
        return diffattn.onnx.load(path, **options)

    return load


WIDE = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
LINEAR = dict(nodes=[node("MatMul", ["x", "layer.weight"], ["h"]), node("Add", ["h", "b"], ["y"]), node("Relu", ["h"], ["z"])],
              inputs=[("x", T.FLOAT, ["rows", 6]), ("b", T.FLOAT, ["rows", 1])],
              outputs=[("y", T.FLOAT, ["rows", 5]), ("z", T.FLOAT, ["rows", 5])], weights={"layer.weight": WIDE})


def external(location, offset=None, length=None, size=100):
    tensor = T(name="w", data_type=T.FLOAT, dims=[size], data_location=T.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            entry = tensor.external_data.add()
            entry.key, entry.value = key, str(value)
    return model([node("Add", ["x", "w"], ["y"])], [("x", T.FLOAT, [size])], [("y", T.FLOAT, [size])], [tensor])


@pytest.fixture
def data(tmp_path):
    (tmp_path / "within").mkdir()
    (tmp_path / "within/w.bin").write_bytes(np.arange(101, dtype=np.float32).tobytes())
    (tmp_path.parent / "secret.bin").write_bytes(bytes(404))
    (tmp_path / "link.bin").symlink_to(tmp_path.parent / "secret.bin")
