"""A function of linalg, tensor, arith and math ops as a list of nodes, so that it can be printed, and mutated before that.

An `Axis` is what a loop runs over: batch, a factor of the heads, queries, keys, a width. A tensor's dimension is a group of axes: one,
several that are merged, or none (size 1). `Graph` writes the ops that only move elements between such layouts.
"""
import dataclasses


class Axis:
    __slots__ = ("name", "size", "dynamic")

    def __init__(self, name, size, dynamic=False):
        self.name, self.size, self.dynamic = name, size, dynamic

    def __repr__(self):
        return f"{self.name}={self.size}{'?' if self.dynamic else ''}"


def extent(group):
    total = 1
    for axis in group:
        total *= axis.size
    return total


def is_dynamic(group):
    return any(axis.dynamic for axis in group)


def tensor_type(groups, dtype):
    sizes = ["?" if is_dynamic(g) else str(extent(g)) for g in groups]
    return f"tensor<{'x'.join([*sizes, dtype])}>"


@dataclasses.dataclass(eq=False)
class Tensor:
    ssa: str
    groups: tuple
    dtype: str

    @property
    def axes(self):
        return [axis for group in self.groups for axis in group]

    @property
    def type(self):
        return tensor_type(self.groups, self.dtype)


class Node:
    """One op. `form` is its text: {r} result, {0}, {1} operands, {t0} their types, {rt} the result's type, {a} an attribute."""
    __slots__ = ("form", "operands", "result", "type", "attr")

    def __init__(self, form, operands, result, type, attr=None):
        self.form, self.operands, self.result, self.type, self.attr = form, list(operands), result, type, attr

    def results(self):
        return [(self.result, self.type)] if self.result else []

    def text(self, types):
        kinds = {f"t{i}": types[name] for i, name in enumerate(self.operands)}
        return self.form.format(*self.operands, r=self.result, rt=self.type, a=self.attr, **kinds)


class Generic:
    """A linalg.generic: inputs and initial values with their maps, and a body of nodes."""
    __slots__ = ("ins", "outs", "maps", "iterators", "arguments", "body", "yields", "result", "types_out")

    def __init__(self, ins, outs, maps, iterators, arguments, body, yields, result, types_out):
        self.ins, self.outs, self.maps, self.iterators = ins, outs, maps, iterators
        self.arguments, self.body, self.yields, self.result, self.types_out = arguments, body, yields, result, types_out

    @property
    def operands(self):
        return self.ins + self.outs

    def results(self):
        if len(self.types_out) == 1:
            return [(self.result, self.types_out[0])]
        return [(f"{self.result}#{i}", type) for i, type in enumerate(self.types_out)]

    def text(self, types):
        loops = ", ".join(f"d{i}" for i in range(len(self.iterators)))
        maps = ", ".join(f"affine_map<({loops}) -> ({', '.join(results)})>" for results in self.maps)
        iterators = ", ".join(f'"{kind}"' for kind in self.iterators)
        ins = f"ins({', '.join(self.ins)} : {', '.join(types[x] for x in self.ins)}) " if self.ins else ""
        outs = f"outs({', '.join(self.outs)} : {', '.join(types[x] for x in self.outs)})"
        inner = dict(types)
        inner.update(self.arguments)
        lines = []
        for node in self.body:
            inner.update(node.results())
            lines.append("    " + node.text(inner))
        head = ", ".join(f"{name}: {type}" for name, type in self.arguments)
        count = f":{len(self.types_out)}" if len(self.types_out) > 1 else ""
        kinds = ", ".join(inner[name] for name in self.yields)
        result = self.types_out[0] if len(self.types_out) == 1 else f"({', '.join(self.types_out)})"
        return "\n".join([f"{self.result}{count} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}} {ins}{outs} {{",
                          f"  ^bb0({head}):", *lines, f"    linalg.yield {', '.join(self.yields)} : {kinds}", f"  }} -> {result}"])


def literal(value, dtype):
    """A number as MLIR writes it."""
    if dtype == "i1":
        return "true" if value else "false"
    if dtype[0] == "i":
        return str(int(value))
    if value in (float("inf"), float("-inf")):
        bits = {"f32": (0x7F800000, 0xFF800000), "f16": (0x7C00, 0xFC00), "bf16": (0x7F80, 0xFF80)}[dtype]
        return f"0x{bits[value < 0]:X}"
    return f"{float(value):.9e}"


