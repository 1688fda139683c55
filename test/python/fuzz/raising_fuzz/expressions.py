"""Element-wise expressions over named axes, and how they become ops: fused or one by one, in any order of axes, broadcast or not.

An expression is a tree; `Writer.tensor` makes one `linalg.generic` of it. Writing it in one piece or cutting it into several
(`Writer.maybe_cut`) is the choice of fusion that exporters differ in.
"""
from graph import Generic, Node, Tensor, extent, is_dynamic, literal, tensor_type

FLOATS = ("f32", "f16", "bf16")
NAMED = {"arith.addf": "add", "arith.subf": "sub", "arith.mulf": "mul", "arith.divf": "div", "math.exp": "exp", "math.tanh": "tanh",
         "math.sqrt": "sqrt", "math.rsqrt": "rsqrt", "arith.negf": "negf", "math.log": "log", "arith.maximumf": "max"}
WIDTHS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64}


class Expr:
    __slots__ = ("op", "operands", "attr", "dtype", "axes")

    def __init__(self, op, operands, dtype, attr=None, axes=()):
        self.op, self.operands, self.dtype, self.attr = op, operands, dtype, attr
        self.axes = list(axes)
        for operand in operands:
            self.axes += [axis for axis in operand.axes if axis not in self.axes]


def leaf(tensor):
    return Expr("tensor", (), tensor.dtype, tensor, tensor.axes)


def number(value, dtype="f32"):
    return Expr("number", (), dtype, value)


def scalar(ssa, dtype):
    """A value of the function that is no tensor."""
    return Expr("scalar", (), dtype, ssa)


def position(axis):
    return Expr("index", (), "index", axis, [axis])


def binary(name, a, b):
    assert a.dtype == b.dtype, (name, a.dtype, b.dtype)
    return Expr(f"arith.{name}", (a, b), a.dtype)


def power(a, exponent):
    return Expr("math.fpowi", (a, exponent), a.dtype)


def unary(name, a):
    return Expr(name, (a,), a.dtype)


def compare(predicate, a, b):
    return Expr("arith.cmpf" if a.dtype in FLOATS else "arith.cmpi", (a, b), "i1", predicate)


def select(condition, a, b):
    assert a.dtype == b.dtype, (a.dtype, b.dtype)
    return Expr("arith.select", (condition, a, b), a.dtype)


def cast(name, a, dtype):
    return Expr(f"arith.{name}", (a,), dtype)


