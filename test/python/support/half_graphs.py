"""Graphs of differential attention whose 16-bit operands are multiplied in f32, spelled as importers do, as MLIR text."""
import itertools

HEADS, QUERIES, KEYS, WIDTH, VALUE = 6, 20, 24, 16, 32
SHAPES = {"q": (HEADS, QUERIES, WIDTH), "k": (HEADS, KEYS, WIDTH), "v": (HEADS, KEYS, VALUE)}
SCALE, LAMBDA = 0.25, 0.375  # in any of the types

#: How q, k and v come from 16 to 32 bits.
WIDENINGS = ("product", "ops", "generic", "body")
#: Where the scores are scaled.
SCALINGS = ("scores", "scores-half", "query-half", "query-wide", "both-wide")


class Graph:
    """The text of one function, grown op by op: every value has a name and the type tensor<...x element>."""

    def __init__(self, half):
        self.half, self.lines, self.types, self.names = half, [], {}, itertools.count()

    def add(self, text, shape, element):
        name = f"%v{next(self.names)}"
        self.types[name] = (tuple(shape), element)
        self.lines.append(f"  {name} = {text}")
        return name

    def type(self, name):
        return self.of(*self.types[name])

    def of(self, shape, element):
        return f"tensor<{'x'.join([*map(str, shape), element])}>"

    def constant(self, number, like, element=None):
        shape, own = self.types[like]
        return self.add(f"arith.constant dense<{number:e}> : {self.of(shape, element or own)}", shape, element or own)

    def binary(self, op, a, b):
        return self.add(f"arith.{op} {a}, {b} : {self.type(a)}", *self.types[a])

    def cast(self, name, element, how="ops"):
        shape, own = self.types[name]
        if own == element:
            return name
        op = "extf" if element == "f32" else "truncf"
        if how != "generic":
            return self.add(f"arith.{op} {name} : {self.type(name)} to {self.of(shape, element)}", shape, element)
        empty = self.add(f"tensor.empty() : {self.of(shape, element)}", shape, element)
        identity = "affine_map<(a, b, c) -> (a, b, c)>"
        return self.add(
            f'linalg.generic {{indexing_maps = [{identity}, {identity}], iterator_types = ["parallel", "parallel", "parallel"]}} '
            f"ins({name} : {self.type(name)}) outs({empty} : {self.of(shape, element)}) {{\n  ^bb0(%x: {own}, %y: {element}):\n"
            f"    %z = arith.{op} %x : {own} to {element}\n    linalg.yield %z : {element}\n  }} -> {self.of(shape, element)}",
            shape, element)

    def zeros(self, shape, element="f32"):
        zero = self.add(f"arith.constant 0.0 : {element}", (), element)
        empty = self.add(f"tensor.empty() : {self.of(shape, element)}", shape, element)
        return self.add(f"linalg.fill ins({zero} : {element}) outs({empty} : {self.of(shape, element)}) -> {self.of(shape, element)}",
                        shape, element)

    def broadcast(self, name, like):
        """`name`, whose axes are the last of `like`, along the first axes of `like`."""
        shape, element = self.types[like][0], self.types[name][1]
        empty = self.add(f"tensor.empty() : {self.of(shape, element)}", shape, element)
        missing = list(range(len(shape) - len(self.types[name][0])))
        return self.add(f"linalg.broadcast ins({name} : {self.type(name)}) outs({empty} : {self.type(empty)}) dimensions = {missing}",
                        shape, element)

    def product(self, a, b, transposed=False, body=False, rounded=None):
        """a [h, i, x] times b [h, x, j], or with `transposed` [h, j, x], summed in f32. `body`: widened where it
        is multiplied, and with `rounded` rounded to that before."""
        (h, i, x), element = self.types[a]
        if transposed and not body:
            (_, j, _), kind = self.types[b]
            empty = self.add(f"tensor.empty() : {self.of((h, x, j), kind)}", (h, x, j), kind)
            b = self.add(f"linalg.transpose ins({b} : {self.type(b)}) outs({empty} : {self.type(empty)}) permutation = [0, 2, 1]",
                         (h, x, j), kind)
        j = self.types[b][0][1 if transposed and body else 2]
        out = self.zeros((h, i, j))
        if not body:
            return self.add(f"linalg.batch_matmul ins({a}, {b} : {self.type(a)}, {self.type(b)}) outs({out} : {self.type(out)}) "
                            f"-> {self.type(out)}", (h, i, j), "f32")
        lines, names = [], []
        for name, kind in (("p", element), ("q", self.types[b][1])):
            names.append(f"%{name}" if kind == "f32" else f"%{name}w")
            lines += [f"    %{name}w = arith.extf %{name} : {kind} to f32"] * (kind != "f32")
            if rounded and kind == "f32":
                names[-1] = f"%{name}w"
                lines += [f"    %{name}r = arith.truncf %{name} : f32 to {rounded}", f"    %{name}w = arith.extf %{name}r : {rounded} to f32"]
        right = "(h, j, x)" if transposed else "(h, x, j)"
        return self.add(
            f"linalg.generic {{indexing_maps = [affine_map<(h, i, j, x) -> (h, i, x)>, affine_map<(h, i, j, x) -> {right}>, "
            'affine_map<(h, i, j, x) -> (h, i, j)>], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} '
            f"ins({a}, {b} : {self.type(a)}, {self.type(b)}) outs({out} : {self.type(out)}) {{\n"
            f"  ^bb0(%p: {element}, %q: {self.types[b][1]}, %s: f32):\n" + "\n".join(lines)
            + f"\n    %m = arith.mulf {names[0]}, {names[1]} : f32\n    %n = arith.addf %s, %m : f32\n    linalg.yield %n : f32\n  }}"
            f" -> {self.type(out)}", (h, i, j), "f32")

    def reduce(self, op, x, start):
        """The sum or maximum of f32 over the last axis."""
        shape = self.types[x][0][:-1]
        number = self.add(f"arith.constant {start} : f32", (), "f32")
        empty = self.add(f"tensor.empty() : {self.of(shape, 'f32')}", shape, "f32")
        init = self.add(f"linalg.fill ins({number} : f32) outs({empty} : {self.type(empty)}) -> {self.type(empty)}", shape, "f32")
        return self.add(f"linalg.reduce {{ arith.{op} }} ins({x} : {self.type(x)}) outs({init} : {self.type(init)}) "
                        f"dimensions = [{len(shape)}]", shape, "f32")

    def along(self, row, like):
        """`row` for each element of the last axis of `like`."""
        shape, element = self.types[like][0], self.types[row][1]
        empty = self.add(f"tensor.empty() : {self.of(shape, element)}", shape, element)
        return self.add(f"linalg.broadcast ins({row} : {self.type(row)}) outs({empty} : {self.type(empty)}) "
                        f"dimensions = [{len(shape) - 1}]", shape, element)

    def softmax(self, scores, steps=False):
        """As one op or, with `steps`, element by element in the type of the scores, with maxima and sums in f32."""
        kind = self.types[scores][1]
        if not steps:
            empty = self.add(f"tensor.empty() : {self.type(scores)}", *self.types[scores])
            return self.add(f"linalg.softmax dimension(2) ins({scores} : {self.type(scores)}) outs({empty} : {self.type(scores)}) "
                            f"-> {self.type(scores)}", *self.types[scores])
        top = self.cast(self.reduce("maximumf", self.cast(scores, "f32"), "0xFF800000"), kind)
        shifted = self.binary("subf", scores, self.along(top, scores))
        power = self.add(f"math.exp {shifted} : {self.type(shifted)}", *self.types[shifted])
        total = self.cast(self.reduce("addf", self.cast(power, "f32"), "0.0"), kind)
        return self.binary("divf", power, self.along(total, power))