class Graph:
    def __init__(self, rng):
        self.rng = rng
        self.nodes, self.arguments, self.inputs, self.returns = [], [], [], []
        self._count = 0
        self._sizes = {}
        self.assert_sizes = True

    # ---- names, ops ----
    def name(self, prefix="v"):
        self._count += 1
        return f"%{prefix}{self._count}"

    def op(self, form, operands, type, attr=None, prefix="v"):
        result = self.name(prefix)
        self.nodes.append(Node(form, operands, result, type, attr))
        return result

    def constant(self, value, dtype):
        form = "{r} = arith.constant {a}" + ("" if dtype == "i1" else " : {rt}")
        return self.op(form, [], dtype, literal(value, dtype), "c")

    def index(self, value):
        return self.constant(value, "index")

    # ---- arguments and sizes ----
    def argument(self, groups, dtype, values):
        """A parameter of the function. `values` says how to fill it: `normal`, `bool`, `int:LOW:HIGH` or `uniform:LOW:HIGH`."""
        ssa = f"%arg{len(self.arguments)}"
        tensor = Tensor(ssa, tuple(tuple(g) for g in groups), dtype)
        self.arguments.append((ssa, tensor.type))
        shape = "x".join([*(str(extent(g)) for g in tensor.groups), dtype])
        self.inputs.append(f"{values}@{shape}")
        for place, group in enumerate(tensor.groups):
            if len(group) == 1 and group[0].dynamic:
                self._read_size(group[0], tensor, place)
        return tensor

    def scalar(self, dtype, values):
        ssa = f"%arg{len(self.arguments)}"
        self.arguments.append((ssa, dtype))
        self.inputs.append(f"{values}@{dtype}")
        return ssa

    def _read_size(self, axis, tensor, place):
        if axis in self._sizes and not self.assert_sizes and self.rng.random() < 0.8:
            return
        size = self.op("{r} = tensor.dim {0}, {1} : {t0}", [tensor.ssa, self.index(place)], "index")
        if axis not in self._sizes:
            self._sizes[axis] = [size]
            return
        if self.assert_sizes:
            same = self.op("{r} = arith.cmpi {a}, {0}, {1} : index", [self._sizes[axis][0], size], "i1", "eq")
            self.nodes.append(Node('cf.assert {0}, "sizes differ"', [same], None, None))
            self._sizes[axis].append(size)

    def size(self, group):
        """The size of a dimension as an index."""
        result = None
        for axis in group:
            # An axis whose size no argument states alone is a number here.
            one = self.rng.choice(self._sizes[axis]) if axis in self._sizes and axis.dynamic else self.index(axis.size)
            result = one if result is None else self.op("{r} = arith.muli {0}, {1} : index", [result, one], "index")
        return result or self.index(1)

    def dynamic_sizes(self, groups):
        return [self.size(group) for group in groups if is_dynamic(group)]

    # ---- tensors ----
    def empty(self, groups, dtype):
        sizes = self.dynamic_sizes(groups)
        names = ", ".join(f"{{{i}}}" for i in range(len(sizes)))
        return self.op(f"{{r}} = tensor.empty({names}) : {{rt}}", sizes, tensor_type(groups, dtype))

    def filled(self, groups, dtype, value):
        number = self.constant(value, dtype)
        return self.op("{r} = linalg.fill ins({0} : {t0}) outs({1} : {t1}) -> {rt}", [number, self.empty(groups, dtype)],
                       tensor_type(groups, dtype))

    def reshape(self, tensor, groups, reassociation, expand):
        type = tensor_type(groups, tensor.dtype)
        pairs = "[" + ", ".join("[" + ", ".join(map(str, part)) + "]" for part in reassociation) + "]"
        if not expand:
            return Tensor(self.op(f"{{r}} = tensor.collapse_shape {{0}} {pairs} : {{t0}} into {{rt}}", [tensor.ssa], type), groups, tensor.dtype)
        sizes = self.dynamic_sizes(groups)
        places = iter(range(1, len(sizes) + 1))
        shape = ", ".join(f"{{{next(places)}}}" if is_dynamic(g) else str(extent(g)) for g in groups)
        return Tensor(self.op(f"{{r}} = tensor.expand_shape {{0}} {pairs} output_shape [{shape}] : {{t0}} into {{rt}}", [tensor.ssa, *sizes], type),
                      groups, tensor.dtype)

    def expanded(self, tensor, only=None):
        """Every merged dimension (or those that share an axis with `only`) as one dimension an axis."""
        groups, parts = [], []
        for group in tensor.groups:
            split = len(group) > 1 and (only is None or any(axis in only for axis in group))
            pieces = [(axis,) for axis in group] if split else [group]
            parts.append(list(range(len(groups), len(groups) + len(pieces))))
            groups += pieces
        if len(groups) == len(tensor.groups):
            return tensor
        return self.reshape(tensor, tuple(groups), parts, expand=True)

    def without_units(self, tensor):
        groups = tuple(g for g in tensor.groups if g)
        if len(groups) == len(tensor.groups):
            return tensor
        parts, pending = [], []
        for place, group in enumerate(tensor.groups):
            if group:
                parts.append(pending + [place])
                pending = []
            elif parts:
                parts[-1].append(place)
            else:
                pending.append(place)
        return self.reshape(tensor, groups, parts, expand=False)

    def without_units_at(self, tensor, place):
        """Without a dimension of size 1 at `place`, others of that size stay."""
        groups = tuple(g for i, g in enumerate(tensor.groups) if i != place)
        parts = [[i] for i in range(len(tensor.groups)) if i != place]
        parts[0 if place == 0 else place - 1].append(place)
        return self.reshape(tensor, groups, [sorted(part) for part in parts], expand=False)

    def with_units(self, tensor, places):
        """Dimensions of size 1 at `places` of the result."""
        groups, parts, source = [], [], 0
        total = len(tensor.groups) + len(places)
        for place in range(total):
            if place in places:
                groups.append(())
                if parts:
                    parts[-1].append(place)
            else:
                groups.append(tensor.groups[source])
                parts.append(list(range(place + 1)) if not parts else [place])
                source += 1
        return self.reshape(tensor, tuple(groups), parts, expand=True)

    def transposed(self, tensor, order):
        """The dimensions in `order`, by the named op or by a generic that only yields."""
        if list(order) == list(range(len(order))):
            return tensor
        groups = tuple(tensor.groups[place] for place in order)
        type = tensor_type(groups, tensor.dtype)
        out = self.empty(groups, tensor.dtype)
        if self.rng.random() < 0.6:
            permutation = ", ".join(map(str, order))
            return Tensor(self.op(f"{{r}} = linalg.transpose ins({{0}} : {{t0}}) outs({{1}} : {{t1}}) permutation = [{permutation}]",
                                  [tensor.ssa, out], type), groups, tensor.dtype)
        loops = [f"d{i}" for i in range(len(order))]
        read = [None] * len(order)
        for loop, place in zip(loops, order):
            read[place] = loop
        result, value, unused = self.name(), self.name("in"), self.name("out")
        self.nodes.append(Generic([tensor.ssa], [out], [read, loops], ["parallel"] * len(order),
                                  [(value, tensor.dtype), (unused, tensor.dtype)], [], [value], result, [type]))
        return Tensor(result, groups, tensor.dtype)

    def relaid(self, tensor, groups):
        """The tensor with exactly these dimensions, whose axes are its own."""
        if tensor.groups == tuple(groups):
            return tensor
        wanted = [axis for group in groups for axis in group]
        single = self.without_units(self.expanded(tensor))
        axes = single.axes
        single = self.transposed(single, [axes.index(axis) for axis in wanted])
        parts, place = [], 0
        for group in groups:
            if group:
                parts.append(list(range(place, place + len(group))))
                place += len(group)
        merged = tuple(tuple(group) for group in groups if group)
        if merged != single.groups:
            single = self.reshape(single, merged, parts, expand=False)
        units = [place for place, group in enumerate(groups) if not group]
        return self.with_units(single, units) if units else single

    def sliced(self, tensor, place, offset, stride, group):
        """A dimension cut to `group`, from `offset` on by `stride`."""
        groups = tuple(group if i == place else g for i, g in enumerate(tensor.groups))
        operands, sizes = [tensor.ssa], []
        for g in groups:
            if is_dynamic(g):
                operands.append(self.size(g))
                sizes.append(f"{{{len(operands) - 1}}}")
            else:
                sizes.append(str(extent(g)))
        offsets = ["0"] * len(groups)
        offsets[place] = "{a}"
        strides = ["1"] * len(groups)
        strides[place] = str(stride)
        form = f"{{r}} = tensor.extract_slice {{0}}[{', '.join(offsets)}] [{', '.join(sizes)}] [{', '.join(strides)}] : {{t0}} to {{rt}}"
        return Tensor(self.op(form, operands, tensor_type(groups, tensor.dtype), str(offset)), groups, tensor.dtype)

    def picked(self, tensor, axis, number):
        """The tensor where `axis` is `number`; its dimension is gone, or is left with size 1."""
        place = next(i for i, group in enumerate(tensor.groups) if axis in group)
        group = tensor.groups[place]
        rest = tuple(a for a in group if a is not axis)
        if rest and not is_dynamic(group) and axis in (group[0], group[-1]) and self.rng.random() < 0.7:
            if axis is group[0]:
                return self.sliced(tensor, place, number * extent(rest), 1, rest)
            return self.sliced(tensor, place, number, axis.size, rest)
        if rest:
            tensor = self.expanded(tensor, only=[axis])
            place = next(i for i, g in enumerate(tensor.groups) if axis in g)
        cut = self.sliced(tensor, place, number, 1, ())
        return self.without_units(cut) if self.rng.random() < 0.8 else cut

    def concat(self, tensors, place, group):
        """Joined along a dimension, by the op or by writing each into an empty tensor."""
        if self.rng.random() < 0.3:
            return self._inserted(tensors, place, group)
        groups = tuple(group if i == place else g for i, g in enumerate(tensors[0].groups))
        names = ", ".join(f"{{{i}}}" for i in range(len(tensors)))
        kinds = ", ".join(f"{{t{i}}}" for i in range(len(tensors)))
        form = f"{{r}} = tensor.concat dim({place}) {names} : ({kinds}) -> {{rt}}"
        return Tensor(self.op(form, [t.ssa for t in tensors], tensor_type(groups, tensors[0].dtype)), groups, tensors[0].dtype)

    def _inserted(self, tensors, place, group):
        groups = tuple(group if i == place else g for i, g in enumerate(tensors[0].groups))
        type = tensor_type(groups, tensors[0].dtype)
        result, at = self.empty(groups, tensors[0].dtype), 0
        for tensor in tensors:
            operands, sizes = [tensor.ssa, result], []
            for g in tensor.groups:
                operands += [self.size(g)] if is_dynamic(g) else []
                sizes.append(f"{{{len(operands) - 1}}}" if is_dynamic(g) else str(extent(g)))
            offsets = [str(at) if i == place else "0" for i in range(len(groups))]
            form = f"{{r}} = tensor.insert_slice {{0}} into {{1}}[{', '.join(offsets)}] [{', '.join(sizes)}] [{', '.join('1' for _ in groups)}] : {{t0}} into {{rt}}"
            result = self.op(form, operands, type)
            at += extent(tensor.groups[place])
        return Tensor(result, groups, tensors[0].dtype)

    # ---- text ----
    def types(self):
        types = dict(self.arguments)
        for node in self.nodes:
            types.update(node.results())
        return types

    def text(self):
        types = self.types()
        arguments = ", ".join(f"{name}: {type}" for name, type in self.arguments)
        kinds = [types[name] for name in self.returns]
        result = kinds[0] if len(kinds) == 1 else f"({', '.join(kinds)})"
        lines = [f"func.func @main({arguments}) -> {result} {{"]
        lines += ["  " + node.text(types) for node in self.nodes]
        lines += [f"  return {', '.join(self.returns)} : {', '.join(kinds)}", "}"]
        return "\n".join(lines)