class Writer:
    """Writes expressions as ops of a graph, spelled as its random numbers say."""

    def __init__(self, graph, rng, fusion):
        self.graph, self.rng, self.fusion = graph, rng, fusion
        self.shuffles = rng.random() < 0.2  # orders of axes that no exporter would choose
        self.broadcasts = rng.random() < 0.3  # operands broadcast by an op of their own
        self.gathers = rng.random() < 0.08  # elements read by tensor.extract
        self.whole = rng.random() < 0.25  # arith and math on whole tensors
        self.dense = rng.random()  # how often a number is a tensor

    # ---- helpers that choose a spelling ----
    def commuted(self, name, a, b):
        return binary(name, a, b) if self.rng.random() < 0.7 else binary(name, b, a)

    def mul(self, a, b):
        return self.commuted("mulf", a, b)

    def add(self, a, b):
        return self.commuted("addf", a, b)

    def sub(self, a, b):
        if self.rng.random() < 0.9:
            return binary("subf", a, b)
        return self.add(a, unary("arith.negf", b))

    def div(self, a, b):
        if self.rng.random() < 0.8:
            return binary("divf", a, b)
        return self.mul(a, binary("divf", number(1.0, b.dtype), b))

    def maybe_cut(self, expr, chance=None):
        """The expression as it is, or as a tensor that one op computes."""
        if expr.op in ("tensor", "number", "scalar") or self.rng.random() < (self.fusion if chance is None else chance):
            return expr
        return leaf(self.tensor(expr))

    # ---- layout ----
    def order(self, axes):
        axes = list(axes)
        if self.shuffles:
            self.rng.shuffle(axes)
        return axes

    def _loops(self, tensors, axes, fixed):
        """Groups of axes that are loops. Merged dimensions stay merged where all operands have them so."""
        groups = []
        for tensor in tensors:
            for group in tensor.groups:
                if len(group) < 2 or group in groups:
                    continue
                agree = all(g == group or not set(g) & set(group) for t in tensors for g in t.groups)
                if agree and not set(group) & set(fixed) and set(group) <= set(axes) and self.rng.random() < 0.7:
                    groups.append(group)
        merged = [axis for group in groups for axis in group]
        loops = []
        for axis in axes:
            if axis not in merged:
                loops.append((axis,))
            else:
                group = next(g for g in groups if axis in g)
                if group not in loops:
                    loops.append(group)
        return loops

    def _prepared(self, expr, loops):
        """The leaves of an expression, changed so that they can be read with these loops: tensor -> how it is read."""
        reads = {}
        for tensor in tensors_of(expr):
            if tensor in reads:
                continue
            read = tensor
            for group in tensor.groups:
                if len(group) > 1 and group not in loops:
                    if is_dynamic(group) or self.rng.random() < 0.8:
                        read = self.graph.expanded(read, only=group)
            reads[tensor] = self._broadcast(read, loops)
        return reads

    def _broadcast(self, tensor, loops):
        missing = [loop for loop in loops if not set(loop) & set(tensor.axes)]
        if not missing or not self.broadcasts or self.rng.random() < 0.4 or any(len(g) > 1 and g not in loops for g in tensor.groups):
            return tensor
        g = self.graph
        tensor = g.without_units(tensor)
        kept = [loop for loop in loops if loop in tensor.groups]
        groups = tuple(loops)
        out = g.empty(groups, tensor.dtype)
        type = tensor_type(groups, tensor.dtype)
        if list(tensor.groups) == kept and self.rng.random() < 0.4:
            dims = ", ".join(str(i) for i, loop in enumerate(loops) if loop not in tensor.groups)
            return Tensor(g.op(f"{{r}} = linalg.broadcast ins({{0}} : {{t0}}) outs({{1}} : {{t1}}) dimensions = [{dims}]", [tensor.ssa, out], type),
                          groups, tensor.dtype)
        maps = [self._map(tensor, loops), [f"d{i}" for i in range(len(loops))]]
        value, unused, result = g.name("in"), g.name("out"), g.name()
        g.nodes.append(Generic([tensor.ssa], [out], maps, ["parallel"] * len(loops), [(value, tensor.dtype), (unused, tensor.dtype)],
                               [], [value], result, [type]))
        return Tensor(result, groups, tensor.dtype)

    @staticmethod
    def _map(tensor, loops):
        places = {}
        for i, loop in enumerate(loops):
            for axis in loop:
                places[axis] = i
        results = []
        for group in tensor.groups:
            if not group:
                results.append("0")
            elif group in loops:
                results.append(f"d{loops.index(group)}")
            else:
                terms, stride = [], 1
                for axis in reversed(group):
                    terms.append(f"d{places[axis]}" + (f" * {stride}" if stride != 1 else ""))
                    stride *= axis.size
                results.append(" + ".join(reversed(terms)))
        return results

    # ---- ops ----
    def tensor(self, expr, axes=None, extra=()):
        """One generic that computes an expression at every place of `axes`."""
        if expr.op == "tensor" and axes is None and not extra:
            return expr.attr
        if self.whole and axes is None and not extra and self.rng.random() < 0.7:
            result = self._on_tensors(expr)
            if result:
                return result
        axes = self.order(axes if axes is not None else expr.axes)
        axes += [axis for axis in extra if axis not in axes]
        loops = self._loops(tensors_of(expr), axes, ())
        return self._generic(expr, loops, tuple(loops), None, None)

    def _on_tensors(self, expr):
        """The expression by arith, math and named linalg ops on whole tensors, where all of them have one layout."""
        tensors = tensors_of(expr)
        if not tensors or any(t.groups != tensors[0].groups for t in tensors) or has(expr, ("index", "scalar")):
            return None
        g, groups, known = self.graph, tensors[0].groups, {}
        if any(is_dynamic(group) for group in groups) and has(expr, ("number",)):
            return None

        def value(e):
            if id(e) not in known:
                known[id(e)] = write(e)
            return known[id(e)]

        def write(e):
            if e.op == "tensor":
                return e.attr.ssa
            type = tensor_type(groups, e.dtype)
            if e.op == "number":
                if self.rng.random() < 0.7:
                    return g.op("{r} = arith.constant dense<{a}> : {rt}", [], type, literal(e.attr, e.dtype))
                return g.op("{r} = tensor.splat {0} : {rt}", [g.constant(e.attr, e.dtype)], type)
            operands = [value(x) for x in e.operands]
            names = ", ".join(f"{{{i}}}" for i in range(len(operands)))
            if e.op in ("arith.cmpi", "arith.cmpf"):
                return g.op(f"{{r}} = {e.op} {{a}}, {names} : {{t0}}", operands, type, e.attr)
            if e.op == "arith.select":
                return g.op("{r} = arith.select {0}, {1}, {2} : {t0}, {t1}", operands, type)
            if e.op in NAMED and self.rng.random() < 0.3:
                kinds = ", ".join(f"{{t{i}}}" for i in range(len(operands)))
                place = len(operands)
                return g.op(f"{{r}} = linalg.{NAMED[e.op]} ins({names} : {kinds}) outs({{{place}}} : {{t{place}}}) -> {{rt}}",
                            [*operands, g.empty(groups, e.dtype)], type)
            if len(operands) == 1 and e.dtype != e.operands[0].dtype:
                return g.op(f"{{r}} = {e.op} {{0}} : {{t0}} to {{rt}}", operands, type)
            return g.op(f"{{r}} = {e.op} {names} : {{rt}}", operands, type)

        if has(expr, ("math.fpowi",)):
            return None
        return Tensor(value(expr), groups, expr.dtype)

    def reduced(self, expr, axis, combine, unit=None):
        """A reduction along one axis: combine is addf, maximumf, maxnumf, minimumf, andi, ori or argmax."""
        covered = [a for tensor in tensors_of(expr) for a in tensor.axes]
        if any(a not in covered for a in expr.axes):
            expr = leaf(self.tensor(expr))  # operands alone say how long a reduction runs
        if expr.op == "tensor" and combine in ("addf", "maximumf", "minimumf", "ori", "andi", "addi") and self.rng.random() < 0.15:
            result = self._reduced_by_name(expr.attr, axis, combine)
            if result:
                return result
        axes = self.order(expr.axes)
        loops = self._loops(tensors_of(expr), axes, (axis,))
        keep = unit if unit is not None else self.rng.random() < 0.5
        groups = tuple(() if axis in loop else loop for loop in loops if keep or axis not in loop)
        return self._generic(expr, loops, groups, axis, combine)

    STARTS = {"addf": 0.0, "maximumf": float("-inf"), "maxnumf": float("-inf"), "argmax": float("-inf"), "minimumf": float("inf"), "andi": 1,
              "ori": 0, "addi": 0}

    def _reduced_by_name(self, tensor, axis, combine):
        """linalg.reduce, whose result has a dimension less."""
        g = self.graph
        if (axis,) not in tensor.groups:
            return None
        place = tensor.groups.index((axis,))
        groups = tensor.groups[:place] + tensor.groups[place + 1:]
        out = g.filled(groups, tensor.dtype, self.STARTS[combine])
        form = f"{{r}} = linalg.reduce {{{{ arith.{combine} }}}} ins({{0}} : {{t0}}) outs({{1}} : {{t1}}) dimensions = [{place}]"
        return Tensor(g.op(form, [tensor.ssa, out], tensor_type(groups, tensor.dtype)), groups, tensor.dtype)

    def _generic(self, expr, loops, groups, reduced, combine):
        g = self.graph
        reads = self._prepared(expr, loops)
        ins, maps, arguments, values = [], [], [], {}
        gathered = {}
        for tensor, read in reads.items():
            linear = any(len(group) > 1 and group not in loops for group in read.groups)
            if self.gathers and reduced is None and not linear and self.rng.random() < 0.5 and all(len(group) < 2 for group in read.groups):
                gathered[tensor] = read
                continue
            ins.append(read.ssa)
            maps.append(self._map(read, loops))
            name = g.name("in")
            arguments.append((name, read.dtype))
            values[tensor] = name
        body = Body(self, loops, values, gathered)
        # Numbers are constants of the body, of the function, or tensors.
        for constant in dict.fromkeys(numbers_of(expr)):
            chance = self.rng.random()
            if chance < 0.25 * self.dense and constant.dtype != "index":
                shape = self.rng.choice(["", "1x"])
                ssa = g.op("{r} = arith.constant dense<{a}> : {rt}", [], f"tensor<{shape}{constant.dtype}>", literal(constant.attr, constant.dtype))
                name = g.name("in")
                ins.append(ssa)
                maps.append(["0"] if shape else [])
                arguments.append((name, constant.dtype))
                body.known[id(constant)] = name
            elif chance < 0.6:
                body.known[id(constant)] = g.constant(constant.attr, constant.dtype)
        outs, out_maps, types = [], [], []
        place = iter(range(len(groups)))
        result_map = [f"d{i}" for i in range(len(loops))]
        if reduced is not None:
            at = next(i for i, loop in enumerate(loops) if reduced in loop)
            result_map[at] = "0" if len(groups) == len(loops) else None
            result_map = [x for x in result_map if x is not None]
        del place
        dtype = expr.dtype
        if combine is None:
            outs.append(g.empty(groups, dtype))
        else:
            outs.append(g.filled(groups, dtype, self.STARTS[combine]))
        types.append(tensor_type(groups, dtype))
        out_maps.append(result_map)
        accumulators = [g.name("out")]
        arguments.append((accumulators[0], dtype))
        if combine == "argmax":
            outs.append(g.filled(groups, "i64", 0))
            types.append(tensor_type(groups, "i64"))
            out_maps.append(result_map)
            accumulators.append(g.name("out"))
            arguments.append((accumulators[1], "i64"))
        value = body.value(expr)
        yields = [value]
        if combine == "argmax":
            at = body.add("linalg.index {a} : index", [], "index", str(at))
            at = body.add("arith.index_cast {0} : {t0} to {rt}", [at], "i64")
            largest = body.add("arith.maximumf {0}, {1} : {rt}", [value, accumulators[0]], dtype)
            above = body.add("arith.cmpf {a}, {0}, {1} : {t0}", [value, accumulators[0]], "i1", "ogt")
            yields = [largest, body.add("arith.select {0}, {1}, {2} : {rt}", [above, at, accumulators[1]], "i64")]
        elif combine is not None:
            pair = [value, accumulators[0]]
            if self.rng.random() < 0.5:
                pair.reverse()
            yields = [body.add(f"arith.{combine} {{0}}, {{1}} : {{rt}}", pair, dtype)]
        iterators = ["reduction" if reduced is not None and reduced in loop else "parallel" for loop in loops]
        result = g.name()
        g.nodes.append(Generic(ins, outs, [*maps, *out_maps], iterators, arguments, body.nodes, yields, result, types))
        return Tensor(f"{result}#0" if len(types) > 1 else result, groups, dtype)

    def product(self, a, b, axis, acc=None):
        """Σ over `axis` of a · b, by a named op or a generic."""
        acc = acc or a.dtype
        total = [x for x in dict.fromkeys([*a.axes, *b.axes]) if x is not axis]
        if self.rng.random() < 0.35:
            def widened(e):
                return e if e.dtype == acc else cast("extf", e, acc)
            return self.reduced(binary("mulf", widened(a), widened(b)), axis, "addf", unit=False)
        left, right = self.tensor(a), self.tensor(b)
        only_a = [x for x in left.axes if x not in right.axes]
        only_b = [x for x in right.axes if x not in left.axes]
        rows, columns = only_a[-1:], only_b[-1:]
        # Heads that only one side has: they are merged with the rows, or the other side is broadcast along them.
        if len(only_a) > 1 and self.rng.random() < 0.3:
            rows = only_a
        if len(only_b) > 1 and self.rng.random() < 0.3:
            columns = only_b
        wanted = [x for x in total if x not in rows and x not in columns]
        left = self._laid(left, wanted, rows, [axis])
        right = self._laid(right, wanted, [axis], columns)
        g = self.graph
        name, groups = "linalg.batch_matmul", (tuple(wanted), tuple(rows), tuple(columns))
        if not wanted and self.rng.random() < 0.8:
            name, groups = "linalg.matmul", groups[1:]
            left, right = g.without_units_at(left, 0), g.without_units_at(right, 0)
        out = g.filled(groups, acc, 0.0)
        result = g.op(f"{{r}} = {name} ins({{0}}, {{1}} : {{t0}}, {{t1}}) outs({{2}} : {{t2}}) -> {{rt}}", [left.ssa, right.ssa, out],
                      tensor_type(groups, acc))
        result = Tensor(result, groups, acc)
        return g.expanded(result) if self.rng.random() < 0.75 else result

    def _laid(self, tensor, batch, rows, columns):
        missing = [axis for axis in batch if axis not in tensor.axes]
        if missing:
            order = [axis for axis in [*batch, *rows, *columns] if axis in missing or axis in tensor.axes]
            kept, self.shuffles = self.shuffles, False
            tensor = self.tensor(leaf(tensor), order)
            self.shuffles = kept
        return self.graph.relaid(tensor, (tuple(batch), tuple(rows), tuple(columns)))


