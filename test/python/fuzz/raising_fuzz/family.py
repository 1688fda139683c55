"""Draws a graph of the family: what it means, then how it is spelled, from one seed."""
import math
import random

from expressions import Writer, binary, cast, compare, leaf, number, position, power, scalar, select, unary
from graph import Axis, Graph, Tensor, extent
from masks import INFINITE, Masks, reduced_visible

LOG2E = 1.4426950408889634


class Family:
    def __init__(self, seed):
        self.seed = seed
        self.rng = rng = random.Random(f"graph {seed}")
        self.seconds = random.Random(f"mask 13 {seed}")
        self.zeros = random.Random(f"zeroed {seed}")
        #: Whether the second map is never used; drawn apart, and not for seeds that tests keep.
        self.single = random.Random(f"single 73 {seed}").random() < 0.2
        self.graph = g = Graph(rng)
        self.half = rng.choice(["f16", "bf16"]) if rng.random() < 0.12 else None
        dynamic = rng.random() < 0.2
        g.assert_sizes = rng.random() < 0.8
        size = lambda *choices: rng.choice(choices)
        self.b = Axis("b", size(1, 1, 2, 2, 3), dynamic and rng.random() < 0.4)
        self.q = Axis("q", size(1, 2, 3, 4, 5, 6), dynamic)
        self.k = Axis("k", self.q.size if rng.random() < 0.6 else size(1, 2, 3, 4, 5, 7), dynamic)
        self.d = Axis("d", size(1, 2, 3, 4, 4, 8))
        self.c = Axis("c", size(1, 2, 3, 4, 4, 8))
        # Signal heads are noise heads times a group.
        self.noise = [Axis("n", size(1, 1, 2, 3))] if rng.random() < 0.85 else []
        self.group = [Axis("r", size(2, 2, 3))] if self.noise and rng.random() < 0.25 else []
        self.heads = self.noise + self.group
        self.w = Writer(g, rng, fusion=rng.choice([0.1, 0.2, 0.5, 0.85]))
        self.masks = Masks(g, self.w, rng, self.b, self.noise, self.q, self.k)
        self.x, self.hidden = Axis("x", size(2, 3, 5)), {}
        self.misses = set()

    def near(self, name, chance=0.012):
        """True where this graph is to be a step away from differential attention, by this step."""
        if self.rng.random() < chance:
            self.misses.add(name)
            return True
        return False

    # ---- operands ----
    def batch_axes(self):
        return [self.b]

    def laid_out(self, parts, dtype):
        """An argument with these groups of axes in a random layout."""
        rng = self.rng
        parts = [tuple(p) for p in parts if p]
        if rng.random() < 0.35 and len(parts) > 2:  # [B, T, H, d]
            parts[1], parts[2] = parts[2], parts[1]
        elif rng.random() < 0.1:
            rng.shuffle(parts)
        if rng.random() < 0.15 and len(parts) > 2 and not any(a.dynamic for a in parts[-2] + parts[-1]):
            parts = [*parts[:-2], parts[-2] + parts[-1]]  # [B, T, H * d]
        if rng.random() < 0.1:
            parts = [(axis,) for part in parts for axis in part]
        return self.graph.argument(parts, dtype, "normal")

    def operand(self, heads, row, width):
        dtype = self.half or "f32"
        if not self.half and self.rng.random() < 0.07:
            return leaf(self.projected(heads, row, width))
        tensor = self.laid_out([self.batch_axes(), heads, [row], [width]], dtype)
        return self.widened(leaf(tensor))

    def projected(self, heads, row, width):
        """x · W, taken apart into heads."""
        g, rng = self.graph, self.rng
        if row not in self.hidden:
            self.hidden[row] = g.argument([(self.b,), (row,), (self.x,)], "f32", "normal")
        x = self.hidden[row]
        merged = Axis("p", extent((*heads, width)))
        weight = g.argument([(self.x,), (merged,)] if rng.random() < 0.5 else [(merged,), (self.x,)], "f32", "normal")
        y = g.relaid(self.w.product(leaf(x), leaf(weight), self.x), ((self.b,), (row,), (merged,)))
        y = Tensor(y.ssa, ((self.b,), (row,), (*heads, width)), y.dtype)
        if rng.random() < 0.5:
            y = g.relaid(y, ((self.b,), tuple(heads), (row,), (width,)) if heads else ((self.b,), (row,), (width,)))
        return y

    def widened(self, expr):
        """16-bit operands are widened at once, or where they are used."""
        if not self.half or self.late:
            return expr
        return cast("extf", expr, "f32")

    def pair(self, heads1, heads2, row, width):
        """Two operands: two arguments, or two parts of one."""
        rng, g = self.rng, self.graph
        if heads1 and heads2 and rng.random() < 0.12:  # heads of both maps side by side
            count = extent(heads1)
            tensor = self.laid_out([[self.b], [Axis("both", count + extent(heads2))], [row], [width]], self.half or "f32")
            tensor = g.expanded(tensor)
            place = next(i for i, group in enumerate(tensor.groups) if group[0].name == "both")
            parts = [g.sliced(tensor, place, 0, 1, tuple(heads1)), g.sliced(tensor, place, count, 1, tuple(heads2))]
            return (*(self.widened(leaf(part)) for part in parts), None)
        if heads1 != heads2 or rng.random() < 0.55:
            return self.operand(heads1, row, width), self.operand(heads2, row, width), None
        m = Axis("m", 2)
        where = rng.choice(["before", "after", "own", "width", "front"])
        parts = {"before": [[self.b], [m, *heads1], [row], [width]], "after": [[self.b], [*heads1, m], [row], [width]],
                 "own": [[self.b], heads1, [m], [row], [width]], "width": [[self.b], heads1, [row], [m, width]],
                 "front": [[m], [self.b], heads1, [row], [width]]}[where]
        tensor = self.laid_out(parts, self.half or "f32")
        both = self.widened(leaf(tensor))
        first, second = (0, 1) if rng.random() < 0.9 else (1, 0)
        if rng.random() < 0.3:
            return None, None, (both, m, first)
        pick = lambda n: self.widened(leaf(g.picked(tensor, m, n)))
        return pick(first), pick(second), None

    def rotated(self, x, row, width):
        """Rotary positions, as exporters write them: halves that change places."""
        g, w = self.graph, self.w
        if width.size % 2:
            return x
        half = Axis("half", width.size // 2)
        tensor = g.relaid(w.tensor(x), tuple((a,) for a in x.axes))
        place = len(tensor.groups) - 1 - [g_[0] for g_ in reversed(tensor.groups)].index(width)
        low, high = (g.sliced(tensor, place, n * half.size, 1, (half,)) for n in (0, 1))
        high = w.tensor(unary("arith.negf", leaf(high)), low.axes)
        if high.groups != low.groups:
            low, high = (g.relaid(t, tuple((a,) for a in low.axes)) for t in (low, high))
            place = [g_[0] for g_ in low.groups].index(half)
        turned = leaf(g.concat([high, low], place, (width,)))
        cosine, sine = (leaf(g.argument([(row,), (width,)], x.dtype, "normal")) for _ in range(2))
        return w.maybe_cut(w.add(w.mul(leaf(tensor), cosine), w.mul(turned, sine)))

    # ---- scores ----
    def scaled(self, value, scale):
        w = self.w
        if self.rng.random() < 0.75:
            return w.mul(value, number(scale, value.dtype))
        return binary("divf", value, number(1 / scale, value.dtype))

    def scores(self, q, k, scale):
        rng, w = self.rng, self.w
        where = rng.choice(["scores", "scores", "scores", "query", "key", "both", "none"])
        if where == "query":
            q = w.maybe_cut(self.scaled(q, scale))
        elif where == "key":
            k = w.maybe_cut(self.scaled(k, scale))
        elif where == "both":
            root = math.sqrt(scale)
            q, k = w.maybe_cut(self.scaled(q, root)), w.maybe_cut(self.scaled(k, root))
        accumulate = "f32" if self.half and rng.random() < 0.5 else None
        s = leaf(w.product(*self.alike(q, k), self.d, accumulate))
        if where == "scores":
            s = w.maybe_cut(self.scaled(s, scale))
        elif where == "none" and not self.plain_scale:
            s = w.maybe_cut(self.scaled(s, scale))
        if s.dtype != "f32" and not self.half_softmax:
            s = w.maybe_cut(cast("extf", s, "f32"))
        if self.softcap:
            cap = self.softcap
            s = w.maybe_cut(binary("divf", s, number(cap, s.dtype)) if rng.random() < 0.6 else w.mul(s, number(1 / cap, s.dtype)))
            s = w.maybe_cut(w.mul(unary("math.tanh", s), number(cap, s.dtype)))
        return s

    # ---- softmax ----
    def softmax(self, s, axis, guard, seen):
        """exp(s) / Σ exp(s) in one of the ways to write it."""
        rng, g, w = self.rng, self.graph, self.w
        if not guard and rng.random() < 0.15:
            tensor = w.tensor(s)
            single = next((i for i, group in enumerate(tensor.groups) if group == (axis,)), None)
            if single is not None:
                out = g.empty(tensor.groups, tensor.dtype)
                form = f"{{r}} = linalg.softmax dimension({single}) ins({{0}} : {{t0}}) outs({{1}} : {{t1}}) -> {{rt}}"
                return leaf(Tensor(g.op(form, [tensor.ssa, out], tensor.type), tensor.groups, tensor.dtype))
        dtype = s.dtype
        s = w.maybe_cut(s, 0.4)
        shift = rng.random()
        if guard or shift < 0.85 or self.finite_fill:
            largest = leaf(w.reduced(s, axis, rng.choice(["maximumf", "maximumf", "maximumf", "maxnumf", "argmax"])))
            if guard == "maximum":
                finite = compare("oeq", largest, number(INFINITE, dtype))
                largest = w.maybe_cut(select(finite, number(0.0, dtype), largest))
            s = w.maybe_cut(w.sub(s, largest))
        elif shift < 0.9:
            s = w.maybe_cut(w.sub(s, number(rng.choice([1.0, -2.0, 0.5]), dtype)))
        if rng.random() < 0.85:
            powers = unary("math.exp", s)
        else:
            powers = unary("math.exp2", w.maybe_cut(w.mul(s, number(LOG2E, dtype))))
        powers = w.maybe_cut(powers, 0.3)
        if guard == "powers" and seen is not None:
            kept = cast("uitofp", seen, dtype)
            powers = w.maybe_cut(w.mul(powers, kept) if rng.random() < 0.5 else select(seen, powers, number(0.0, dtype)), 0.3)
        summed = powers
        if self.near("partial sum"):
            summed = select(compare("sge", position(axis), number(1, "index")), powers, number(0.0, dtype))
        total = leaf(w.reduced(summed, axis, "addf"))
        if guard == "sum":
            total = w.maybe_cut(select(compare("oeq", total, number(0.0, dtype)), number(1.0, dtype), total))
        elif guard == "tiny":
            total = w.maybe_cut(w.add(total, number(rng.choice([1e-9, 1e-12, 1e-20]), dtype)))
        elif guard == "limit":
            total = w.maybe_cut(binary("maximumf", total, number(rng.choice([1e-9, 1e-6, 0.5]), dtype)))
        if rng.random() < 0.12 and not guard:
            return w.maybe_cut(unary("math.exp", w.sub(s, unary("math.log", total))), 0.5)
        return w.maybe_cut(w.div(powers, total), 0.5)

    # ---- the mixing factor ----
    def mixing(self):
        rng, g, w = self.rng, self.graph, self.w
        kind = rng.choice(["number", "number", "scalar", "rank0", "rank0", "one", "heads", "noise", "token", "dots", "sigmoid", "init"])
        if kind == "number":
            return number(rng.choice([0.5, 0.8, 1.0, 1.5, -0.5, 0.3]))
        if kind == "scalar":
            return scalar(g.scalar("f32", "normal"), "f32")
        if kind == "one":
            return leaf(g.argument([()], "f32", "normal"))
        if kind == "heads" and self.heads:
            return leaf(g.argument([tuple(self.heads)], "f32", "normal"))
        if kind == "noise" and self.noise:
            return leaf(g.argument([tuple(self.noise)], "f32", "normal"))
        if kind == "token":
            heads = rng.choice([self.heads, self.noise])
            lam = leaf(self.laid_out([[self.b], [self.q], heads], "f32"))
            return w.maybe_cut(self.sigmoid(lam)) if rng.random() < 0.6 else lam
        if kind == "dots":
            x = Axis("x", rng.choice([1, 2, 4]))
            heads = [tuple(self.heads)] if self.heads and rng.random() < 0.4 else []
            def exponential():
                a, b = (leaf(g.argument([*heads, (x,)], "f32", "normal")) for _ in range(2))
                return unary("math.exp", leaf(w.reduced(w.maybe_cut(w.mul(a, b)), x, "addf", unit=False)))
            return w.maybe_cut(w.add(w.sub(exponential(), exponential()), number(0.8)))
        lam = leaf(g.argument([], "f32", "normal"))
        if kind == "sigmoid":
            return w.maybe_cut(self.sigmoid(lam))
        return w.maybe_cut(w.add(lam, number(0.2))) if kind == "init" else lam

    def sigmoid(self, x):
        one = number(1.0, x.dtype)
        return self.w.div(one, self.w.add(one, unary("math.exp", unary("arith.negf", x))))

    # ---- the whole ----
    def draw(self):
        rng, g, w = self.rng, self.graph, self.w
        self.late = rng.random() < 0.5
        self.half_softmax = rng.random() < 0.4
        self.softcap = rng.choice([2.0, 5.0, 30.0]) if rng.random() < 0.1 else None
        self.plain_scale = rng.random() < 0.5
        keys1 = rng.choice([self.heads, self.heads, self.noise, []])
        keys2 = rng.choice([self.noise, self.noise, []])
        values = rng.choice([self.heads, self.heads, self.noise, []])
        q1, q2, stacked_q = self.pair(self.heads, self.noise, self.q, self.d)
        if stacked_q:
            m = stacked_q[1]
            k1, k2, stacked_k = None, None, None
            if rng.random() < 0.6:
                parts = [[[self.b], [m, *keys2], [self.k], [self.d]], [[self.b], [*keys2, m], [self.k], [self.d]]]
                k = self.widened(leaf(self.laid_out(rng.choice(parts), self.half or "f32")))
            else:
                k = self.operand(keys2, self.k, self.d)
        else:
            k1, k2, stacked_k = self.pair(keys1, keys2, self.k, self.d)
            if stacked_k:
                both, m, first = stacked_k
                tensor = w.tensor(both)
                k1, k2 = (leaf(g.picked(tensor, m, n)) for n in (first, 1 - first))
            if rng.random() < 0.15 and keys1 == keys2:
                k2 = k1
        halves = Axis("h2", 2) if rng.random() < 0.12 and self.c.size % 2 == 0 else None
        v = self.operand(values, self.k, self.c)
        if rng.random() < 0.06 and not stacked_q:
            q1, q2 = self.rotated(q1, self.q, self.d), self.rotated(q2, self.q, self.d)
            k1, k2 = self.rotated(k1, self.k, self.d), self.rotated(k2, self.k, self.d)
        scale = rng.choice([1 / math.sqrt(self.d.size), 0.5, 0.125, 1.0, 0.3, 2.0])
        if stacked_q:
            maps = self.stacked(stacked_q, k, scale)
        else:
            maps = self.two(q1, k1, q2, k2, scale)
        result = self.combined(*maps, v, halves)
        result = self.epilogue(result)
        self.finish(result)
        return self

    def masking(self):
        """The masks and biases of both maps' scores, and the guard of their softmax."""
        rng = self.rng
        self.finite_fill = False
        seen, fill, added = None, None, None
        if rng.random() < 0.6:
            seen, fill = self.masks.condition(), self.masks.fill()
            self.finite_fill = fill != INFINITE
        if rng.random() < 0.2:
            added = self.w.maybe_cut(self.masks.additive(), 0.5)
        # Drawn apart, so that the graphs of the other seeds stay what they were.
        self.second = None
        if self.seconds.random() < 0.25:
            self.second = self.masks.condition(), self.masks.fill(), self.seconds.random() < 0.5
            self.finite_fill |= self.second[1] != INFINITE
        guard = rng.choice(["sum", "tiny", "limit", "maximum", "powers"]) if rng.random() < 0.15 else None
        return seen, fill, added, guard

    def masked(self, s, seen, fill, added):
        w = self.w
        if self.second and self.second[2]:
            s = w.maybe_cut(self.masks.masked(s, *self.second[:2]))
        if added is not None:
            s = w.maybe_cut(w.add(s, self.narrow(added, s.dtype)))
        if seen is not None:
            s = w.maybe_cut(self.masks.masked(s, seen, fill))
        if self.second and not self.second[2]:
            s = w.maybe_cut(self.masks.masked(s, *self.second[:2]))
        return s

    def narrow(self, value, dtype):
        return value if value.dtype == dtype else cast("truncf" if dtype != "f32" else "extf", value, dtype)

    def stacked(self, stacked, k, scale):
        """One softmax over both maps, which are then taken apart."""
        q, m, first = stacked
        g, w = self.graph, self.w
        s = self.scores(q, k, scale)
        seen, fill, added, guard = self.masking()
        a = self.softmax(self.masked(s, seen, fill, added), self.k, guard, seen)
        tensor = w.tensor(a)
        return tuple(leaf(g.picked(tensor, m, n)) for n in (first, 1 - first))

    def two(self, q1, k1, q2, k2, scale):
        rng, w = self.rng, self.w
        s1 = self.scores(q1, k1, scale)
        s2 = self.scores(q2, k2, scale * (1.5 if self.near("scales differ") else 1))
        seen, fill, added, guard = self.masking()
        if rng.random() < 0.05:
            s1, s2 = self.without_nan(s1), self.without_nan(s2)
        other = seen
        if seen is not None and self.near("masks differ", 0.02):
            i, j = (self.masks.at(axis, "index") for axis in (self.q, self.k))
            odd = self.masks.both(compare("eq", i, number(rng.randrange(self.q.size), "index")), compare("eq", j, number(rng.randrange(self.k.size), "index")))
            other = binary("xori", seen, odd)
        if self.near("clamped"):
            s1, s2 = (binary("minimumf", s, number(0.5, s.dtype)) for s in (s1, s2))
        s1, s2 = self.masked(s1, seen, fill, added), self.masked(s2, other, fill, added)
        axis1 = self.q if self.near("along queries") else self.k
        a1 = self.softmax(s1, axis1, guard, seen)
        a2 = self.softmax(s2, self.k, guard, other)
        if guard is None and rng.random() < 0.06:
            if seen is not None and self.k in seen.axes and rng.random() < 0.6:  # a row without keys is 0, as scaled_dot_product_attention has it
                empty = self.masks.negated(reduced_visible(self.masks, seen))
                a1, a2 = (w.maybe_cut(select(empty, number(0.0, a.dtype), a)) for a in (a1, a2))
            else:
                a1, a2 = self.without_nan(a1), self.without_nan(a2)
        if seen is not None and self.zeros.random() < 0.15:  # what is hidden is zero in the maps, too
            a1, a2 = (w.maybe_cut(select(mask, a, number(0.0, a.dtype))) for mask, a in ((seen, a1), (other, a2)))
        if self.near("softmax twice"):
            a2 = self.softmax(a2, self.k, None, None)
        if self.near("squared"):
            a1 = w.mul(a1, a1)
        if self.near("dropout"):
            keep = leaf(self.graph.argument([(self.q,), (self.k,)], "f32", "int:0:1"))
            a1, a2 = w.mul(a1, self.narrow(keep, a1.dtype)), w.mul(a2, self.narrow(keep, a2.dtype))
        if self.near("map returned"):
            tensor = w.tensor(a1)
            a1 = leaf(tensor)
            self.graph.returns.append(tensor.ssa)
        return a1, a2

    def without_nan(self, x):
        """nan_to_num in a part of its spellings."""
        w = self.w
        x = w.maybe_cut(select(compare(self.rng.choice(["uno", "une"]), x, x), number(0.0, x.dtype), x))
        if x.dtype != "f32" or self.rng.random() < 0.5:
            return x
        x = w.maybe_cut(select(compare("oeq", x, number(float("inf"))), number(3.4028234e38), x))
        return w.maybe_cut(select(compare("oeq", x, number(INFINITE)), number(-3.4028234e38), x))

    def combined(self, a1, a2, v, halves):
        """(A1 - λ A2) V, before or behind the product with the values; or A1 V."""
        rng, g, w = self.rng, self.graph, self.w
        if self.single:
            return self.product(a1, v, halves)
        lam = self.mixing()
        where = rng.choice(["maps", "maps", "maps", "products", "products", "values"])
        if self.near("lambda of keys"):
            lam, where = leaf(g.argument([(self.k,)], "f32", "normal")), "maps"
        if self.near("values of keys moved"):
            v = w.mul(v, self.narrow(cast("sitofp", self.masks.at(self.k, "i64"), "f32"), v.dtype))
        dint = self.near("mean of the map")
        if dint:
            where = "maps"
        a1, a2 = self.alike(a1, a2)
        if where == "maps":
            lam = self.narrow(lam, a1.dtype)
            subtracted = w.maybe_cut(self.subtracted(a1, a2, lam))
            if dint:
                mean = w.div(leaf(w.reduced(a1, self.q, "addf")), number(self.q.size, a1.dtype))
                subtracted = w.add(subtracted, w.mul(lam, mean))
            if self.near("not linear"):
                subtracted = binary("maximumf", subtracted, number(0.0, a1.dtype))
            return self.product(subtracted, v, halves)
        if where == "values" and self.q not in lam.axes:
            scaled = w.maybe_cut(w.mul(v, self.narrow(lam, v.dtype)))
            return w.maybe_cut(w.sub(*self.alike(self.product(a1, v, halves), self.product(a2, scaled, halves))))
        v2 = v
        if self.near("values differ"):
            v2 = self.operand([axis for axis in v.axes if axis in self.heads], self.k, self.c)
        o1, o2 = self.alike(self.product(a1, v, halves), self.product(a2, v2, halves))
        return w.maybe_cut(self.subtracted(o1, o2, self.narrow(lam, o1.dtype)))

    def alike(self, a, b):
        """Both in the wider type."""
        return (a, b) if a.dtype == b.dtype else (self.wide(a, "f32"), self.wide(b, "f32"))

    def wide(self, value, dtype):
        return value if value.dtype == dtype else cast("extf", value, dtype)

    def subtracted(self, a, b, lam):
        rng, w = self.rng, self.w
        choice = rng.random()
        if choice < 0.75:
            return w.sub(a, w.maybe_cut(w.mul(b, lam)))
        if choice < 0.85:
            return w.add(a, w.mul(b, unary("arith.negf", lam)))
        if choice < 0.92:
            return unary("arith.negf", w.sub(w.mul(lam, b), a))
        return w.add(w.mul(a, number(1.0, a.dtype)), w.mul(w.mul(lam, number(-1.0, a.dtype)), b))

    def product(self, a, v, halves):
        """A product with the values, whole or by halves of their width."""
        w, g, rng = self.w, self.graph, self.rng
        if a.dtype != v.dtype:
            if self.half and rng.random() < 0.6 and v.dtype == self.half:
                a = w.maybe_cut(cast("truncf", a, self.half))
            else:
                a, v = self.wide(a, "f32"), self.wide(v, "f32")
        if not halves:
            return leaf(w.product(a, v, self.k, "f32" if self.half and rng.random() < 0.5 else None))
        half = Axis("half", self.c.size // 2)
        tensor = w.tensor(v)
        tensor = g.expanded(tensor, only=[self.c])
        place = next(i for i, group in enumerate(tensor.groups) if self.c in group)
        a = leaf(w.tensor(a))
        parts = [w.product(a, leaf(g.sliced(tensor, place, n * half.size, 1, (half,))), self.k) for n in (0, 1)]
        parts = [g.relaid(p, tuple((axis,) for axis in parts[0].axes)) for p in parts]
        place = [axis for axis in parts[0].axes].index(half)
        return leaf(g.concat(parts, place, (self.c,)))

    def epilogue(self, x):
        rng, g, w = self.rng, self.graph, self.w
        dtype = x.dtype
        if rng.random() < 0.3:
            x = leaf(w.tensor(x))
            wide = w.maybe_cut(cast("extf", x, "f32")) if dtype != "f32" else x
            over = self.c
            square = w.maybe_cut(w.mul(wide, wide) if rng.random() < 0.7 else power(wide, number(2, "i32" if rng.random() < 0.5 else "i64")))
            total = leaf(w.reduced(square, over, "addf"))
            if self.heads and self.near("norm over heads", 0.06):
                total = leaf(w.reduced(total, self.heads[-1], "addf"))
            mean = w.maybe_cut(binary("divf", total, number(over.size)) if rng.random() < 0.8 else w.mul(total, number(1 / over.size)))
            eps = number(rng.choice([1e-5, 1e-6, 1e-3]))
            kind = rng.random()
            if kind < 0.5:
                x = w.mul(wide, w.maybe_cut(unary("math.rsqrt", w.add(mean, eps))))
            elif kind < 0.8:
                x = w.div(wide, w.maybe_cut(unary("math.sqrt", w.add(mean, eps))))
            else:
                x = w.div(wide, w.maybe_cut(w.add(unary("math.sqrt", mean), eps)))
            x = w.maybe_cut(x)
            if rng.random() < 0.5:
                x = w.maybe_cut(w.mul(x, leaf(g.argument([(self.c,)], "f32", "normal"))))
        if rng.random() < 0.25:
            x = w.maybe_cut(w.mul(x, number(rng.choice([0.2, 0.8, 2.0]), x.dtype)))
        if rng.random() < 0.15:
            gate = leaf(self.laid_out([[self.b], self.heads, [self.q], [self.c]], x.dtype))
            x = w.maybe_cut(w.mul(x, w.maybe_cut(self.sigmoid(gate))))
        if x.dtype == "f32" and self.half and rng.random() < 0.5:
            x = cast("truncf", x, self.half)
        return x

    def finish(self, x):
        """The result in the layout that a model goes on with."""
        rng, g, w = self.rng, self.graph, self.w
        tensor = w.tensor(x)
        choice = rng.random()
        axes = [axis for axis in (self.b, *self.heads, self.q, self.c) if axis in tensor.axes]
        heads = tuple(axis for axis in self.heads if axis in tensor.axes)
        if choice < 0.3 and heads:
            tensor = g.relaid(tensor, ((self.b,), (self.q,), (*heads, self.c)))
        elif choice < 0.5:
            tensor = g.relaid(tensor, tuple((axis,) for axis in axes))
        elif choice < 0.6 and heads and not self.half:
            # An output projection, of which nothing is raised.
            y = Axis("y", rng.choice([2, 3]))
            merged = g.relaid(tensor, ((self.b,), (self.q,), (*heads, self.c)))
            inner = Axis("hc", extent(merged.groups[2]))
            merged = Tensor(merged.ssa, (merged.groups[0], merged.groups[1], (inner,)), merged.dtype)
            weight = g.argument([(inner,), (y,)], "f32", "normal")
            tensor = w.product(leaf(merged), leaf(weight), inner)
        g.returns.append(tensor.ssa)


def draw(seed):
    return Family(seed).draw()
