"""Saved programs of PyTorch as modules of MLIR with named weights, for `diffattn import`."""

from __future__ import annotations

import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind

from ..arrays import BFLOAT16, DTYPES
from ..errors import CompileError, DiffAttnError
from ..importing.function import Imported, Value
from ..importing.names import weight_names
from ..text import shown
from .archive import load
from .complex_numbers import as_real, give_pairs, use_pairs
from .decompositions import decompose, exporting
from .empty import join_others
from .export import inline_numbers
from .graph import prepare
from .lowering import lower
from .refusals import refuse
from .tensors import CODE_OF


def read(path: str) -> Imported:
    """The program in a file. Parameters, buffers and constants are weights, by their names in the module.

    Raises as `archive.load`, and CompileError for a program that changes what it is given or that cannot be lowered.
    """
    program = load(path)
    try:
        return _import(program)
    except DiffAttnError as error:
        raise type(error)(f"{path}: {error}") from None


def _import(program: torch.export.ExportedProgram) -> Imported:
    try:
        with exporting():
            program = decompose(program, exported=False, device=True)
    except Exception as error:  # PyTorch raises many classes, most of them private
        raise CompileError(f"expected a program that torch takes apart, but it gave {type(error).__name__}: "
                           f"{shown(' '.join(str(error).split()), 400)}") from None
    signature, graph = program.graph_signature, program.graph_module
    changed = [spec.target for spec in signature.output_specs if spec.kind != OutputKind.USER_OUTPUT]
    if changed:
        raise CompileError(f"expected a program that changes nothing, but it changes {', '.join(map(shown, changed))}; diffattn.compile takes such "
                           "modules")
    specs, places = signature.input_specs, graph.graph.find_nodes(op="placeholder")
    held = {**program.state_dict, **program.constants}
    inline_numbers(graph, places, specs, held)
    _make_row_major(graph)
    use_pairs(graph.graph)
    join_others(graph.graph)
    refuse(graph.graph)
    give_pairs(graph.graph)
    prepared = prepare(graph)
    arguments, weights, number_of = [], [], {}
    for number, one in enumerate(prepared.inputs):
        spec = specs[one.place] if one.place is not None else None
        if spec is not None and spec.kind == InputKind.USER_INPUT:
            arguments.append(_value(one))
        else:
            number_of[number] = len(weights)
            weights.append((one.name, one.constant) if spec is None else (spec.target, held[spec.target]))
    names = weight_names(name for name, _ in weights)
    text = lower(prepared.module, {number: names[at] for number, at in number_of.items()})
    return Imported(text, arguments, [], {name: _array(name, tensor) for name, (_, tensor) in zip(names, weights)})


def _make_row_major(graph) -> None:
    """Results in the order of their axes: a file says nothing of strides."""
    for node in graph.graph.output_node().args[0]:
        if isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), torch.Tensor):
            node.meta["val"] = node.meta["val"].contiguous()


def _value(one) -> Value:
    if not isinstance(one.value, torch.Tensor):
        raise CompileError(f"{one.name}: expected tensors as arguments, but got {shown(one.value)}")
    return Value(one.name, DTYPES[CODE_OF[one.value.dtype]], tuple(n if isinstance(n, int) else str(n) for n in one.value.shape))


def _array(name: str, tensor: torch.Tensor) -> np.ndarray:
    if tensor.is_complex():
        tensor = as_real(tensor)
    if tensor.dtype not in CODE_OF:
        raise CompileError(f"{name}: expected elements of {', '.join(map(str, CODE_OF))}, but got {tensor.dtype}")
    dense = tensor.detach().contiguous()
    return dense.view(torch.int16).numpy().view(BFLOAT16) if dense.dtype == torch.bfloat16 else dense.numpy()
