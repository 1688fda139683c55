"""Writes MLIR text: a module of weights and functions whose values know their shapes.

Every value carries its type and its dimensions; a dimension is an `int` where it is static and an index value where it
is dynamic, so that `tensor.empty` and slices never have to ask for `tensor.dim`. An element-wise or reducing
`linalg.generic` is written from an einsum-like specification and a Python function for its body.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union

from ..errors import ConfigError
from .quantization import Quantization, scale_name

FLOATS = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Value:
    """An SSA value; `dims` is empty for scalars and for tensors of rank 0, which `tensor` tells apart."""

    name: str
    elem: str
    dims: tuple[int | Value, ...] = ()
    tensor: bool = False

    @property
    def type(self) -> str:
        return tensor_type(self.dims, self.elem) if self.tensor else self.elem

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class QuantizedMatrix(Value):
    """A weight `[n, k]` as bytes of integers of `bits` and scales `[n, groups]`: an operand of `Function.matmul` alone."""

    bits: int = 8
    scales: Value | None = None

    @property
    def type(self) -> str:
        rows, columns = self.dims
        return tensor_type([rows, columns * self.bits // 8], self.elem)


Dim = Union[int, Value]  # an expression, which Python 3.9 could not write with |


def tensor_type(dims: Sequence[Dim], elem: str) -> str:
    return "tensor<" + "".join(f"{d if isinstance(d, int) else '?'}x" for d in dims) + f"{elem}>"


def float_literal(value: float, elem: str = "f32") -> str:
    """`value`, rounded to `elem`, in a form that MLIR reads back bit for bit."""
    if elem == "f32":
        return f"0x{struct.unpack('<I', struct.pack('<f', value))[0]:08X}"
    if elem == "f64":
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    raise ValueError(f"expected f32 or f64, but got {elem}")


def float_attr(value: float) -> str:
    """A readable f32 attribute: the shortest decimal that gives `value` rounded to f32."""
    single = struct.unpack("<f", struct.pack("<f", value))[0]
    for digits in range(1, 10):
        text = f"{single:.{digits}g}"
        if struct.unpack("<f", struct.pack("<f", float(text)))[0] == single:
            break
    mantissa, _, exponent = text.partition("e")
    if "." not in mantissa:
        mantissa += ".0"
    return f"{mantissa}e{exponent} : f32" if exponent else f"{mantissa} : f32"


def _numbered(pattern: str, numbers: Sequence[int] | None) -> list[str]:
    """The names that a pattern with `{}` has with these numbers in its place."""
    return [pattern] if numbers is None else [pattern.replace("{}", str(n)) for n in numbers]


class Module:
    """Weights and functions, in the order of their declaration."""

    def __init__(self, quantization: Quantization | None = None) -> None:
        self.quantization = quantization
        #: Matrices that may be integers, by their names in the file: whether it holds them transposed.
        self.matrices: dict[str, bool] = {}
        self.weights: dict[str, str] = {}
        self.types: dict[str, tuple[tuple[int, ...], str]] = {}
        self.functions: list[str] = []
        # Caches of a decoder: for keys and values, the number of layers and the heads and width of each.
        self.cache_shapes: list[tuple[int, tuple[int, int]]] = []
        #: Layers with attention of a decoder that is inspected: how many keys before its own a query sees; None: all.
        self.attentions: dict[int, int | None] = {}
        #: Numbers of a decoder's state that a sequence keeps whatever its length.
        self.state_size = 0
        #: Arguments of each public function: shape (None: any size) and element type.
        self.arguments: dict[str, list[tuple[tuple[int | None, ...], str]]] = {}
        #: Rows and columns of the matrices that are integers.
        self.quantized: dict[str, tuple[int, int]] = {}
        self._files: dict[str, tuple[tuple[int, ...], str]] = {}

    def file_names(self) -> list[str]:
        """The names of all weights as the file has them, those of every layer one by one."""
        return list(self._files)

    def file_types(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and element type of each of these as the file has them, where matrices may be transposed."""
        return dict(self._files)

    def weight(
        self,
        name: str,
        shape: Sequence[int],
        elem: str,
        *,
        layers: int | None = None,
        first_layer: int = 0,
        layer_step: int = 1,
        source: str | None = None,
        row_blocks: Sequence[int] | None = None,
        transpose: bool = False,
        finite: bool = False,
    ) -> str:
        """Declares a weight; with `layers`, `name` holds `{}` in place of the layer's number: `first_layer`, and from there on in
        steps of `layer_step`. Returns the name."""
        attributes = []
        if layers is not None:
            attributes.append(f"diffattn.layers = {layers} : i64")
        if first_layer:
            attributes.append(f"diffattn.first_layer = {first_layer} : i64")
        if layer_step != 1:
            attributes.append(f"diffattn.layer_step = {layer_step} : i64")
        if source is not None:
            attributes.append(f'diffattn.source = "{source}"')
        if row_blocks is not None:
            size = shape[0] // len(row_blocks)
            attributes.append(f"diffattn.row_block_size = {size} : i64")
            attributes.append(f"diffattn.row_blocks = array<i64: {', '.join(map(str, row_blocks))}>")
        if transpose:
            attributes.append("diffattn.transpose")
        if finite:
            attributes.append("diffattn.finite")
        kind = tensor_type(shape, elem)
        text = f'ml_program.global private @"{name}"(#ml_program.extern<{kind}>) : {kind}'
        if attributes:
            text += f" {{{', '.join(attributes)}}}"
        self.weights[name] = text
        self.types[name] = (tuple(shape), elem)
        stored = tuple(shape)[::-1] if transpose else tuple(shape)
        numbers = range(first_layer, first_layer + layers * layer_step, layer_step) if layers is not None else None
        self._files |= {file: (stored, elem) for file in _numbered(source or name, numbers)}
        return name

    def read_from(self, name: str, source: str) -> None:
        """Has every weight that the file was to have as `name` read from `source`."""
        kept = self._files.pop(name)
        self._files[source] = kept
        for weight, text in self.weights.items():
            if f'diffattn.source = "{name}"' in text:
                self.weights[weight] = text.replace(f'diffattn.source = "{name}"', f'diffattn.source = "{source}"')
            elif weight == name:
                self.weights[weight] = f'{text} {{diffattn.source = "{source}"}}'

    def matrix(self, name: str, shape: Sequence[int], elem: str, *, source: str | None = None, transpose: bool = False, **options) -> str:
        """Declares the weight `[n, k]` of a linear layer, as `weight` does, or as integers and scales where the module is
        quantized: then the file has `[n, k]` in any case."""
        how, before = self.quantization, set(self._files)
        if how is None:
            self.weight(name, shape, elem, source=source, transpose=transpose, **options)
        else:
            rows, columns = shape
            if columns % how.group:
                raise ConfigError(f"expected group_size to divide the {columns} columns of {source or name}, but got {how.group}")
            self.weight(name, [rows, columns * how.bits // 8], "i8", source=source, **options)
            self.quantized[name] = (rows, columns)
        self.matrices |= {file: transpose for file in self._files if file not in before}
        if how is not None:
            self.weight(scale_name(name), [rows, columns // how.group], "f32", source=source and scale_name(source), finite=True, **options)
        return name

    def function(self, name: str, *, private: bool = False) -> Function:
        return Function(self, name, private)

    def __str__(self) -> str:
        parts = ["module {"]
        parts += [f"  {line}" for line in self.weights.values()]
        parts += self.functions
        return "\n".join(parts) + "\n}\n"


class Function:
    """A function under construction. Arguments first, then operations, then `ret`."""

    def __init__(self, module: Module, name: str, private: bool) -> None:
        self.module, self.name, self.private = module, name, private
        self.arguments: list[tuple[Value, bool]] = []
        self.constants: dict[tuple[str, str], Value] = {}
        self.constant_lines: list[str] = []
        self.lines: list[str] = []
        self.depth, self.count = 2, 0
        self.result_dims: list[Value] = []

    # ---- values -----------------------------------------------------------------------------------------------

    def fresh(self, elem: str, dims: Sequence[Dim] = (), tensor: bool = False) -> Value:
        self.count += 1
        return Value(f"%{self.count - 1}", elem, tuple(dims), tensor)

    def argument(self, name: str, elem: str, shape: Sequence[int | None] | None = None, writable=False) -> Value:
        """An argument; `None` in `shape` is a dynamic dimension, which is asked for at once."""
        if shape is None:
            value = Value(f"%{name}", elem)
        else:
            bare = Value(f"%{name}", elem, tuple(Value("", "index") if d is None else d for d in shape), True)
            dims = [self.emit(f"tensor.dim {bare}, {self.index(i)} : {bare.type}", "index") if d is None else d
                    for i, d in enumerate(shape)]
            value = Value(f"%{name}", elem, tuple(dims), True)
        self.arguments.append((value, writable))
        return value

    def emit(self, text: str, elem: str, dims: Sequence[Dim] | None = None) -> Value:
        """Writes `%n = text`; a tensor if `dims` is given."""
        value = self.fresh(elem, dims or (), dims is not None)
        self.line(f"{value} = {text}")
        return value

    def emit_several(self, text: str, like: Sequence[Value]) -> list[Value]:
        """Writes `%n, %m = text`, whose results have the types of `like`."""
        values = [self.fresh(v.elem, v.dims, v.tensor) for v in like]
        self.line(f"{', '.join(map(str, values))} = {text}")
        return values

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def constant(self, text: str, elem: str, dims: Sequence[Dim] | None = None) -> Value:
        """A constant, written once at the top of the function."""
        if (text, elem) not in self.constants:
            value = Value(f"%c{len(self.constants)}", elem, tuple(dims or ()), dims is not None)
            self.constants[text, elem] = value
            kind = "" if elem == "i1" else f" : {value.type}"
            self.constant_lines.append(f"    {value} = arith.constant {text}{kind}")
        return self.constants[text, elem]

    def index(self, value: Dim) -> Value:
        return value if isinstance(value, Value) else self.constant(str(value), "index")

    def true(self) -> Value:
        return self.constant("true", "i1")

    def i64(self, value: int) -> Value:
        return self.constant(str(value), "i64")

    def f32(self, value: float) -> Value:
        return self.constant(float_attr(value).split(" ")[0], "f32")

    def table(self, values: Sequence[float]) -> Value:
        """A constant `tensor<nxf32>`."""
        literals = ", ".join(float_literal(float(v)) for v in values)
        return self.constant(f"dense<[{literals}]>", "f32", (len(values),))

    # ---- scalars ----------------------------------------------------------------------------------------------

    def scalar(self, op: str, *operands: Value, elem: str | None = None) -> Value:
        """An op whose operands share a type, which is also that of its result unless `elem` says another."""
        return self.emit(f"{op} {', '.join(map(str, operands))} : {operands[0].elem}", elem or operands[0].elem)

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        op = "arith.cmpf" if a.elem in FLOATS else "arith.cmpi"
        return self.emit(f"{op} {predicate}, {a}, {b} : {a.elem}", "i1")

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.emit(f"arith.select {condition}, {a}, {b} : {a.elem}", a.elem)

    def convert(self, value: Value, elem: str) -> Value:
        """A float in another float type; two 16-bit types go through f32."""
        if value.elem == elem:
            return value
        if value.elem != "f32" and elem != "f32":
            value = self.convert(value, "f32")
        op = "arith.extf" if elem == "f32" else "arith.truncf"
        return self.emit(f"{op} {value} : {value.elem} to {elem}", elem)

    def to_index(self, value: Value) -> Value:
        return self.emit(f"arith.index_cast {value} : {value.elem} to index", "index")

    def to_i64(self, value: Value) -> Value:
        return self.emit(f"arith.index_cast {value} : {value.elem} to i64", "i64")

    def to_f32(self, value: Value) -> Value:
        if value.elem == "index":
            value = self.to_i64(value)
        return self.emit(f"arith.sitofp {value} : {value.elem} to f32", "f32")

    def multiply(self, a: Dim, b: Dim) -> Dim:
        """A product of dimensions, folded where both are static."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if b == 1 or a == 1:
            return a if b == 1 else b
        return self.scalar("arith.muli", self.index(a), self.index(b))

    def require(self, condition: Value, message: str) -> None:
        """An error of the run if `condition` is false."""
        self.line(f'cf.assert {condition}, "{message}"')

    # ---- tensors ----------------------------------------------------------------------------------------------

    def empty(self, dims: Sequence[Dim], elem: str) -> Value:
        dynamic = ", ".join(str(d) for d in dims if isinstance(d, Value))
        return self.emit(f"tensor.empty({dynamic}) : {tensor_type(dims, elem)}", elem, dims)

    def fill(self, value: Value, dims: Sequence[Dim]) -> Value:
        out = self.empty(dims, value.elem)
        return self.emit(f"linalg.fill ins({value} : {value.elem}) outs({out} : {out.type}) -> {out.type}",
                         value.elem, dims)

    def generic(self, spec: str, inputs: Sequence[Value], out: Value, body: Callable[..., Value]) -> Value:
        """A `linalg.generic` by a specification such as `"m k, k -> m k"`.

        A term lists the loops that index an operand's axes, separated by spaces; `!s` reads axis `s`, of two
        elements, the other way round. Loops that the output does not name are reductions. `body` gets the scalars of
        the inputs and of the output and returns the new scalar.
        """
        left, right = (side.strip() for side in spec.split("->"))
        terms = [t.split() for t in left.split(",")] if left else []
        terms.append(right.split())
        loops = list(dict.fromkeys(n.lstrip("!") for t in (terms[-1:] + terms[:-1]) for n in t))
        position = {name: f"d{i}" for i, name in enumerate(loops)}
        space = ", ".join(position.values())

        def affine(name: str) -> str:
            return f"-{position[name[1:]]} + 1" if name.startswith("!") else position[name]

        maps = ", ".join(f"affine_map<({space}) -> ({', '.join(map(affine, t))})>" for t in terms)
        kinds = ", ".join('"parallel"' if n in terms[-1] else '"reduction"' for n in loops)
        result = self.fresh(out.elem, out.dims, True)
        ins = ""
        if inputs:
            ins = f"ins({', '.join(map(str, inputs))} : {', '.join(v.type for v in inputs)}) "
        self.line(f"{result} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}} "
                  f"{ins}outs({out} : {out.type}) {{")
        scalars = [self.fresh(v.elem) for v in (*inputs, out)]
        self.line(f"^bb0({', '.join(f'{s}: {s.elem}' for s in scalars)}):")
        self.depth += 1
        value = body(*scalars)
        self.line(f"linalg.yield {value} : {value.elem}")
        self.depth -= 1
        self.line(f"}} -> {out.type}")
        return result

    def loop_index(self, axis: int) -> Value:
        """The number of a loop, inside of the body of `generic`; the loops of the output come first."""
        return self.emit(f"linalg.index {axis} : index", "index")

    def extract(self, tensor: Value, *indices: Value) -> Value:
        return self.emit(f"tensor.extract {tensor}[{', '.join(map(str, indices))}] : {tensor.type}", tensor.elem)

    def rank0(self, value: Value) -> Value:
        """The scalar as a tensor of rank 0."""
        return self.emit(f"tensor.from_elements {value} : tensor<{value.elem}>", value.elem, ())

    def matmul(self, x: Value, weight: Value, out: Value | None = None) -> Value:
        """`out + x * weight^T`, in f32 without `out`: x is `[m, k]`, the weight `[n, k]`."""
        if isinstance(weight, QuantizedMatrix):
            onto = out or self.empty([x.dims[0], weight.dims[0]], "f32")
            types = f"{x.type}, {weight.type}, {weight.scales.type}"
            return self.emit(f"diffattn.quantized_gemm ins({x}, {weight}, {weight.scales} : {types}) outs({onto} : {onto.type}) "
                             f"{{bits = {weight.bits} : i64{', accumulate' if out else ''}}} -> {onto.type}", onto.elem, onto.dims)
        if out is None:
            out = self.fill(self.f32(0), [x.dims[0], weight.dims[0]])
        space = "(d0, d1, d2)"
        maps = ", ".join(f"affine_map<{space} -> ({t})>" for t in ("d0, d2", "d1, d2", "d0, d1"))
        return self.emit(f"linalg.matmul indexing_maps = [{maps}] ins({x}, {weight} : {x.type}, {weight.type}) "
                         f"outs({out} : {out.type}) -> {out.type}", out.elem, out.dims)

    def expand(self, x: Value, axis: int, dims: Sequence[Dim]) -> Value:
        """Splits one axis into `dims`, the first of which may be dynamic as may be the others."""
        groups, new, at = [], [], 0
        for i, d in enumerate(x.dims):
            size = len(dims) if i == axis else 1
            groups.append(str(list(range(at, at + size))))
            new += dims if i == axis else [d]
            at += size
        kind = tensor_type(new, x.elem)
        return self.emit(f"tensor.expand_shape {x} [{', '.join(groups)}] output_shape [{', '.join(map(str, new))}] : "
                         f"{x.type} into {kind}", x.elem, new)

    def collapse(self, x: Value, groups: Sequence[Sequence[int]], dims: Sequence[Dim]) -> Value:
        """Joins the axes of each group; `dims` are the new dimensions."""
        text = ", ".join(str(list(g)) for g in groups)
        return self.emit(f"tensor.collapse_shape {x} [{text}] : {x.type} into {tensor_type(dims, x.elem)}",
                         x.elem, dims)

    def _ranges(self, offsets: Sequence[Dim], sizes: Sequence[Dim]) -> str:
        ones = ", ".join("1" for _ in sizes)
        return f"[{', '.join(map(str, offsets))}] [{', '.join(map(str, sizes))}] [{ones}]"

    def slice(self, x: Value, offsets: Sequence[Dim], sizes: Sequence[Dim], drop: Sequence[int] = ()) -> Value:
        """A part of `x`, without the axes in `drop`, which must have size 1."""
        kept = [d for i, d in enumerate(sizes) if i not in drop]
        kind = tensor_type(kept, x.elem)
        return self.emit(f"tensor.extract_slice {x}{self._ranges(offsets, sizes)} : {x.type} to {kind}", x.elem, kept)

    def insert(self, part: Value, whole: Value, offsets: Sequence[Dim], sizes: Sequence[Dim]) -> Value:
        ranges = self._ranges(offsets, sizes)
        return self.emit(f"tensor.insert_slice {part} into {whole}{ranges} : {part.type} into {whole.type}",
                         whole.elem, whole.dims)

    # ---- structure --------------------------------------------------------------------------------------------

    def weight(self, name: str, layer: Value | None = None) -> Value:
        """The weight of that name; of one layer if `layer` is given. A matrix that is quantized comes with its scales."""
        if name in self.module.quantized:
            part, scales = self._tensor(name, layer), self._tensor(scale_name(name), layer)
            return QuantizedMatrix(part.name, part.elem, self.module.quantized[name], True, self.module.quantization.bits, scales)
        return self._tensor(name, layer)

    def _tensor(self, name: str, layer: Value | None) -> Value:
        shape, elem = self.module.types[name]
        kind = tensor_type(shape, elem)
        if layer is None:
            return self.emit(f'ml_program.global_load_const @"{name}" : {kind}', elem, shape)
        return self.emit(f'diffattn.layer_weight @"{name}"[{layer}] : {kind}', elem, shape)

    def loop(self, count: Dim, carried: Sequence[Value], body: Callable[..., Sequence[Value]]) -> list[Value]:
        """`scf.for` from 0 to `count`; `body` gets the index and the carried values and returns the next ones."""
        i = self.fresh("index")
        inside = [self.fresh(v.elem, v.dims, v.tensor) for v in carried]
        results = [self.fresh(v.elem, v.dims, v.tensor) for v in carried]
        types = ", ".join(v.type for v in carried)
        pairs = ", ".join(f"{a} = {b}" for a, b in zip(inside, carried))
        self.line(f"{', '.join(map(str, results))} = scf.for {i} = {self.index(0)} to {self.index(count)} "
                  f"step {self.index(1)} iter_args({pairs}) -> ({types}) {{")
        self.depth += 1
        self.line(f"scf.yield {', '.join(map(str, body(i, *inside)))} : {types}")
        self.depth -= 1
        self.line("}")
        return results

    def call(self, name: str, arguments: Sequence[Value], results: Sequence[Value]) -> list[Value]:
        """Calls a function whose results have the types of `results`."""
        inputs, outputs = (", ".join(v.type for v in side) for side in (arguments, results))
        text = f"func.call @{name}({', '.join(map(str, arguments))}) : ({inputs}) -> ({outputs})"
        return self.emit_several(text, results)

    def ret(self, *values: Value) -> None:
        """Ends the function and adds it to the module."""
        types = ", ".join(v.type for v in values)
        self.line(f"return {', '.join(map(str, values))} : {types}")
        # Said of every tensor: an input of the caller must not be written, a cache must not be copied.
        mark = {True: " {bufferization.writable = true}", False: " {bufferization.writable = false}"}
        arguments = ", ".join(f"{v}: {v.type}" + (mark[writable] if v.tensor else "")
                              for v, writable in self.arguments)
        head = f"  func.func {'private ' if self.private else ''}@{self.name}({arguments}) -> ({types})"
        if not self.private:
            self.module.arguments[self.name] = [(tuple(d if isinstance(d, int) else None for d in v.dims), v.elem)
                                                for v, _ in self.arguments]
        if self.private:
            head += " attributes {no_inline}"
        self.module.functions.append("\n".join([head + " {", *self.constant_lines, *self.lines, "  }"]))
