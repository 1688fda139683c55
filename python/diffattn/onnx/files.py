"""ONNX files: data that is checked before anything is made of it. What large initialisers hold is not copied."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import ExternalDataInfo

from ..errors import CompileError, IRError, InputError, WeightsError
from ..files import open_regular, read_regular
from ..importing.constants import is_weight
from ..importing.names import weight_names
from ..text import shown
from . import builtins, multihead
from .walk import messages

#: Largest size of a protobuf message; larger models have their weights in files of external data.
MOST_BYTES = (1 << 31) - 1
_KIND = onnx.TensorProto
#: Types of elements that compiled code has, by ONNX's.
DTYPES = {kind: np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)) for kind in (
    _KIND.FLOAT, _KIND.FLOAT16, _KIND.BFLOAT16, _KIND.DOUBLE, _KIND.INT64, _KIND.INT32, _KIND.INT16, _KIND.INT8, _KIND.UINT8, _KIND.BOOL)}


@dataclass
class ModelFile:
    """A model that was read, and checked but for what its ops do. The first `count` inputs of its graph are those of the model; the
    others are its large initialisers, whose values are in `weights` in their order, by the names that they have as weights."""

    path: str
    proto: onnx.ModelProto
    count: int
    weights: dict[str, np.ndarray]


def read_model(path: str) -> ModelFile:
    """Raises InputError, IRError, WeightsError and CompileError as `diffattn.onnx.load`."""
    builtins.register()
    multihead.register()
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(read_regular(path, MOST_BYTES, InputError))
    except DecodeError as error:
        raise IRError(f"{path}: expected an ONNX model, but got a file that does not parse as one: {error}") from None
    _check_texts(path, proto)
    graph = proto.graph
    if not graph.output:
        raise IRError(f"{path}: expected an ONNX model, but got a file without a graph that gives anything")
    if graph.sparse_initializer:
        raise CompileError(f"{path}: expected dense initialisers, but got the sparse {shown(graph.sparse_initializer[0].values.name)}")
    _check_inner_tensors(path, proto)
    held, names = list(graph.initializer), {tensor.name for tensor in graph.initializer}
    # A name of both an input and an initialiser is an input with a default value, as all weights are in older files.
    inputs = [value for value in graph.input if value.name not in names]
    arrays = {tensor.name: _array(path, tensor) for tensor in held}
    weights = {name: array for name, array in arrays.items() if array is not None and is_weight(array)}
    del graph.input[:], graph.initializer[:]
    graph.input.extend(inputs + [onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in held
                                 if tensor.name in weights])
    graph.initializer.extend(tensor if arrays[tensor.name] is None else onnx.numpy_helper.from_array(arrays[tensor.name], tensor.name)
                             for tensor in held if tensor.name not in weights)
    proto.ir_version = max(proto.ir_version, 4)  # the first in which initialisers are no inputs
    _normalise(proto)
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        raise IRError(f"{path}: expected a sound ONNX model, but got: {message_of(error)}") from None
    return ModelFile(path, proto, len(inputs), dict(zip(weight_names(weights), weights.values())))


def _normalise(proto) -> None:
    """Gives one spelling to what has several: ONNX's own domain, inputs that are left out at the end, sizes that may be any."""
    for message in messages(proto, (onnx.NodeProto, onnx.OperatorSetIdProto, onnx.TensorShapeProto)):
        if isinstance(message, onnx.TensorShapeProto):
            for dim in message.dim:
                if dim.HasField("dim_value") and dim.dim_value < 0:
                    dim.Clear()
            continue
        message.domain = "" if message.domain == "ai.onnx" else message.domain
        while isinstance(message, onnx.NodeProto) and message.input and not message.input[-1]:
            del message.input[-1]


