"""Masks as expressions over positions of queries and keys: bands in every spelling, and conditions that are bands by accident or not at all."""

from expressions import WIDTHS, binary, cast, compare, leaf, number, position, select, unary
from graph import Tensor, tensor_type

PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
FLOAT_PREDICATES = ("oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno")
INFINITE = float("-inf")


class Masks:
    def __init__(self, graph, writer, rng, batch, heads, q, k):
        self.graph, self.writer, self.rng = graph, writer, rng
        self.batch, self.heads, self.q, self.k = batch, heads, q, k
        self._lengths = {}

    # ---- integers ----
    def at(self, axis, dtype):
        """The position along an axis as a number of some type."""
        rng, w = self.rng, self.writer
        value = position(axis)
        if dtype == "index":
            return value
        if dtype in ("f32", "f16", "bf16"):
            integer = self.at(axis, rng.choice(["i64", "i32"]))
            return w.maybe_cut(cast(rng.choice(["sitofp", "sitofp", "uitofp"]), integer, dtype))
        name = rng.choice(["index_cast", "index_cast", "index_castui"])
        if dtype == "i64" or rng.random() < 0.5:
            value = cast(name, value, dtype)
        else:
            value = cast("trunci", cast(name, value, "i64"), dtype)
        return w.maybe_cut(value, 0.8)

    def resized(self, value, dtype):
        """An integer as another type."""
        old, new = WIDTHS[value.dtype], WIDTHS[dtype]
        if value.dtype == dtype:
            return value
        if "index" in (value.dtype, dtype):
            return cast(self.rng.choice(["index_cast", "index_castui"]), value, dtype)
        return cast(self.rng.choice(["extsi", "extui"]) if new > old else "trunci", value, dtype)

    def integer(self, depth=0):
        """Any integer of positions, small numbers and sizes; it may wrap, be negative, or be cast without its sign."""
        rng = self.rng
        dtype = rng.choice(["index", "index", "i64", "i64", "i32", "i8", "i16"])
        choice = rng.random()
        if depth > 2 or choice < 0.45:
            return self.at(rng.choice([self.q, self.k]), dtype)
        if choice < 0.55:
            return number(rng.choice([0, 1, 2, 3, -1, -2, self.q.size, self.k.size, 127, 255, -128]) if dtype != "i8" else rng.randint(-128, 127), dtype)
        if choice < 0.6:
            return self.resized(self.length(), dtype)
        a, b = (self.resized(self.integer(depth + 1), dtype) for _ in range(2))
        name = rng.choice(["addi", "subi", "subi", "muli", "minsi", "maxsi", "minui", "maxui", "andi", "ori", "xori"])
        small = number(rng.choice([1, 2, 3, 5]), dtype)
        if choice < 0.7:
            name, b = rng.choice(["divsi", "divui", "remsi", "remui", "floordivsi", "ceildivsi", "ceildivui", "shli", "shrsi", "shrui"]), small
        return binary(name, a, b)

    def length(self):
        """A number for each batch: an argument."""
        rng = self.rng
        dtype = rng.choice(["i64", "i64", "i32"])
        if dtype not in self._lengths:
            low = 0 if rng.random() < 0.3 else 1
            groups = [(self.batch,)] if rng.random() < 0.8 else []
            self._lengths[dtype] = self.graph.argument(groups, dtype, f"int:{low}:{self.k.size}")
        return leaf(self._lengths[dtype])

    # ---- conditions ----
    def at_most(self, a, b):
        """a <= b, in one of the ways to say so."""
        dtype = a.dtype
        if dtype in ("f32", "f16", "bf16"):
            return self.rng.choice([lambda: compare("ole", a, b), lambda: compare("oge", b, a), lambda: self.negated(compare("ogt", a, b)),
                                    lambda: compare("ule", a, b)])()
        zero = number(0, dtype)
        return self.rng.choice([
            lambda: compare("sle", a, b), lambda: compare("sge", b, a), lambda: self.negated(compare("sgt", a, b)),
            lambda: self.negated(compare("slt", b, a)), lambda: compare("sle", binary("subi", a, b), zero),
            lambda: compare("sge", binary("subi", b, a), zero), lambda: compare("slt", binary("subi", a, b), number(1, dtype)),
            lambda: compare("sgt", binary("addi", b, number(1, dtype)), a), lambda: compare("eq", binary("minsi", a, b), a),
            lambda: compare("eq", binary("maxsi", a, b), b)])()

    def negated(self, condition):
        rng = self.rng
        return rng.choice([lambda: binary("xori", condition, number(1, "i1")), lambda: select(condition, number(0, "i1"), number(1, "i1")),
                           lambda: compare("eq", condition, number(0, "i1"))])()

    def both(self, a, b):
        return self.rng.choice([lambda: binary("andi", a, b), lambda: binary("andi", b, a), lambda: select(a, b, number(0, "i1")),
                                lambda: binary("muli", a, b), lambda: self.negated(binary("ori", self.negated(a), self.negated(b))),
                                lambda: binary("minui", a, b)])()

    def causal(self):
        dtype = self.rng.choice(["index", "i64", "i64", "i32", "f32", "i8"])
        offset = self.rng.choice([0, 0, 0, self.k.size - self.q.size, 1, -1, 2])
        i, j = self.at(self.q, dtype), self.at(self.k, dtype)
        if offset and dtype == "f32":
            i = binary("addf", i, number(offset, dtype))
        elif offset:
            i = binary("addi", i, number(offset, dtype)) if self.rng.random() < 0.6 else binary("subi", i, number(-offset, dtype))
        return self.at_most(j, i)

    def window(self):
        rng = self.rng
        dtype = rng.choice(["index", "i64", "i32", "i16"])
        i, j = self.at(self.q, dtype), self.at(self.k, dtype)
        width = rng.randint(0, 3)
        if rng.random() < 0.4:  # one comparison without a sign
            low = rng.choice([0, 0, 1, 2])
            difference = binary("subi", i, j) if rng.random() < 0.7 else binary("subi", j, i)
            if low:
                difference = binary("addi", difference, number(low, dtype))
            bound = number(width + 1, dtype)
            return compare("ult", difference, bound) if rng.random() < 0.5 else compare("ugt", bound, difference)
        if rng.random() < 0.2:
            return self.at_most(unary("math.absi", binary("subi", i, j)), number(width, dtype))
        near = self.at_most(binary("subi", i, number(width, dtype)), j)
        if rng.random() < 0.5:
            return near
        return self.both(near, self.at_most(j, binary("addi", i, number(rng.choice([0, 0, 1, 2]), dtype))))

    def valid_keys(self):
        length = self.length()
        dtype = self.rng.choice([length.dtype, "i64", "index"])
        j, bound = self.at(self.k, dtype), self.resized(length, dtype)
        return self.rng.choice([lambda: compare("slt", j, bound), lambda: compare("sgt", bound, j), lambda: compare("ult", j, bound),
                                lambda: self.negated(compare("sge", j, bound)), lambda: compare("sle", j, binary("subi", bound, number(1, dtype)))])()

    def segments(self):
        rng = self.rng
        dtype = rng.choice(["i64", "i32"])
        groups = [(self.batch,)] if rng.random() < 0.8 else [()]
        if (self.q.size, self.q.dynamic) == (self.k.size, self.k.dynamic) and rng.random() < 0.6:
            ids = self.graph.argument([*groups, (self.q,)], dtype, "int:0:2")
            same = leaf(Tensor(ids.ssa, (*groups, (self.k,)), dtype))
            return rng.choice([lambda: compare("eq", leaf(ids), same), lambda: compare("eq", same, leaf(ids)),
                               lambda: self.negated(compare("ne", leaf(ids), same))])()
        mine = leaf(self.graph.argument([*groups, (self.q,)], dtype, "int:0:1"))
        theirs = leaf(self.graph.argument([*groups, (self.k,)], dtype, "int:0:1"))
        return compare(rng.choice(["eq", "eq", "eq", "ne", "sle"]), mine, theirs)

    def modulo(self):
        rng = self.rng
        dtype = rng.choice(["index", "i64"])
        n = number(rng.choice([2, 3]), dtype)
        name = rng.choice(["remsi", "remui", "divsi", "divui", "floordivsi"])
        return compare(rng.choice(["eq", "eq", "sge", "uge", "ne"]), binary(name, self.at(self.q, dtype), n), binary(name, self.at(self.k, dtype), n))

    def comparison(self):
        rng = self.rng
        if rng.random() < 0.15:
            return compare(rng.choice(FLOAT_PREDICATES), self.at(self.q, "f32"), binary("addf", self.at(self.k, "f32"), number(rng.randint(-2, 2))))
        a, b = self.integer(), self.integer()
        return compare(rng.choice(PREDICATES), a, self.resized(b, a.dtype))

    def counted(self):
        """A position as a sum of ones over the keys up to it."""
        rng, w = self.rng, self.writer
        from graph import Axis
        other = Axis("count", self.k.size)
        up_to = compare("sle", self.at(other, "i64"), self.at(self.k, "i64"))
        ones = select(up_to, number(1, "i64"), number(0, "i64"))
        count = leaf(w.reduced(ones, other, "addi", unit=False))
        return compare(rng.choice(["sle", "slt"]), binary("subi", count, number(1, "i64")), self.at(self.q, "i64"))

    def from_constant(self):
        """A dense i1 tensor, often causal, sometimes with one place changed."""
        rng, g = self.rng, self.graph
        offset, width = rng.choice([0, 0, self.k.size - self.q.size]), rng.choice([None, None, 1, 2])
        rows = [[j <= i + offset and (width is None or i - j <= width) for j in range(self.k.size)] for i in range(self.q.size)]
        if rng.random() < 0.25:
            rows = [[rng.random() < 0.6 for _ in row] for row in rows]
        if rng.random() < 0.35:
            i, j = rng.randrange(self.q.size), rng.randrange(self.k.size)
            rows[i][j] = not rows[i][j]
        text = str(rows).lower()
        groups = ((self.q,), (self.k,))
        ssa = g.op("{r} = arith.constant dense<{a}> : {rt}", [], tensor_type(groups, "i1"), text)
        return leaf(Tensor(ssa, groups, "i1"))

    def from_argument(self):
        rng = self.rng
        dtype = rng.choice(["i1", "i1", "i8", "i64", "f32"])
        groups = []
        for axes in ([self.batch], self.heads, [self.q], [self.k]):
            keep = axes and (axes[0] is self.k or rng.random() < (0.3 if axes is self.heads else 0.6))
            groups.append(tuple(axes) if keep else ())
        if rng.random() < 0.4:
            groups = [group for group in groups if group]
        mask = leaf(self.graph.argument(groups, dtype, "bool" if dtype == "i1" else "int:0:1"))
        if dtype == "i1":
            return mask
        return compare("one" if dtype == "f32" else rng.choice(["ne", "ne", "sgt", "ugt", "sge"]), mask, number(0, dtype))

    def condition(self):
        """Where a key is visible."""
        rng = self.rng
        static = not (self.q.dynamic or self.k.dynamic)
        kinds = [(self.causal, 5), (self.window, 4), (self.valid_keys, 3), (self.comparison, 5), (self.from_argument, 3), (self.modulo, 1),
                 (self.segments, 1)]
        if static:
            kinds += [(self.from_constant, 2), (self.counted, 1)]
        draw = lambda: rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]()
        seen = draw()
        if rng.random() < 0.25:
            other = draw()
            seen = self.both(seen, other) if rng.random() < 0.8 else binary("ori", seen, other)
        return self.recast(seen)

    def recast(self, condition):
        """Sometimes through a number: an importer's masks are floats or bytes for a while."""
        rng, w = self.rng, self.writer
        if rng.random() > 0.15:
            return w.maybe_cut(condition, 0.5)
        if rng.random() < 0.5:
            dtype = rng.choice(["i8", "i32", "i64"])
            value = w.maybe_cut(cast("extui" if rng.random() < 0.8 else "extsi", condition, dtype))
            return compare(rng.choice(["ne", "ugt"]), value, number(0, dtype))
        value = w.maybe_cut(cast("uitofp", condition, "f32"))
        return compare(rng.choice(["one", "une", "ogt"]), value, number(0.0))

    # ---- what a mask does to the scores ----
    def fill(self):
        return self.rng.choice([INFINITE] * 6 + [-3.4028234e38, -1e9, -1e9, -1e30, -1e4, -10000.0 * 5, -100.0])

    def additive(self):
        """Numbers that are added: an argument, or slopes times distances."""
        rng = self.rng
        if rng.random() < 0.5:
            groups = []
            for axes in ([self.batch], self.heads, [self.q], [self.k]):
                keep = axes and (axes[0] is self.k or rng.random() < 0.5)
                groups.append(tuple(axes) if keep else ())
            if rng.random() < 0.4:
                groups = [group for group in groups if group]
            return leaf(self.graph.argument(groups, "f32", "normal"))
        distance = binary("subi", self.at(self.k, "i64"), self.at(self.q, "i64"))
        if rng.random() < 0.3:
            distance = unary("math.absi", distance)
        distance = cast("sitofp", distance, "f32")
        slope = number(rng.choice([0.5, -0.25, 0.125]))
        if self.heads and rng.random() < 0.5:
            slope = leaf(self.graph.argument([tuple(self.heads)], "f32", "normal"))
        return self.writer.mul(slope, distance)

    def masked(self, scores, seen, fill):
        """The scores with hidden keys at `fill`."""
        rng, w = self.rng, self.writer
        dtype = scores.dtype
        if dtype == "f16" and fill not in (INFINITE, -1e4, -100.0):
            fill = INFINITE
        low = number(fill, dtype)
        if rng.random() < 0.55:
            return select(seen, scores, low) if rng.random() < 0.6 else select(self.negated(seen), low, scores)
        added = select(seen, number(0.0, dtype), low)
        if fill != INFINITE and rng.random() < 0.3:
            hidden = cast("uitofp", self.negated(seen), dtype)
            added = w.mul(hidden, low)
        return w.add(scores, w.maybe_cut(added))


def reduced_visible(masks, seen):
    """Whether a row sees any key, for guards."""
    return leaf(masks.writer.reduced(seen, masks.k, "ori"))
