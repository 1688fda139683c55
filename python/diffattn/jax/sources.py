"""Sources of StableHLO: a function that JAX traces, a file of a module, or one of an export."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

import jax
import numpy as np
from jaxlib.mlir import ir

from ..errors import CompileError, DiffAttnError, InputError, IRError, UsageError
from ..files import read_regular
from ..importing.function import Imported, Value, as_given
from ..text import shown
from . import arrays
from .bytecode import to_text
from .stablehlo import lower, make_context, parse, signature

#: As a module of MLIR text may have.
MOST_BYTES = 1 << 31


class Traced:
    """A function, traced once for each set of sizes and of weak types."""

    def __init__(self, fn, args, kwargs):
        self._fn, self.name = fn, getattr(fn, "__name__", type(fn).__name__)
        paths, self._tree = jax.tree_util.tree_flatten_with_path((args, kwargs))
        self._leaves = [_abstract(_leaf_name(path), leaf) for path, leaf in paths]
        self.arguments = [Value(_leaf_name(path), np.dtype(leaf.dtype), _sizes(leaf.shape)) for (path, _), leaf in zip(paths, self._leaves)]
        self.own_weak_types: tuple[bool, ...] | None = tuple(getattr(leaf, "weak_type", False) for leaf in self._leaves)
        self._out_tree = self._symbolic = None

    def weak_types(self, given: Sequence) -> tuple[bool, ...]:
        """For each argument, whether it gives way to the type of what it meets, as Python's numbers do."""
        return tuple(getattr(leaf, "weak_type", isinstance(leaf, (int, float)) and not isinstance(leaf, np.generic)) for leaf in given)

    def flatten(self, args, kwargs) -> list:
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        if tree != self._tree:
            raise _other_structure(self._tree, tree)
        # As JAX takes NumPy's wider types where it has them switched off.
        return [leaf if not isinstance(leaf, (np.ndarray, np.generic)) or leaf.dtype == value.dtype
                or jax.dtypes.canonicalize_dtype(leaf.dtype) != value.dtype else leaf.astype(value.dtype)
                for leaf, value in zip(leaves, self.arguments)]

    def unflatten(self, results, _):
        return jax.tree_util.tree_unflatten(self._out_tree, [arrays.of_array(result) for result in results])

    def module(self, shapes: Sequence[tuple[int, ...]], weak_types: Sequence[bool]) -> ir.Module:
        leaves = [jax.ShapeDtypeStruct(shape, leaf.dtype, weak_type=weak) for leaf, shape, weak in zip(self._leaves, shapes, weak_types)]
        args, kwargs = jax.tree_util.tree_unflatten(self._tree, leaves)
        try:
            self._check_sizes(leaves)
            lowered = jax.jit(self._fn, keep_unused=True).trace(*args, **kwargs).lower(lowering_platforms=("cpu",))
        except DiffAttnError:
            raise
        except Exception as error:  # the function and JAX raise many classes
            message = " ".join(str(error).split())
            raise CompileError(f"{self.name}: expected a function that JAX traces, but it gave {type(error).__name__}: {shown(message, 600)}"
                               + (f"; {_STATIC}" if "static argument" in message else "")) from error
        self._out_tree = lowered.out_tree
        return parse(make_context(), _bytecode(lowered.compiler_ir("stablehlo")))

    def _check_sizes(self, leaves) -> None:
        """Sizes that are expressions of symbols, and what the caller says of these, as JAX checks them for an export. That has no symbols
        that are 0."""
        shapes = [leaf.shape for leaf in self._leaves]
        if all(isinstance(size, int) for shape in shapes for size in shape) or any(0 in leaf.shape for leaf in leaves):
            return
        if self._symbolic is None:
            self._symbolic = jax.export.export(jax.jit(lambda *_: ()))(*self._leaves)
        try:
            jax.eval_shape(self._symbolic.call, *leaves)
        except ValueError as error:
            message = " ".join(str(error).split()).split(" Please see ")[0].rstrip(" ,.")
            raise InputError(f"{self.name}: expected sizes that fit those that it was compiled for, but got {shown(message, 600)}") from None


def _bytecode(module: ir.Module) -> bytes:
    """The module as bytecode, which leaves the context that JAX shares between functions."""
    memory = io.BytesIO()
    module.operation.write_bytecode(memory)
    return memory.getvalue()


#: Advice about arguments that JAX would not trace.
_STATIC = "what is no array, as a static argument, is bound to the function before: functools.partial(fn, ...)"


def _abstract(name: str, leaf):
    if isinstance(leaf, (np.ndarray, np.generic)) and not leaf.dtype.isnative:
        raise InputError(f"{name}: expected elements in this machine's order of bytes, but got {leaf.dtype}")
    try:
        abstract = jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype)) if isinstance(leaf, jax.ShapeDtypeStruct) \
            else jax.typeof(leaf)
        np.dtype(abstract.dtype)  # keys of random numbers have a type that NumPy does not know
    except (TypeError, OverflowError):
        hint = "" if hasattr(leaf, "dtype") or isinstance(leaf, (int, float)) else f"; {_STATIC}"
        raise InputError(f"{name}: expected an array of numbers, a number or a jax.ShapeDtypeStruct, but got {shown(leaf)}{hint}") from None
    return abstract


