"""From StableHLO to MLIR's upstream dialects, by the passes in jaxlib."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from jax.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.passmanager import PassManager

from ..arrays import BFLOAT16, CODES, DTYPES
from ..errors import CompileError, DiffAttnError, InputError, IRError
from ..importing.constants import is_weight
from ..importing.function import Imported, Value
from ..importing.contract import mark_arguments
from ..text import shown
from .building import cast, drop_signs, signless
from .builtins import PREFIX, make_call
from .control_flow import lower_control_flow
from .inline import inline
from .rewrites import drop_hints, limit_shifts, saturate_conversions, widen_bytes, write_out_algorithms, write_out_empty
from .scatter import lower_scatter
from .sort import lower_sort
from .unroll import unroll

_TO_STABLEHLO = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
_LOWERING = "builtin.module(func.func(stablehlo-legalize-to-linalg,canonicalize,cse))"
_ARGUMENTS = "builtin.module(func.func(stablehlo-legalize-composite-to-call),stablehlo-refine-arguments{{types={}}})"
_SIZES = ("builtin.module(stablehlo-refine-shapes,func.func(stablehlo-canonicalize-dynamism,canonicalize),stablehlo-refine-shapes)")
_ELEMENTS = {"f32": DTYPES[0], "f16": DTYPES[1], "bf16": DTYPES[2], "f64": DTYPES[3], "i64": DTYPES[4], "i32": DTYPES[5], "i1": DTYPES[6],
             "i8": DTYPES[7], "ui8": DTYPES[8], "i16": DTYPES[9],
             "ui16": np.dtype(np.uint16), "ui32": np.dtype(np.uint32), "ui64": np.dtype(np.uint64)}
_SPREAD = ("stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.convert", "stablehlo.reshape")
_LEFT_OVER = ("stablehlo.", "chlo.", "mhlo.", "vhlo.", "sdy.", "mpmd.", "shape.")


def make_context() -> ir.Context:
    """A context with StableHLO and the dialects that it is lowered to."""
    context = jax_mlir.make_ir_context()
    stablehlo.register_stablehlo_passes()
    return context


def parse(context: ir.Context, source: str | bytes) -> ir.Module:
    """A module of text, or of bytecode, also of the kind that other versions read. Raises IRError."""
    messages: list[str] = []  # else it would be printed
    with context:
        handler = context.attach_diagnostic_handler(lambda diagnostic: messages.append(diagnostic.message) or True)
        try:
            if isinstance(source, bytes) and b"StableHLO" in source[:64]:
                return stablehlo.deserialize_portable_artifact(context, source)
            return ir.Module.parse(source)
        except Exception as error:  # jaxlib raises several classes
            reason = shown("; ".join(messages), 400) if messages else _message_of(error)
            raise IRError(f"expected a module of StableHLO that jaxlib reads, but got: {reason}") from None
        finally:
            handler.detach()


def signature(module: ir.Module, entry: str = "main") -> tuple[list[Value], list[Value]]:
    """Arguments and results of a function. Sizes that are not known have names of their own."""
    for op in module.body.operations:
        if op.operation.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == entry:
            kind = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
            return ([_value(f"arg{i}", one) for i, one in enumerate(kind.inputs)],
                    [_value(f"result{i}", one) for i, one in enumerate(kind.results)])
    raise IRError(f"expected a function {entry!r}, but got none")


def _value(name: str, kind: ir.Type) -> Value:
    tensor = _as(ir.RankedTensorType, kind)
    if tensor is None:
        raise CompileError(f"{name}: expected a tensor of known rank, but got {shown(str(kind))}")
    element = str(tensor.element_type)
    if element not in _ELEMENTS:
        raise CompileError(f"{name}: expected elements of {', '.join(_ELEMENTS)}, but got {element}")
    return Value(name, _ELEMENTS[element], tuple(f"{name}.{i}" if tensor.is_dynamic_dim(i) else tensor.get_dim_size(i)
                                                 for i in range(tensor.rank)))


def lower(module: ir.Module, name: str, arguments: Sequence[Value], shapes: Sequence[tuple[int, ...]]) -> Imported:
    """Changes `module`, whose `main` has the given arguments; their sizes that are not known become those of `shapes`.

    Raises IRError for functions that call themselves, InputError for sizes that the module refuses, and CompileError for what
    cannot be lowered.
    """
    try:
        with module.context, ir.Location.unknown(module.context):
            own, _ = signature(module)
            if any(isinstance(size, str) for value in own for size in value.sizes):
                types = ",".join(f"tensor<{''.join(f'{n}x' for n in shape)}{_element(value.dtype)}>" for value, shape in zip(own, shapes))
                PassManager.parse(_ARGUMENTS.format(types)).run(module.operation)
                inline(module)  # a function that is called with several sizes has no one set of them
                PassManager.parse(_SIZES).run(module.operation)
            drop_hints(list(_walk(module.operation)))
            function = inline(module)
            _resolve_custom_calls(module, function)
            _refuse_elements(function)
            _, results = signature(module)
            _strip(module.operation, function)
            weights = _take_weights(function)
            unroll(list(_walk(function)))
            lower_control_flow(function)
            PassManager.parse(_TO_STABLEHLO).run(module.operation)
            saturate_conversions(_walk(function))
            widen_bytes(list(_walk(function)))
            write_out_algorithms(_walk(function))
            limit_shifts(list(_walk(function)))
            write_out_empty(list(_walk(function)))
            _make_signless(function)
            lower_scatter(list(_walk(function)))
            lower_sort(list(_walk(function)))
            PassManager.parse(_LOWERING).run(module.operation)
            _refuse_left_over(function)
            mark_arguments(ir, function, {len(own) + number: weight for number, weight in enumerate(weights)})
            text = str(module)
    except DiffAttnError as error:
        raise type(error)(f"{name}: {error}") from None
    except Exception as error:
        raise CompileError(f"{name}: expected StableHLO that jaxlib lowers to upstream dialects, but got: {_message_of(error)}") from None
    if any(isinstance(size, str) for value in results for size in value.sizes):
        raise CompileError(f"{name}: expected results whose sizes follow from those of the arguments, but got {', '.join(map(str, results))}")
    return Imported(text, [Value(value.name, value.dtype, tuple(shape)) for value, shape in zip(arguments, shapes)], results, weights)


def _element(dtype: np.dtype) -> str:
    return next(name for name, known in _ELEMENTS.items() if known == dtype)


def _walk(op):
    for region in op.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                yield from _walk(inner.operation)
                yield inner.operation


def _resolve_custom_calls(module, function) -> None:
    """Checks the conditions on sizes that jax.export asserts, now that sizes are known. Other calls need code that is not in the module."""
    for op in _walk(function):
        if op.name != "stablehlo.custom_call":
            continue
        target = ir.StringAttr(op.attributes["call_target_name"]).value
        if target.startswith(PREFIX):
            make_call(module, op, target)
            continue
        if target.startswith("stablehlo."):  # what has no op of StableHLO while sizes are symbols
            raise CompileError(f"{_line(str(op.location))}expected ops that StableHLO's passes give their sizes, but got {target}, as an export has "
                               "it; diffattn.jax.compile takes such a function")
        if target != "shape_assertion":
            raise CompileError(f"expected ops alone, but got a custom call of {shown(target)}, which is code outside of the module")
        numbers = [_number(operand) for operand in op.operands]
        if None in numbers:
            raise CompileError("expected sizes that decide every assertion on sizes, but got one that depends on data")
        if not numbers[0]:
            message = ir.StringAttr(op.attributes["error_message"]).value
            for place, number in enumerate(numbers[1:]):
                message = message.replace(f"{{{place}}}", str(number))
            raise InputError(shown(message, 400))
        op.erase()


def _refuse_elements(function) -> None:
    """Types that numbers in the middle of a function may have, and compiled code has not."""
    made = [(op, str(tensor.element_type)) for op in _walk(function) for value in op.results
            if (tensor := _as(ir.RankedTensorType, value.type)) is not None and isinstance(tensor.element_type, (ir.ComplexType, ir.FloatType))
            and str(tensor.element_type) not in _ELEMENTS]
    for op, element in [one for one in made if one[0].name not in _SPREAD] or made:  # what computes with them says more
        raise CompileError(f"{_line(str(op.location))}expected elements of {', '.join(_ELEMENTS)}, but got {element}, which {op.name} makes")


def _number(value) -> int | None:
    """The first number of a constant; None: the value is no constant."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "stablehlo.constant":
        return None
    return int(np.array(ir.DenseElementsAttr(owner.attributes["value"])).reshape(-1)[0])