def _check_texts(path: str, proto) -> None:
    """Raises IRError for a text that is not UTF-8: protobuf gives it as bytes."""
    for message in messages(proto):
        for field, value in message.ListFields():
            if field.type == field.TYPE_STRING and not all(isinstance(text, str) for text in ([value] if isinstance(value, (str, bytes)) else value)):
                raise IRError(f"{path}: expected an ONNX model, whose texts are UTF-8, but got {shown(value)} as {field.name}")


def _check_inner_tensors(path: str, proto) -> None:
    """Only initialisers of the graph itself may lie in other files."""
    for owner in (*proto.graph.node, *proto.functions):
        for tensor in messages(owner, _KIND):
            if tensor.data_location == _KIND.EXTERNAL:
                raise WeightsError(f"{path}: expected external data for initialisers of the graph alone, but {shown(tensor.name)} is in an "
                                   "attribute or a graph within")


def _array(path: str, tensor) -> np.ndarray | None:
    """The elements of a tensor; None if compiled code lacks their type, which matters only if an op reads them."""
    dtype, shape = DTYPES.get(tensor.data_type), tuple(tensor.dims)
    if dtype is None:
        if tensor.data_location == _KIND.EXTERNAL:
            raise CompileError(f"{path}: initialiser {shown(tensor.name)}: expected elements of {type_names()}, but got {type_name(tensor.data_type)}")
        return None
    if tensor.data_location == _KIND.EXTERNAL:
        return _external(path, tensor, dtype, shape)
    try:
        onnx.checker.check_tensor(tensor)
        return np.asarray(onnx.numpy_helper.to_array(tensor)).astype(dtype, copy=False).reshape(shape)
    except (onnx.checker.ValidationError, ValueError, TypeError, OverflowError) as error:
        raise IRError(f"{path}: tensor {shown(tensor.name)}: expected elements for shape {list(shape)}, but got: {message_of(error)}") from None


def _external(path: str, tensor, dtype: np.dtype, shape) -> np.ndarray:
    """The tensor in its own file, which is mapped."""
    what = f"{path}: initialiser {shown(tensor.name)}"
    try:
        info = ExternalDataInfo(tensor)
    except ValueError as error:
        raise WeightsError(f"{what}: expected numbers of bytes as the offset and the length of its external data, but got: {message_of(error)}") from None
    place = _place(what, path, info.location)
    offset, length, expected = info.offset or 0, info.length, math.prod(shape) * dtype.itemsize
    if any(size < 0 for size in shape):
        raise IRError(f"{what}: expected sizes of at least 0, but got {list(shape)}")
    if length is not None and length != expected:
        raise WeightsError(f"{what}: expected {expected} bytes for shape {list(shape)}, but the model says {length}")
    descriptor, size = open_regular(place, WeightsError)
    with os.fdopen(descriptor, "rb") as file:
        if size - offset < expected:
            raise WeightsError(f"{what}: expected {expected} bytes at {offset} of {place}, but it has {size} in all")
        if not expected:
            return np.empty(shape, dtype)
        return np.memmap(file, dtype, "r", offset, shape)


def _place(what: str, path: str, location: str) -> str:
    """Only below the model's folder, whatever links lie there: a model may come from anyone."""
    folder = os.path.realpath(os.path.dirname(path) or ".")
    place = os.path.realpath(os.path.join(folder, location)) if location and "\0" not in location else ""
    if not place.startswith(os.path.join(folder, "")) or os.path.isabs(location) or ".." in location.replace("\\", "/").split("/"):
        raise WeightsError(f"{what}: expected external data in a file below the model's folder, but got {shown(location)}")
    return place


def message_of(error: Exception) -> str:
    """The message of another library's error about a model, in one line."""
    return shown(" ".join(str(error).split()), 400)


def type_name(kind: int) -> str:
    """ONNX's name of a type of elements."""
    return _KIND.DataType.Name(kind).lower() if kind in _KIND.DataType.values() else f"number {kind}"


def type_names() -> str:
    return ", ".join(map(type_name, DTYPES))
