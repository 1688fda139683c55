"""Explanations of each attention, as a table and as JSON."""
import json
from types import SimpleNamespace

from diffattn import cli
from diffattn.explain import Kernel, Row, explain
from diffattn.runtime import Diagnostic, Executable


def diagnostic(kind, name, place, message, category="diffattn-schedule"):
    return Diagnostic(kind, category, name, message, place, f"{place}: {message}")


def test_rows_are_those_of_places():
    text = 'module {\n  func.func private @"a layer"(%x: i32) { diffattn.attention\n  }\n  func.func @main() {\n    a product\n    a difference\n  }\n}\n'
    kernels = ('attention is one kernel: [#diffattn.when<max_queries = 8, min_keys = 9 : #diffattn.cpu_split_kv<isa = "avx2", tile = [8, 3]>>, '
               "#diffattn.linalg]")
    compiled = SimpleNamespace(
        applied=[diagnostic("passed", "SelectSchedule", "m:5:7", kernels), diagnostic("passed", "Raised", "m:5:7", "two maps became one", "diffattn-fuse"),
                 diagnostic("passed", "SelectSchedule", "m:2:9", "attention is one kernel: [#diffattn.cpu_prefill<lanes = 8>]")],
        diagnostics=[diagnostic("missed", "NotRaised", "m:3:1", "attention is not fused: because", "diffattn-fuse"),
                     diagnostic("analysis", "ComputedInF32", "m:5:7", "computed in f32", "diffattn-fuse"),
                     diagnostic("warning", "Cache", "", "no cache", "diffattn-cache")])
    explanation = explain(compiled, text)
    rows = (
        Row("m:2:9", "a layer", False, (Kernel("cpu_prefill", "", "lanes = 8"),), ()),
        Row("m:3:1", "a layer", False, (), ("attention is not fused: because",)),
        Row("m:5:7", "main", True, (Kernel("cpu_split_kv", "max_queries = 8, min_keys = 9", 'isa = "avx2", tile = [8, 3]'), Kernel("linalg", "", "")),
            ("computed in f32",)))
    assert explanation.rows == rows
    # The kernels of what is raised may be said of another op than the raising.
    compiled.applied[0] = diagnostic("passed", "SelectSchedule", "m:6:7", kernels)
    assert explain(compiled, text).rows == rows
    compiled.applied.append(diagnostic("passed", "Raised", "m:3:2", "two maps became one", "diffattn-fuse"))  # in another function
    assert [(row.place, row.is_raised, len(row.kernels)) for row in explain(compiled, text).rows[1:]] == [("m:3:1", False, 0), ("m:3:2", True, 0), ("m:5:7", True, 2)]
    assert str(explanation).splitlines() == [
        "place  function  attention  kernels",
        "m:2:9  a layer   written    cpu_prefill",
        "m:3:1  a layer   not fused  none",
        "    attention is not fused: because",
        "m:5:7  main      raised     cpu_split_kv (max_queries = 8, min_keys = 9); linalg",
        "    computed in f32"]
    assert json.loads(explanation.json())[2]["kernels"][0]["options"] == 'isa = "avx2", tile = [8, 3]'
    assert {row.function for row in explain(compiled, f"{text}// -----\n{text}").rows} == {""}  # nobody knows in which part
    assert str(explain(SimpleNamespace(applied=[], diagnostics=[]))) == "no attention was found"


def test_what_the_compiler_says(root):
    text = (root / "test/graphs/f_two_v_fx.mlir").read_text()
    (row,) = explain(Executable(text, name="two_v"), text).rows
    assert row.place == "two_v:117:11" and row.function and not row.is_raised and not row.kernels and "different values" in row.messages[0]


def test_a_compiled_module():
    import torch

    import diffattn

    class Module(torch.nn.Module):
        def forward(self, q, v, lam):
            one, two = (torch.softmax(x @ x.transpose(-1, -2) * 0.3, -1) for x in q.chunk(2, -1))
            return (one - lam * two) @ v

    compiled = diffattn.compile(Module(), (torch.randn(1, 2, 20, 16), torch.randn(1, 2, 20, 8), torch.tensor(0.3)))
    (row,) = compiled.explain().rows
    assert row.is_raised and row.function == "main" and [kernel.name for kernel in row.kernels] == ["cpu_prefill"]


def test_functions_of_other_frameworks(tmp_path):
    """Each has the method; these have no attention."""
    import jax.numpy as jnp
    import onnx
    from onnx import TensorProto, helper

    import diffattn

    node = helper.make_node("Relu", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
    onnx.save(helper.make_model(helper.make_graph([node], "relu", [x], [y]), opset_imports=[helper.make_opsetid("", 20)], ir_version=9),
              tmp_path / "relu.onnx")
    for compiled in (diffattn.onnx.load(tmp_path / "relu.onnx"), diffattn.jax.compile(lambda x: x + 1, jnp.zeros(3))):
        assert compiled.explain().rows == () and compiled.explain().json() == "[]"


def test_command(root, capsys):
    assert cli.main(["explain", str(root / "examples/tiny-lm"), "--target", "cpu:avx2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    functions = ["forward_layer", "prefill_layer", "extend_layer", "decode_layer"]
    assert [line.split()[1:3] for line in lines[1:]] == [[name, "written"] for name in functions]
    assert cli.main(["explain", str(root / "examples/tiny-lm"), "--target", "cpu:avx2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["function"] for row in rows] == functions
    assert all('isa = "avx2"' in kernel["options"] for row in rows for kernel in row["kernels"])
    assert rows[3]["kernels"][0]["name"] == "cpu_split_kv"
    assert cli.main(["explain", str(root / "examples")]) != 0
    assert "expected" in capsys.readouterr().err
