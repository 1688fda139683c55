"""A function that was imported with its weights: checks of its arguments, and calls."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..array_facts import is_tensor
from ..arrays import CODES, Array, OnDevice, as_array, dense_steps, number_as
from ..errors import InputError
from ..runtime import Diagnostic, Executable
from .options import CodeOptions


@dataclass(frozen=True)
class Value:
    """An argument or a result: its name, the type of its elements, and its sizes; a text is a size that is known in the call, the
    same wherever the text stands, and None is any."""

    name: str
    dtype: np.dtype
    sizes: tuple[int | str | None, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join('?' if n is None else str(n) for n in self.sizes)}]"


@dataclass(frozen=True)
class Imported:
    """The text of a module whose one function is `main`, and what its arguments, its results and its weights, by name, are. Weights
    that are mapped files stay mapped."""

    text: str
    arguments: list[Value]
    results: list[Value]
    weights: Mapping[str, np.ndarray]


class ImportedFunction:
    """An imported function, compiled, with its weights bound."""

    def __init__(self, imported: Imported, options: CodeOptions, name: str):
        self.arguments, self.results = list(imported.arguments), list(imported.results)
        #: The module as text of MLIR.
        self.mlir = imported.text
        self._executable = Executable(imported.text, name=name, **options.of_code)
        self._weights = self._bind({name: imported.weights[name] for name in self._executable.weight_names})
        signature = self._executable.signature("main")
        self._compiled = [[type_.dtype for type_ in types] for types in signature]

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """Why attention was not fused or is no kernel: as of `diffattn.runtime.Executable`."""
        return self._executable.diagnostics

    @property
    def applied(self) -> list[Diagnostic]:
        """The attentions that were fused, and the kernel of each attention."""
        return self._executable.applied

    def call(self, values: Sequence) -> list[np.ndarray]:
        """The results as arrays, for arguments that are arrays of NumPy, of DLPack, or numbers where a size is not expected."""
        views = views_of(self.arguments, values)
        sizes_of(self.arguments, views)
        # Compiled code knows no unsigned integers: they have the same bits.
        views = [view if view.dtype == dtype else view.view(dtype) for view, dtype in zip(views, self._compiled[0])]
        results = self._executable.call("main", *views)
        return [result if result.dtype == value.dtype else result.view(value.dtype) for result, value in zip(results, self.results)]

    def _bind(self, weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Gives what must stay alive."""
        dense = [_usable(weight) for weight in weights.values()]
        if dense:
            arrays = (Array * len(dense))()
            for slot, array in zip(arrays, dense):
                kind = ctypes.c_int64 * array.ndim
                slot.data, slot.dtype, slot.rank = array.ctypes.data, CODES[array.dtype], array.ndim
                slot.shape, slot.strides = kind(*array.shape), kind(*dense_steps(array.shape))
            self._executable.bind_arrays((ctypes.c_char_p * len(dense))(*[name.encode() for name in weights]), arrays)
        return dense


def views_of(arguments: Sequence[Value], given: Sequence) -> list[np.ndarray]:
    """Arguments as arrays where they lie. Raises InputError for other types and sizes than expected."""
    return [_view(value, one) for value, one in zip(arguments, given)]


def _view(value: Value, given) -> np.ndarray:
    if not value.sizes and isinstance(given, (bool, int, float)):
        return number_as(given, value.dtype, value.name)
    view = as_array(given, value.name)
    if isinstance(view, OnDevice):
        raise InputError(f"{value.name}: expected an array in memory of the host, but got one on a device")
    if view.dtype != value.dtype:
        order = "" if view.dtype.isnative else ", whose bytes are in another order"
        raise InputError(f"{value.name}: expected elements of {value.dtype}, but got {view.dtype}{order}")
    if len(view.shape) != len(value.sizes) or any(isinstance(n, int) and n != got for n, got in zip(value.sizes, view.shape)):
        expected = ", ".join("any" if n is None else str(n) for n in value.sizes)
        raise InputError(f"{value.name}: expected shape [{expected}], but got {list(view.shape)}")
    return view


def sizes_of(arguments: Sequence[Value], views: Sequence[np.ndarray]) -> dict[str, int]:
    """The sizes that these arguments give to names. Raises InputError if one name has two sizes."""
    known: dict[str, tuple[int, str]] = {}
    for value, view in zip(arguments, views):
        for axis, (symbol, size) in enumerate(zip(value.sizes, view.shape)):
            if isinstance(symbol, str):
                first = known.setdefault(symbol, (size, f"{value.name}, size of axis {axis}"))
                if first[0] != size:
                    raise InputError(f"{value.name}, size of axis {axis}: expected {symbol} = {first[0]}, as for {first[1]}, but "
                                     f"got {size}")
    return {symbol: size for symbol, (size, _) in known.items()}


def _usable(weight: np.ndarray) -> np.ndarray:
    """The weight as compiled code takes it: dense, elements at multiples of their size, which an offset in a file may not be."""
    return np.require(weight, requirements=("C", "A"))


def as_given(results: Sequence[np.ndarray], given: Sequence) -> list:
    """Results of the same library as the arguments: tensors of PyTorch if one of them is, arrays of JAX if one of them is, else of
    NumPy."""
    if any(map(is_tensor, given)):
        from ..torch.tensors import of_array

        return [of_array(result) for result in results]
    jax = sys.modules.get("jax")
    if jax is not None and any(isinstance(one, jax.Array) for one in given):
        from ..jax.arrays import of_array

        return [of_array(result) for result in results]
    return list(results)