def _strip(module, function) -> None:
    """Attributes that say how JAX came to it: names, shardings of one device."""
    for name in list(module.attributes):
        del module.attributes[name]
    for name in ("arg_attrs", "res_attrs", "sym_visibility"):
        if name in function.attributes:
            del function.attributes[name]


def _take_weights(function) -> dict[str, np.ndarray]:
    """Large constants become arguments behind the others."""
    weights: dict[str, np.ndarray] = {}
    block = function.regions[0].blocks[0]
    for op in _walk(function):
        array = _elements(op.attributes["value"]) if op.name == "stablehlo.constant" else None
        if array is not None and is_weight(array):
            op.results[0].replace_all_uses_with(block.add_argument(op.results[0].type, ir.Location.unknown()))
            op.erase()
            weights[f"constant.{len(weights)}"] = array
    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([a.type for a in block.arguments], kind.results))
    return weights


def _make_signless(function) -> None:
    """Arguments and results without signs, as functions of linalg have them: the ops between still see which integers have none."""
    block, kind = function.regions[0].blocks[0], ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    last = list(block.operations)[-1].operation
    drop_signs(block)
    with ir.InsertionPoint(last):
        for number, value in enumerate(last.operands):
            last.operands[number] = cast(value, signless(value.type))
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*(list(map(signless, part)) for part in (kind.inputs, kind.results))))