def spell(half, *, widening="product", scaling="scores", round_scores=False, half_softmax=False, softmax_steps=False, round_maps=True, combine="maps",
          combine_half=False, result="half", wide_value=False, value_in_halves=False, rotate=None, mask=False, temperature=False,
          gate=False, reader=None, scaled_value=None):
    """The graph as text.

    half_softmax    the softmax is one of 16-bit numbers; `softmax_steps`: as the ops that it is made of
    combine         whether the maps or their products with the values are subtracted; `combine_half`: in 16 bits
    result          half, f32, or norm-f32 for an RMS norm of a result that was rounded before
    rotate          queries are multiplied by f32 numbers before: and "rounded", or left "wide"
    mask            a causal mask of the least 16-bit number is added to the scores
    temperature     an f32 argument multiplies the scores
    gate            an argument in 16 bits; its sigmoid in f32 multiplies the result
    scaled_value    the values are multiplied by a number: "wide", in f32, or "half"
    reader          what reads an f32 result: "body" rounds it where it is multiplied, "two" rounds it twice,
                    "factor" multiplies it by an argument before
    """
    g = Graph(half)
    arguments = []

    def argument(name, shape, kind):
        g.types[f"%{name}"] = (shape, kind)
        arguments.append(f"%{name}: {g.type(f'%{name}')}")

    for name in ("q1", "k1", "q2", "k2", "v"):
        argument(name, SHAPES[name[0]], "f32" if (name == "v" and wide_value) or (rotate and name[0] == "q") else half)
    if temperature:
        argument("t", (), "f32")
    if gate:
        argument("g", (HEADS, QUERIES, VALUE), half)
    widen = (lambda x: g.cast(x, "f32", widening)) if widening in ("ops", "generic") else lambda x: x
    body = widening == "body"

    def scores(q, k):
        factor = lambda x, number: g.binary("mulf", x, g.constant(number, x))
        if rotate:
            q = factor(q, 0.75)
            q = g.cast(q, half) if rotate == "rounded" else g.binary("addf", q, q)
        if scaling == "query-half":
            q = factor(q, SCALE)
        wide = scaling in ("query-wide", "both-wide") or rotate == "wide"
        if wide:
            q, k = g.cast(q, "f32"), g.cast(k, "f32")
        if scaling in ("query-wide", "both-wide"):
            q = factor(q, SCALE**0.5 if scaling == "both-wide" else SCALE)
        if scaling == "both-wide":
            k = factor(k, SCALE**0.5)
        s = g.product(q if wide else widen(q), k if wide else widen(k), transposed=True, body=body)
        if temperature:
            s = g.binary("mulf", s, g.broadcast("%t", s))
        if round_scores or scaling == "scores-half" or half_softmax:
            s = g.cast(s, half)
        if scaling.startswith("scores"):
            s = factor(s, SCALE)
        if mask:
            low = {"f16": -65504.0, "bf16": -3.0e38}[half]
            rows = ", ".join(f"[{', '.join(f'{0.0 if j <= i else low:e}' for j in range(KEYS))}]" for i in range(QUERIES))
            fill = g.add(f"arith.constant dense<[{rows}]> : {g.of((QUERIES, KEYS), half)}", (QUERIES, KEYS), half)
            s = g.binary("addf", s, g.broadcast(g.cast(fill, g.types[s][1]), s))
        return s if half_softmax else g.cast(s, "f32")

    def times_values(p):
        if not value_in_halves:
            return multiply(p, "%v")
        kind, (h, k, w) = g.types["%v"][1], SHAPES["v"]
        parts = []
        for at in (0, w // 2):
            part = g.add(f"tensor.extract_slice %v[0, 0, {at}] [{h}, {k}, {w // 2}] [1, 1, 1] : {g.type('%v')} to "
                         f"{g.of((h, k, w // 2), kind)}", (h, k, w // 2), kind)
            parts.append(multiply(p, part))
        a, b = parts
        shape = (h, QUERIES, w)
        return g.add(f"tensor.concat dim(2) {a}, {b} : ({g.type(a)}, {g.type(b)}) -> {g.of(shape, g.types[a][1])}", shape, g.types[a][1])

    def multiply(p, v):
        if scaled_value:
            v = g.cast(v, "f32") if scaled_value == "wide" else v
            v = g.binary("mulf", v, g.constant(1.375, v))
            p = g.cast(p, "f32") if scaled_value == "wide" else p
        if g.types[p][1] == half and (wide_value or widening in ("ops", "generic")):
            p = g.cast(p, "f32", widening)
        if g.types[p][1] == "f32" and not body:
            v = g.cast(v, "f32", widening)
        o = g.product(p, v, body=body)
        return g.cast(o, half) if result != "f32" else o

    maps = [g.softmax(scores(f"%q{i}", f"%k{i}"), softmax_steps) for i in (1, 2)]
    if combine == "maps":
        if combine_half:
            maps = [g.cast(m, half) for m in maps]
        p = g.binary("subf", maps[0], g.binary("mulf", maps[1], g.constant(LAMBDA, maps[1])))
        out = times_values(g.cast(p, half) if round_maps else p)
    else:
        o1, o2 = [times_values(g.cast(m, half) if round_maps else m) for m in maps]
        if combine_half:
            o1, o2 = g.cast(o1, half), g.cast(o2, half)
        out = g.binary("subf", o1, g.binary("mulf", o2, g.constant(LAMBDA, o2)))
    if gate:
        logits = g.cast("%g", "f32")
        one = g.constant(1.0, logits)
        power = g.add(f"math.exp {(n := g.add(f'arith.negf {logits} : {g.type(logits)}', *g.types[logits]))} : {g.type(n)}", *g.types[n])
        out = g.binary("mulf", g.cast(out, "f32"), g.binary("divf", one, g.binary("addf", power, one)))
    if result == "half":
        out = g.cast(out, half)
    elif result == "f32":
        out = g.cast(out, "f32")
    else:
        out = norm(g, g.cast(out, "f32"))
    results = [out]
    if reader == "body":
        eye = ", ".join(f"[{', '.join('1.0' if i == j else '0.0' for j in range(VALUE))}]" for i in range(VALUE))
        shape = (HEADS, VALUE, VALUE)
        units = g.add(f"arith.constant dense<[{', '.join([f'[{eye}]'] * HEADS)}]> : {g.of(shape, half)}", shape, half)
        results = [g.product(out, units, body=True, rounded=half)]
    elif reader == "factor":
        argument("f", (VALUE,), "f32")
        results = [g.cast(g.binary("mulf", g.broadcast("%f", out), out), half)]
    elif reader == "two":
        results = [g.cast(out, half), g.cast(out, half, "generic")]
    types = [g.type(r) for r in results]
    return (f"func.func @main({', '.join(arguments)}) -> ({', '.join(types)}) {{\n" + "\n".join(g.lines)
            + f"\n  return {', '.join(results)} : {', '.join(types)}\n}}\n")


def norm(g, x):
    """x / sqrt(mean(x^2) + 1e-5) over the last axis."""
    (_, _, width), _ = g.types[x]
    total = g.reduce("addf", g.binary("mulf", x, x), "0.0")
    mean = g.binary("divf", total, g.constant(width, total))
    root = g.add(f"math.rsqrt {(m := g.binary('addf', mean, g.constant(1e-5, mean)))} : {g.type(m)}", *g.types[m])
    return g.binary("mulf", x, g.along(root, x))