def _leaf_name(path) -> str:
    """args[0]['x'] of ((x,), {})."""
    return ("args" if path[0].idx == 0 else "kwargs") + jax.tree_util.keystr(path[1:])


def _sizes(shape) -> tuple[int | str, ...]:
    return tuple(size if isinstance(size, int) else str(size) for size in shape)


def _other_structure(wanted, given) -> InputError:
    """The error that names missing and unexpected leaves; where the structures differ otherwise (a list for a tuple), it shows these."""
    try:
        names, others = ([_leaf_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(
            jax.tree_util.tree_unflatten(tree, range(tree.num_leaves)))[0]] for tree in (wanted, given))
    except Exception:  # a container class of the caller need not take numbers
        names = others = []
    differences = [f"without {', '.join(missing)}"] if (missing := [name for name in names if name not in others]) else []
    differences += [f"with {', '.join(more)}"] if (more := [name for name in others if name not in names]) else []
    return InputError(f"expected arguments of the structure {_structure(wanted)}, but got {_structure(given)}"
                      + (f", {shown(' and '.join(differences), 300)}" if differences else ""))


def _structure(tree) -> str:
    return " ".join(str(tree).split())[:300]


class Stored:
    """A module, as it was read: anew for each set of sizes. `tree` is how an export has its arguments, `kept` which of them the module
    has, and `out_tree` its results."""

    def __init__(self, name: str, source: str | bytes, arguments=None, tree=None, kept=None, out_tree=None):
        self.name, self._tree, self._kept, self._out_tree = name, tree, kept, out_tree
        try:
            self._source = source if isinstance(source, str) else to_text(source)
            own, _ = signature(parse(make_context(), self._source))
        except DiffAttnError as error:
            raise type(error)(f"{name}: {error}") from None
        self.arguments = own if arguments is None else arguments
        self.own_weak_types = None
        if len(self.arguments) != len(own):
            raise CompileError(f"{name}: expected {len(self.arguments)} arguments of its main function, but got {len(own)}")

    def flatten(self, args, kwargs) -> list:
        if self._tree is not None:
            leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
            if tree != self._tree:
                raise _other_structure(self._tree, tree)
            return [leaves[number] for number in self._kept]
        if kwargs or len(args) != len(self.arguments):
            raise InputError(f"expected {len(self.arguments)} arguments by place, but got {len(args)}" + (f" and {', '.join(kwargs)}" if kwargs else ""))
        return list(args)

    def unflatten(self, results, given):
        results = as_given(results, given)
        if self._out_tree is not None:
            return jax.tree_util.tree_unflatten(self._out_tree, results)
        return results[0] if len(results) == 1 else tuple(results)

    def weak_types(self, _) -> None:
        return None

    def module(self, *_) -> ir.Module:
        return parse(make_context(), self._source)


def read(path: str) -> Stored:
    """Raises InputError, IRError and CompileError as `diffattn.jax.load`."""
    name, data = os.path.basename(path), read_regular(path, MOST_BYTES, InputError)
    if data.startswith(b"ML\xefR"):
        return Stored(name, data)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _export(name, data)
    if "\0" in text:
        return _export(name, data)
    return Stored(name, text)


def _export(name: str, data: bytes) -> Stored:
    try:
        exported = jax.export.deserialize(bytearray(data))
        arguments = [Value(f"arg{number}", np.dtype(exported.in_avals[number].dtype), _sizes(exported.in_avals[number].shape))
                     for number in exported.module_kept_var_idx]
    except Exception as error:  # the reader checks little and raises many classes
        raise IRError(f"{name}: expected text or bytecode of StableHLO, or an export of JAX, but got a file that reads as none "
                      f"({type(error).__name__}: {shown(' '.join(str(error).split()), 200)})") from None
    if tuple(exported.platforms) != ("cpu",):
        raise CompileError(f"{name}: expected an export for cpu alone, but got one for {', '.join(exported.platforms)}; "
                           "jax.export.export(..., platforms=['cpu']) makes one")
    if exported.nr_devices != 1 or exported.ordered_effects or exported.unordered_effects:
        raise CompileError(f"{name}: expected an export for one device without effects, but got one for {exported.nr_devices} with "
                           f"{len(exported.ordered_effects) + len(exported.unordered_effects)}")
    return Stored(name, exported.mlir_module_serialized, arguments, exported.in_tree, exported.module_kept_var_idx, exported.out_tree)


def import_file(path: str, sizes: dict[str, int]) -> Imported:
    """A file as a module for `sizes`, by their names. Raises UsageError that lists the symbols if these are others."""
    source = read(path)
    symbols = list(dict.fromkeys(size for value in source.arguments for size in value.sizes if isinstance(size, str)))
    if set(symbols) != set(sizes):
        raise UsageError(f"{path}: expected sizes for {', '.join(symbols) or 'no symbol'}, but got {', '.join(sizes) or 'none'}"
                         + (f"; for each give --size {symbols[0]}=N" if symbols else ""))
    shapes = [tuple(sizes[size] if isinstance(size, str) else size for size in value.sizes) for value in source.arguments]
    return lower(source.module(shapes), source.name, source.arguments, shapes)
