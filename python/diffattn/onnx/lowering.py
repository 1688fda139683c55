"""Lowering of an ONNX model to MLIR's upstream dialects, by torch-mlir."""

from __future__ import annotations

import os
import subprocess
import tempfile

import onnx
import onnx.inliner
from torch_mlir import _mlir_libs, ir
from torch_mlir.dialects import torch as torch_dialect
from torch_mlir.extras import onnx_importer

from ..errors import CompileError, LibraryError
from ..importing.function import Imported, Value
from ..importing.contract import mark_arguments
from ..importing.torch_backend import left_over, to_linalg
from ..text import shown
from .assertions import assert_pads
from .builder import ONNX, Refused, type_text, types_of
from .builtins import make_calls, mark
from .decompositions import decompose
from .files import DTYPES, ModelFile, message_of, type_name, type_names
from .opsets import expand, upgrade
from .origins import Origins
from .reshapes import spell_reshapes
from .sizes import fold_sizes, forget_traced_sizes, infer_sizes

#: Raised by onnx for models whose sizes it does not infer.
_UNSOUND = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError)
_RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


def lower(file: ModelFile) -> Imported:
    """Raises CompileError that names the model's node that onnx, torch-mlir or we refuse."""
    given = [_value(file, "input", value) for value in file.proto.graph.input[: file.count]]
    proto, origins = file.proto, Origins(file.proto)
    try:
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto, convert_version=True)
            del proto.functions[:]
        proto = upgrade(proto)
        forget_traced_sizes(proto.graph)
        declared, results = [*proto.graph.value_info], [*proto.graph.output]
        proto = infer_sizes(proto)
        for change in (expand, decompose, lambda proto: fold_sizes(proto.graph)):
            if change(proto):
                proto = infer_sizes(proto, declared, results)
    except Refused as error:
        origin = origins.of(error.name)
        raise CompileError(f"{file.path}: {f'{origin}: ' if origin else ''}{error}") from None
    except _UNSOUND as error:
        reason = _uninferred(proto, origins, error)
        raise CompileError(f"{file.path}: expected a model whose sizes onnx infers, but got{reason}") from None
    results = [_value(file, "output", value) for value in proto.graph.output]
    module = _linalg(file, proto, origins)
    weights = {file.count + number: name for number, name in enumerate(file.weights)}
    with module.context:
        mark_arguments(ir, module.body.operations[0], weights, sizes={number: value.sizes for number, value in enumerate(given) if any(
            isinstance(size, str) for size in value.sizes)})
    return Imported(str(module), given, results, file.weights)


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


def _uninferred(proto: onnx.ModelProto, origins: Origins, error: Exception) -> str:
    """The node that onnx refuses, the sizes of its inputs, and what it says."""
    origin, reason = origins.of_inference(error)
    if origin is None:
        return f": {message_of(error)}"
    try:
        known = types_of(onnx.shape_inference.infer_shapes(proto).graph)
    except _UNSOUND:
        known = {}
    if origin.function:  # its names are not those of the graph
        known = {}
    given = ", ".join(shown(name) + (f" {type_text(known[name])}" if name in known else "") for name in origin.inputs if name)
    return f" {origin}{f' of {given}' if given else ''}: {shown(reason, 400)}"


def _linalg(file: ModelFile, proto: onnx.ModelProto, origins: Origins) -> ir.Module:
    graph = proto.graph
    graph.name = "main"
    for number, node in enumerate(graph.node):  # locations are the nodes' names: messages lead back by them
        if node.op_type in _RANDOM and node.domain in ONNX:
            raise CompileError(f"{file.path}: expected a model without random numbers, but got {origins.of(node.name)}")
        node.name = f"node:{number}:{node.name}"
        mark(node)
    context = ir.Context()
    torch_dialect.register_dialect(context)
    importer = None
    try:
        info = onnx_importer.ModelInfo(proto)
        imported = info.create_module(context=context)
        operation = imported.operation
        importer = onnx_importer.NodeImporter.define_function(info.main_graph, operation)
        importer.import_all()
        assert_pads(operation, graph, origins)
        spell_reshapes(operation, graph)
        make_calls(ir, imported)
        text = operation.get_asm(enable_debug_info=True)
    except Exception as error:  # the importer raises many classes
        origin = origins.of(_unimported(graph, importer))
        origin_text = f" {origin}" if origin else ""
        raise CompileError(f"{file.path}: expected a model that torch-mlir lowers, but got{origin_text}: {message_of(error)}") from None
    status, lowered, messages = _run_passes(text, to_linalg(context, "torch-onnx-to-torch-backend-pipeline"))
    if status:
        raise _refused(file, origins, messages if status > 0 else "its program crashed")
    context.allow_unregistered_dialects = True  # for ops that are left over
    try:
        module = ir.Module.parse(lowered, context)
    except ir.MLIRError as error:  # its program prints some types as no parser reads them
        raise _refused(file, origins, str(error)) from None
    for place in left_over(module.operation):
        raise _refused(file, origins, place)
    return module


def _unimported(graph: onnx.GraphProto, importer) -> str:
    """The name of the first node whose results torch-mlir's importer did not make."""
    made = getattr(importer, "_nv_map", {})
    return next((node.name for node in graph.node if any(name and name not in made for name in node.output)), "")


def _run_passes(text: str, pipeline: str) -> tuple[int, str, str]:
    """Status, output in MLIR's generic form and messages of torch-mlir's own program: a crash of its passes, which some graphs cause, ends
    that alone. The status of a crash is negative."""
    program = os.path.join(os.path.dirname(_mlir_libs.__file__), "torch-mlir-opt")
    command = [program, "-", f"--pass-pipeline={pipeline}", "--mlir-print-debuginfo", "--mlir-print-op-generic"]
    messages, crashed = [], False
    with tempfile.TemporaryFile("w+", encoding="utf-8") as given, tempfile.TemporaryFile("w+", encoding="utf-8") as made:
        given.write(text)
        given.seek(0)
        try:
            process = subprocess.Popen(command, stdin=given, stdout=made, stderr=subprocess.PIPE, encoding="utf-8", errors="replace")
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


def _refused(file: ModelFile, origins: Origins, message: str) -> CompileError:
    origin = origins.of(message)
    if origin:
        return CompileError(f"{file.path}: expected ops that torch-mlir lowers to upstream dialects, but got {origin}")
    return CompileError(f"{file.path}: expected a model that torch-mlir lowers, but got: {shown(message, 400)}")