def has(expr, ops):
    return expr.op in ops or any(has(operand, ops) for operand in expr.operands)


def tensors_of(expr, seen=None):
    seen = {} if seen is None else seen
    if expr.op == "tensor":
        seen[expr.attr] = True
    for operand in expr.operands:
        tensors_of(operand, seen)
    return list(seen)


def numbers_of(expr):
    if expr.op == "number":
        yield expr
    for operand in expr.operands:
        yield from numbers_of(operand)


class Body:
    """The ops of one generic's body; equal parts of the expression are computed once."""

    def __init__(self, writer, loops, values, gathered):
        self.writer, self.loops, self.values, self.gathered = writer, loops, values, gathered
        self.nodes, self.known, self._indices = [], {}, {}

    def add(self, form, operands, type, attr=None):
        result = self.writer.graph.name("b")
        self.nodes.append(Node("{r} = " + form, operands, result, type, attr))
        return result

    def loop(self, number):
        if number not in self._indices or self.writer.rng.random() < 0.3:
            self._indices[number] = self.add("linalg.index {a} : index", [], "index", str(number))
        return self._indices[number]

    def place(self, axis):
        """The position along an axis, taken out of a merged loop where it is in one."""
        for number, loop in enumerate(self.loops):
            if axis not in loop:
                continue
            value = self.loop(number)
            if len(loop) == 1:
                return value
            inner = extent(loop[loop.index(axis) + 1:])
            signed = self.writer.rng.choice("su")
            constant = lambda n: self.add("arith.constant {a} : {rt}", [], "index", str(n))
            if inner != 1:
                value = self.add(f"arith.div{signed}i {{0}}, {{1}} : {{rt}}", [value, constant(inner)], "index")
            if axis is not loop[0]:
                value = self.add(f"arith.rem{signed}i {{0}}, {{1}} : {{rt}}", [value, constant(axis.size)], "index")
            return value
        # An axis that the op does not run over has one place.
        return self.add("arith.constant {a} : {rt}", [], "index", "0")

    def value(self, expr):
        if id(expr) in self.known:
            return self.known[id(expr)]
        self.known[id(expr)] = result = self._value(expr)
        return result

    def _value(self, expr):
        if expr.op == "tensor":
            if expr.attr in self.values:
                return self.values[expr.attr]
            read = self.gathered[expr.attr]
            places = [self.place(group[0]) if group else self.add("arith.constant {a} : {rt}", [], "index", "0") for group in read.groups]
            names = ", ".join(f"{{{i + 1}}}" for i in range(len(places)))
            return self.add(f"tensor.extract {{0}}[{names}] : {{t0}}", [read.ssa, *places], expr.dtype)
        if expr.op == "number":
            return self.add("arith.constant {a}" + ("" if expr.dtype == "i1" else " : {rt}"), [], expr.dtype, literal(expr.attr, expr.dtype))
        if expr.op == "scalar":
            return expr.attr
        if expr.op == "index":
            return self.place(expr.attr)
        operands = [self.value(operand) for operand in expr.operands]
        names = ", ".join(f"{{{i}}}" for i in range(len(operands)))
        if expr.op in ("arith.cmpi", "arith.cmpf"):
            return self.add(f"{expr.op} {{a}}, {names} : {{t0}}", operands, "i1", expr.attr)
        if len(operands) == 1 and expr.dtype != expr.operands[0].dtype:
            return self.add(f"{expr.op} {{0}} : {{t0}} to {{rt}}", operands, expr.dtype)
        if expr.op == "math.fpowi":
            return self.add("math.fpowi {0}, {1} : {rt}, {t1}", operands, expr.dtype)
        return self.add(f"{expr.op} {names} : {{rt}}", operands, expr.dtype)