def _elements(attribute) -> np.ndarray | None:
    """The elements of a constant, if they are more than one number and of a type that weights have; else None."""
    dense = _as(ir.DenseElementsAttr, attribute)
    if dense is None or dense.is_splat:
        return None
    kind = ir.RankedTensorType(dense.type)
    dtype = _ELEMENTS.get(str(kind.element_type))
    if dtype not in CODES or dtype.kind == "b":
        return None
    if dtype == BFLOAT16:  # Python's buffers have no such type; text has its bytes
        match = re.match(r'dense<"0x([0-9A-Fa-f]+)">', str(attribute))
        return np.frombuffer(bytes.fromhex(match[1]), dtype).reshape(kind.shape) if match else None
    return np.array(dense).astype(dtype, copy=False)


def _as(kind: type, value):
    """The type or attribute as one of a class; None: it is of another."""
    try:
        return kind(value)
    except (TypeError, ValueError):
        return None


def _refuse_left_over(function) -> None:
    left = [op for op in _walk(function) if op.name.startswith(_LEFT_OVER)]
    # An op that ends a region tells less than the op of that region.
    for op in [op for op in left if op.name != "stablehlo.return"] or left:
        raise CompileError(f"{_line(str(op.location))}expected ops that jaxlib lowers to upstream dialects, but got {op.name}")


def _line(text: str) -> str:
    """"file.py:12: " of the innermost line that a location, or a message with one, names; empty: it names none."""
    match = re.search(r'"((?!-")[^"]+)":(\d+)', text)  # "-" is a module that has no file
    return f"{match[1]}:{match[2]}: " if match else ""


def _message_of(error: Exception) -> str:
    """The message of jaxlib's error in one line, without the locations in it but the first."""
    text = " ".join(str(error).split())
    match = re.search(r"(?:\)|unknown|\"-\":\d+:\d+|-:\d+:\d+): ((?:'|expected|use of|Dialect|custom op|unknown).*?)(?: note: |$)", text)
    return shown(_line(text) + match[1] if match else text, 400)
