"""From an ONNX model to MLIR's upstream dialects, by torch-mlir."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile

import onnx
import onnx.inliner
from torch_mlir import _mlir_libs, ir
from torch_mlir.dialects import torch as torch_dialect
from torch_mlir.extras import onnx_importer

from ..errors import CompileError, LibraryError
from ..importing.function import Imported, Value
from ..importing.mlir_text import left_over, readable_constants
from ..importing.names import symbol
from ..importing.weight_globals import with_weights
from ..text import shown
from .builder import Refused
from .decompositions import decompose
from .equal_sizes import assert_equal_sizes
from .files import DTYPES, ModelFile, said, type_name, type_names
from .opsets import upgrade
from .reshapes import spell_reshapes
from .sizes import fold_sizes, forget_traced_sizes, infer_sizes, settle_sizes

_PIPELINE = ("builtin.module(torch-onnx-to-torch-backend-pipeline,"
             "torch-backend-to-linalg-on-tensors-backend-pipeline{allow-non-finites=true})")
#: Ops that torch-mlir does not lower, but what ONNX says that they are made of.
_EXPANDED = {"": {"Attention", "MeanVarianceNormalization", "RotaryEmbedding", "Shrink", "Swish"}}
_RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


def lower(file: ModelFile) -> Imported:
    """Raises CompileError that names the op that torch-mlir does not lower, and its node."""
    given = [_value(file, "input", value) for value in file.proto.graph.input[: file.count]]
    proto = file.proto
    try:
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto)
        proto = forget_traced_sizes(upgrade(proto, infer_sizes))
        declared, results = [*proto.graph.value_info], [*proto.graph.output]
        proto = infer_sizes(proto)
        for change in (decompose, lambda proto: fold_sizes(proto.graph)):
            if change(proto):
                proto = infer_sizes(proto, declared, results)
    except Refused as error:
        raise CompileError(f"{file.path}: {error}") from None
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        raise CompileError(f"{file.path}: expected a model whose sizes onnx infers, but got: {said(error)}") from None
    settle_sizes(proto.graph)
    results = [_value(file, "output", value) for value in proto.graph.output]
    text = assert_equal_sizes(readable_constants(_linalg(file, proto)), given)
    weights = {file.count + number: symbol(name) for number, name in enumerate(file.weights)}
    return Imported(with_weights(text, weights), given, results, file.weights)


def _value(file: ModelFile, what: str, value) -> Value:
    tensor = value.type.tensor_type
    name = f"{file.path}: {what} {shown(value.name)}"
    if not value.type.HasField("tensor_type"):
        raise CompileError(f"{name}: expected a tensor, but got a {value.type.WhichOneof('value') or 'value without a type'}")
    if tensor.elem_type not in DTYPES:
        raise CompileError(f"{name}: expected elements of {type_names()}, but got {type_name(tensor.elem_type)}")
    if not tensor.HasField("shape"):
        raise CompileError(f"{name}: expected a tensor of known rank, but got one without a shape")
    sizes = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]
    return Value(value.name, DTYPES[tensor.elem_type], tuple(sizes))


def _linalg(file: ModelFile, proto) -> str:
    nodes, graph = list(proto.graph.node), proto.graph
    graph.name = "main"
    for number, node in enumerate(nodes):  # locations are the nodes' names: messages lead back by them
        node.name = f"node:{number}:"
        if node.op_type in _RANDOM and node.domain in ("", "ai.onnx"):
            raise CompileError(f"{file.path}: expected a model without random numbers, but got {node.op_type}, which makes "
                               f"{', '.join(map(shown, node.output))}")
    context = ir.Context()
    torch_dialect.register_dialect(context)
    try:
        config = onnx_importer.Config(function_expansion_allowlists_by_domain=_EXPANDED)
        info = onnx_importer.ModelInfo(proto, config=config)
        operation = info.create_module(context=context).operation
        onnx_importer.NodeImporter.define_function(info.main_graph, operation).import_all()
        spell_reshapes(operation, graph)
        text = operation.get_asm(enable_debug_info=True)
    except Exception as error:  # the importer raises many classes
        raise _refused(file, nodes, str(error)) from None
    status, lowered, messages = _run_passes(text)
    if status:
        raise _refused(file, nodes, messages if status > 0 else "its program crashed")
    if "tm_tensor." in lowered:
        context.allow_unregistered_dialects = True
        placed = ir.Module.parse(_run_passes(text, "--mlir-print-debuginfo", "--mlir-print-op-generic")[1], context)
        raise _refused(file, nodes, next(left_over(placed.operation)))
    return lowered


def _run_passes(text: str, *options: str) -> tuple[int, str, str]:
    """Status, output and messages of torch-mlir's own program: a crash of its passes, which some graphs cause, ends that alone. The
    status of a crash is negative."""
    program = os.path.join(os.path.dirname(_mlir_libs.__file__), "torch-mlir-opt")
    messages, crashed = [], False
    with tempfile.TemporaryFile("w+", encoding="utf-8") as given, tempfile.TemporaryFile("w+", encoding="utf-8") as made:
        given.write(text)
        given.seek(0)
        try:
            process = subprocess.Popen([program, "-", f"--pass-pipeline={_PIPELINE}", *options], stdin=given, stdout=made, stderr=subprocess.PIPE,
                                       encoding="utf-8", errors="replace")
        except OSError as error:
            raise LibraryError(f"{program}: expected torch-mlir's program, but running it gave: {error.strerror}; pip install 'diffattn[onnx]'") from None
        with process:
            for line in process.stderr:
                messages.append(line)
                if "PLEASE submit a bug report" in line:
                    crashed = True
                    process.kill()  # its report of a crash may wait for ever for what the crash has locked
        made.seek(0)
        return -1 if crashed or process.returncode < 0 else process.returncode, made.read(), "".join(messages)


def _refused(file: ModelFile, nodes, message: str) -> CompileError:
    for number in re.findall(r"\bnode:(\d+):", message):
        node = nodes[int(number)]
        domain = f"{node.domain}." if node.domain else ""
        return CompileError(f"{file.path}: expected ops that torch-mlir lowers to upstream dialects, but got {shown(domain + node.op_type)}, "
                            f"which makes {', '.join(map(shown, node.output))}")
    return CompileError(f"{file.path}: expected a model that torch-mlir lowers, but got: {shown(message, 400)}")
