"""Every float op of the interpreter at the edges of its type, against exact fractions and libm."""
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from interpreter import Interpreter

#: Bits of the significand, and the exponents of the least normal and the largest number.
FORMATS = {"f64": (53, -1022, 1023), "f32": (24, -126, 127), "f16": (11, -14, 15), "bf16": (8, -126, 127)}
DTYPES = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
NAN, INF = math.nan, math.inf


def exponent_of(value):
    """The largest e with 2^e <= |value|."""
    e = value.numerator.bit_length() - value.denominator.bit_length()
    return e if abs(value) >= Fraction(2) ** e else e - 1


def rounded(value, name, mode="even"):
    """The float of type `name` that a fraction is rounded to."""
    bits, least, most = FORMATS[name]
    value = Fraction(value)
    if value == 0:
        return 0.0
    unit = Fraction(2) ** (max(exponent_of(value), least) - bits + 1)
    units = value / unit
    number = {
        "even": lambda: round(units), "downward": lambda: math.floor(units), "upward": lambda: math.ceil(units),
        "toward_zero": lambda: math.trunc(units),
        "to_nearest_away": lambda: math.floor(abs(units) + Fraction(1, 2)) * (1 if units > 0 else -1),
    }[mode]()
    result = number * unit
    end = Fraction(2) ** (most + 1)
    if abs(result) >= end:
        largest = float(end - end / 2 ** bits) * (1 if result > 0 else -1)
        stays = mode == "toward_zero" or (mode == "downward" and result > 0) or (mode == "upward" and result < 0)
        return largest if stays else math.copysign(INF, 1 if result > 0 else -1)
    return math.copysign(float(result), 1 if value > 0 else -1)


def edges(name, seed, count=10):
    """Zeros, ends, halves between neighbours, infinities, NaN and random numbers of the type."""
    bits, least, most = FORMATS[name]
    unit = 2.0 ** (1 - bits)
    numbers = [0.0, 2.0 ** (least - bits + 1), 2.0 ** (least - bits + 1) * 3, 2.0 ** least, 2.0 ** least * (1 - unit), 1.0, 1.0 + unit,
               1.0 - unit / 2, 0.5, 1.5, 2.5, 2.0, 3.0, 2.0 ** (bits - 1), 2.0 ** (bits - 1) + 1, 2.0 ** most * (2 - unit), 2.0 ** most, INF]
    random = np.random.default_rng(seed)
    scale = min(most, 60)
    numbers += list(random.standard_normal(count)) + list(random.standard_normal(count) * 2.0 ** random.integers(-scale // 2, scale, count))
    numbers = np.array(numbers + [-x for x in numbers] + [NAN])
    with np.errstate(all="ignore"):
        return numbers.astype(DTYPES[name]).astype(np.float64)


def finite(*values):
    return all(math.isfinite(x) for x in values)


def exactly(fraction, special):
    """An op that rounds the exact result; `special` is for zeros, infinities and NaN."""
    def compute(name, *values):
        with np.errstate(all="ignore"):
            plain = float(special(*map(np.float64, values)))
        if not finite(*values):
            return plain
        try:
            exact = fraction(*map(Fraction, values))
        except ZeroDivisionError:
            return plain
        return rounded(exact, name) if exact else math.copysign(0.0, plain)
    return compute


def square_root(name, x):
    if not x > 0 or x == INF:
        return -0.0 if x == 0 and math.copysign(1, x) < 0 else x if x >= 0 else NAN
    bits = FORMATS[name][0]
    value = Fraction(x)
    # Enough bits that truncation and a set last bit round as the root does.
    shift = 2 * (bits + 3 + max(0, -exponent_of(value)))
    scaled = value * 2 ** shift
    root = math.isqrt(math.floor(scaled))
    return rounded(Fraction(2 * root + (root * root != scaled), 2 ** (shift // 2 + 1)), name)


def remainder(a, b):
    with np.errstate(all="ignore"):
        return float(np.fmod(a, b))


def maximum(a, b):
    if math.isnan(a) or math.isnan(b):
        return NAN
    return max(a, b, key=lambda x: (x, math.copysign(1, x)))


def minimum(a, b):
    return -maximum(-a, -b)


def ignoring_nan(choose):
    return lambda name, a, b: b if math.isnan(a) else a if math.isnan(b) else choose(a, b)


def half_away(x):
    return math.copysign(math.floor(abs(Fraction(x)) + Fraction(1, 2)), x) if finite(x) else x


def integral(fn):
    return lambda name, x: math.copysign(float(fn(x)), x) if finite(x) else x


EXACT = {
    "arith.addf": exactly(lambda a, b: a + b, lambda a, b: a + b),
    "arith.subf": exactly(lambda a, b: a - b, lambda a, b: a - b),
    "arith.mulf": exactly(lambda a, b: a * b, lambda a, b: a * b),
    "arith.divf": exactly(lambda a, b: a / b, lambda a, b: a / b),
    "arith.remf": lambda name, a, b: remainder(a, b),
    "arith.maximumf": lambda name, a, b: maximum(a, b),
    "arith.minimumf": lambda name, a, b: minimum(a, b),
    "arith.maxnumf": ignoring_nan(maximum),
    "arith.minnumf": ignoring_nan(minimum),
    "math.copysign": lambda name, a, b: math.copysign(a, b),
    "arith.negf": lambda name, x: -x,
    "math.absf": lambda name, x: abs(x),
    "math.ceil": integral(math.ceil),
    "math.floor": integral(math.floor),
    "math.trunc": integral(math.trunc),
    "math.roundeven": integral(round),
    "math.round": lambda name, x: half_away(x),
    "math.sqrt": square_root,
}
#: Functions of libm, whose result may be off by one place of the type.
LIBM = {
    "math.acos": np.arccos, "math.acosh": np.arccosh, "math.asin": np.arcsin, "math.asinh": np.arcsinh, "math.atan": np.arctan,
    "math.atanh": np.arctanh, "math.cbrt": np.cbrt, "math.cos": np.cos, "math.cosh": np.cosh, "math.erf": np.vectorize(math.erf),
    "math.erfc": np.vectorize(math.erfc), "math.exp": np.exp, "math.exp2": np.exp2, "math.expm1": np.expm1, "math.log": np.log,
    "math.log10": np.log10, "math.log1p": np.log1p, "math.log2": np.log2, "math.rsqrt": lambda x: 1 / np.sqrt(x), "math.sin": np.sin,
    "math.sinh": np.sinh, "math.tan": np.tan, "math.tanh": np.tanh, "math.atan2": np.arctan2, "math.powf": np.power,
}
TWO = {op for op in EXACT if op.startswith("arith.") and op != "arith.negf"} | {"math.copysign", "math.atan2", "math.powf"}


def operands(op, name, seed=1):
    a = edges(name, seed)
    if op not in TWO:
        return [a]
    a, b = np.meshgrid(a, edges(name, seed + 1))
    return [a.ravel(), b.ravel()]


def elementwise(symbol, text, types, results):
    """A function on tensors of `types`; `text` makes %r from %x0, %x1, ..."""
    arguments = ", ".join(f"%x{i}: tensor<?x{t}>" for i, t in enumerate(types))
    outs = ", ".join(f"tensor<?x{t}>" for t in results)
    names = "%r" if len(results) == 1 else ", ".join(f"%r#{i}" for i in range(len(results)))
    return f"func.func @{symbol}({arguments}) -> ({outs}) {{\n  {text}\n  return {names} : {outs}\n}}\n"


def plain(symbol, op, name, count):
    values = ", ".join(f"%x{i}" for i in range(count))
    return elementwise(symbol, f"%r = {op} {values} : tensor<?x{name}>", [name] * count, [name])


def read(array):
    return array.view(ml_dtypes.bfloat16).astype(np.float64) if array.dtype.kind == "V" else array.astype(np.float64)


def give(values, name):
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(DTYPES[name])


def assert_same(got, want, what):
    """NaN equals NaN, and the sign of a zero counts."""
    got, want = read(got), np.asarray(want, np.float64)
    same = (got == want) & (np.signbit(got) == np.signbit(want)) | (np.isnan(got) & np.isnan(want))
    wrong = np.flatnonzero(~same)
    assert not wrong.size, (*what(wrong[0]), got[wrong[0]], want[wrong[0]])


def symbol_of(op):
    return op.replace(".", "_")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FORMATS)
def test_ops_that_round_an_exact_result(name, build_dir):
    functions = [plain(symbol_of(op), op, name, 1 + (op in TWO)) for op in EXACT]
    calls = [(symbol_of(op), "as-written", [give(x, name) for x in operands(op, name)]) for op in EXACT]
    for op, answer in zip(EXACT, Interpreter(build_dir, "".join(functions)).calls(calls)):
        assert answer.kind == "ok", (op, answer.message)
        values = operands(op, name)
        want = [EXACT[op](name, *map(float, x)) for x in zip(*values)]
        assert_same(answer.results[0], want, lambda i: (op, [x[i] for x in values]))


@pytest.mark.parametrize("name", FORMATS)
def test_functions_of_libm(name, build_dir):
    functions = [plain(symbol_of(op), op, name, 1 + (op in TWO)) for op in LIBM]
    calls = [(symbol_of(op), "as-written", [give(x, name) for x in operands(op, name)]) for op in LIBM]
    for op, answer in zip(LIBM, Interpreter(build_dir, "".join(functions)).calls(calls)):
        assert answer.kind == "ok", (op, answer.message)
        with np.errstate(all="ignore"):
            exact = LIBM[op](*operands(op, name))
            want = give(exact, name).astype(np.float64)
            got = read(answer.results[0])
            bits, least, most = FORMATS[name]
            # An f64 that libm and NumPy both make is off by a few places.
            unit = 2.0 ** (np.maximum(np.floor(np.log2(np.abs(want))), least) - bits + 1) * (4 if name == "f64" else 1)
            near = (got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got - exact) <= unit)
        wrong = np.flatnonzero(~near)
        assert not wrong.size, (op, [x[wrong[0]] for x in operands(op, name)], got[wrong[0]], want[wrong[0]])
        if name != "f64":
            assert np.mean((got == want) | np.isnan(want)) > 0.99, op


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FORMATS)
def test_three_operands_powers_and_pairs(name, build_dir):
    a, b, c = (x.ravel() for x in np.meshgrid(edges(name, 1, 2), edges(name, 2, 2), edges(name, 3, 2)))
    # Products that lie half a place beside a number of the type, so that two roundings would show.
    bits = FORMATS[name][0]
    near = [1 + 2.0 ** (1 - bits), 1 - 2.0 ** -bits, 2.0 ** (-bits - 1), -2.0 ** (-bits - 1), 2.0 ** -12, 2.0 ** -13]
    a, b, c = (np.append(x, y.ravel()) for x, y in zip((a, b, c), np.meshgrid(near, near, near)))
    a, b, c = (give(x, name).astype(np.float64) for x in (a, b, c))
    exponents = np.array([0, 1, 2, 3, -1, -2, 5, 17, -64, 2 ** 62 + 1, -(2 ** 63), 2 ** 63 - 1])
    base, exponent = (x.ravel() for x in np.meshgrid(edges(name, 4), exponents))
    module = "".join([
        elementwise("fma", f"%r = math.fma %x0, %x1, %x2 : tensor<?x{name}>", [name] * 3, [name]),
        elementwise("clampf", f"%r = math.clampf %x0 to [%x1, %x2] : tensor<?x{name}>", [name] * 3, [name]),
        elementwise("fpowi", f"%r = math.fpowi %x0, %x1 : tensor<?x{name}>, tensor<?xi64>", [name, "i64"], [name]),
        elementwise("sincos", f"%s, %c = math.sincos %x0 : tensor<?x{name}>\n  %r:2 = func.call @both(%s, %c) : "
                    f"(tensor<?x{name}>, tensor<?x{name}>) -> (tensor<?x{name}>, tensor<?x{name}>)", [name], [name, name]),
        f"func.func private @both(%a: tensor<?x{name}>, %b: tensor<?x{name}>) -> (tensor<?x{name}>, tensor<?x{name}>) {{ "
        f"return %a, %b : tensor<?x{name}>, tensor<?x{name}> }}\n",
        plain("sin", "math.sin", name, 1), plain("cos", "math.cos", name, 1),
    ])
    angles = edges(name, 5)
    fma, clamp, power, both, sin, cos = Interpreter(build_dir, module).calls(
        [(f, "as-written", [give(x, name) for x in (a, b, c)]) for f in ("fma", "clampf")]
        + [("fpowi", "as-written", [give(base, name), exponent])]
        + [(f, "as-written", [give(angles, name)]) for f in ("sincos", "sin", "cos")])
    exact = exactly(lambda a, b, c: a * b + c, lambda a, b, c: c if np.isinf(c) and finite(a, b) else a * b + c)
    want = [exact(name, *map(float, x)) for x in zip(a, b, c)]
    assert_same(fma.results[0], want, lambda i: ("fma", a[i], b[i], c[i]))
    assert_same(clamp.results[0], [maximum(minimum(x, low), high) for x, low, high in zip(a, b, c)], lambda i: ("clampf", a[i], b[i], c[i]))
    assert_same(both.results[0], read(sin.results[0]), lambda i: ("sincos", angles[i]))
    assert_same(both.results[1], read(cos.results[0]), lambda i: ("sincos", angles[i]))
    got = read(power.results[0])
    for x, n, y in zip(base, exponent.tolist(), got):
        with np.errstate(all="ignore"):
            size = float(give(np.power(abs(x), float(n)), name))
        want = -size if n % 2 and math.copysign(1, x) < 0 else size
        same = (math.isnan(want) and math.isnan(y)) or y == want or abs(y - want) <= abs(want) * 2.0 ** (3 - FORMATS[name][0])
        assert same, (x, n, y, want)


PREDICATES = ["false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true"]


@pytest.mark.parametrize("name", FORMATS)
def test_comparisons_and_classes(name, build_dir):
    a, b = (x.ravel() for x in np.meshgrid(edges(name, 1, 3), edges(name, 1, 3)))
    unordered = np.isnan(a) | np.isnan(b)
    relations = {"eq": a == b, "gt": a > b, "ge": a >= b, "lt": a < b, "le": a <= b, "ne": (a != b) & ~unordered}
    want = {"false": np.zeros_like(a, bool), "true": np.ones_like(a, bool), "ord": ~unordered, "uno": unordered}
    for relation, holds in relations.items():
        want[f"o{relation}"], want[f"u{relation}"] = holds, holds | unordered
    functions = [elementwise(f"p_{p}", f"%r = arith.cmpf {p}, %x0, %x1 : tensor<?x{name}>", [name] * 2, ["i1"]) for p in PREDICATES]
    least = 2.0 ** FORMATS[name][1]
    classes = {"isfinite": np.isfinite(a), "isinf": np.isinf(a), "isnan": np.isnan(a), "isnormal": np.isfinite(a) & (np.abs(a) >= least)}
    functions += [elementwise(f"p_{c}", f"%r = math.{c} %x0 : tensor<?x{name}>", [name], ["i1"]) for c in classes]
    names = PREDICATES + list(classes)
    answers = Interpreter(build_dir, "".join(functions)).calls(
        [(f"p_{p}", "as-written", [give(x, name) for x in (a, b)[:2 - (p in classes)]]) for p in names])
    for predicate, answer in zip(names, answers):
        assert answer.kind == "ok", (predicate, answer.message)
        np.testing.assert_array_equal(answer.results[0], (want | classes)[predicate], predicate)


@pytest.mark.parametrize("mode", ["even", "to_nearest_even", "downward", "upward", "toward_zero", "to_nearest_away"])
def test_casts_between_floats(mode, build_dir):
    pairs = [("f64", "f32"), ("f64", "f16"), ("f64", "bf16"), ("f32", "f16"), ("f32", "bf16")]
    word = "" if mode == "even" else f" {mode}"
    functions = [elementwise(f"{a}_{b}", f"%r = arith.truncf %x0{word} : tensor<?x{a}> to tensor<?x{b}>", [a], [b]) for a, b in pairs]
    functions += [elementwise(f"{b}_{a}", f"%r = arith.extf %x0 : tensor<?x{b}> to tensor<?x{a}>", [b], [a]) for a, b in pairs]
    inputs = []
    for a, b in pairs:
        # Numbers of the narrow type, what lies half way between two, and next to that.
        narrow = edges(b, 7)
        bits, least, _ = FORMATS[b]
        with np.errstate(all="ignore"):
            half = narrow + np.sign(narrow) * 2.0 ** (np.maximum(np.floor(np.log2(np.abs(narrow))), least) - bits)
            wide = np.concatenate([narrow, half, half * (1 + 2.0 ** (2 - FORMATS[a][0])), half * (1 - 2.0 ** (2 - FORMATS[a][0])), edges(a, 8)])
            inputs.append(give(wide, a).astype(np.float64))
    calls = [(f"{a}_{b}", "as-written", [give(x, a)]) for (a, b), x in zip(pairs, inputs)]
    calls += [(f"{b}_{a}", "as-written", [give(edges(b, 9), b)]) for a, b in pairs]
    answers = Interpreter(build_dir, "".join(functions)).calls(calls)
    for (a, b), values, answer in zip(pairs, inputs, answers):
        assert answer.kind == "ok", answer.message
        want = [math.copysign(rounded(x, b, {"to_nearest_even": "even"}.get(mode, mode)), x) if math.isfinite(x) else x for x in values.tolist()]
        assert_same(answer.results[0], want, lambda i: (a, b, values[i]))
    for (a, b), answer in zip(pairs, answers[len(pairs):]):
        assert_same(answer.results[0], edges(b, 9), lambda i: (b, a))


def test_casts_between_integers_and_floats(build_dir):
    functions, calls, checks = [], [], []
    random = np.random.default_rng(1)
    for width in (1, 8, 16, 24, 32, 63, 64):
        half = 1 << (width - 1)
        integers = {-half, half - 1, -1, 0, -half // 2, half // 3}
        # Beside what a float of 8, 11, 24 or 53 bits can say.
        for bits in (8, 11, 24, 53):
            integers |= {(1 << bits) + k for k in range(-3, 4)} | {((1 << bits) + 1 << shift) + k for shift in (1, 5, 9) for k in (-1, 0, 1)}
        # An f64 of these lies half way between two narrower floats.
        integers |= {(1 << 60) + (1 << 60 - bits) + k for bits in (8, 24) for k in (-1, 0, 1)}
        integers |= {int(x) for x in random.integers(-half, half - 1, 20, endpoint=True)}
        integers = sorted(x for x in integers | {-x for x in integers} if -half <= x < half)
        for name in FORMATS:
            for op, view in (("sitofp", lambda x, w: x), ("uitofp", lambda x, w: x % (1 << w))):
                symbol = f"{op}_{width}_{name}"
                narrow = "" if width == 64 else f"%n = arith.trunci %x0 : tensor<?xi64> to tensor<?xi{width}>\n  "
                value = "%x0" if width == 64 else "%n"
                functions.append(elementwise(symbol, f"{narrow}%r = arith.{op} {value} : tensor<?xi{width}> to tensor<?x{name}>", ["i64"], [name]))
                calls.append((symbol, "as-written", [np.array(integers)]))
                checks.append([rounded(view(x, width), name) for x in integers])
            ends = [half, half - 1, -half, -half - 1, 2.0 * half, 2.0 * half - 1, 0.99, -0.99, -1.0]
            floats = [x for x in [*edges(name, width).tolist(), *give(np.array(ends, float), name).astype(float).tolist()] if math.isfinite(x)]
            for op, low, high in (("fptosi", -half, half), ("fptoui", 0, 2 * half)):
                symbol = f"{op}_{width}_{name}"
                widen = "" if width == 64 else f"%r = arith.extsi %n : tensor<?xi{width}> to tensor<?xi64>"
                value = "%r" if width == 64 else "%n"
                functions.append(elementwise(symbol, f"{value} = arith.{op} %x0 : tensor<?x{name}> to tensor<?xi{width}>\n  {widen}", [name], ["i64"]))
                held = [x for x in floats if low <= math.trunc(x) < high]
                calls.append((symbol, "as-written", [give(held, name)]))
                checks.append([(math.trunc(x) + half) % (2 * half) - half for x in held])
                for far in [x for x in floats if not low <= math.trunc(x) < high][:2] + [NAN, INF, -INF]:
                    calls.append((symbol, "as-written", [give([far], name)]))
                    checks.append(None)
    for (symbol, _, arguments), want, answer in zip(calls, checks, Interpreter(build_dir, "".join(functions)).calls(calls)):
        assert answer.kind == "ok", (symbol, answer.message)
        assert bool(answer.undefined) == (want is None), (symbol, arguments, answer.undefined)
        if want is not None and symbol.startswith("fp"):
            np.testing.assert_array_equal(answer.results[0], np.array(want, np.int64), symbol)
        elif want is not None:
            assert_same(answer.results[0], want, lambda i: (symbol, arguments[0][i]))


def test_bits(build_dir):
    pairs = [("f64", "i64"), ("f32", "i32"), ("f16", "i16"), ("bf16", "i16")]
    functions = [elementwise(f"{a}_{b}", f"%r = arith.bitcast %x0 : tensor<?x{a}> to tensor<?x{b}>", [a], [b])
                 for f, i in pairs for a, b in ((f, i), (i, f))]
    calls = []
    for f, i in pairs:
        values = give(edges(f, 3), f)
        calls += [(f"{f}_{i}", "as-written", [values]), (f"{i}_{f}", "as-written", [values.view(f"i{values.itemsize}")]),
                  (f"{f}_{i}", "exact", [values])]
    answers = Interpreter(build_dir, "".join(functions)).calls(calls)
    for (symbol, _, (values,)), answer in zip(calls, answers):
        assert answer.kind == "ok", answer.message
        got = answer.results[0]
        if symbol.startswith("i"):
            assert_same(got, read(values.view(DTYPES[symbol.partition("_")[2]])), lambda i: (symbol, values[i]))
        else:
            nan = np.isnan(values.astype(np.float64))
            np.testing.assert_array_equal(got[~nan], values.view(got.dtype)[~nan], symbol)


@pytest.mark.parametrize("name", FORMATS)
def test_exact_floats_are_f64_whatever_is_written(name, build_dir):
    text = f"""
      %t = arith.truncf %x0 : tensor<?xf64> to tensor<?x{name}>
      %p = arith.mulf %t, %t : tensor<?x{name}>
      %e = math.exp %p : tensor<?x{name}>
      %d = arith.divf %e, %t : tensor<?x{name}>
      %r = arith.extf %d : tensor<?x{name}> to tensor<?xf64>""" if name != "f64" else """
      %p = arith.mulf %x0, %x0 : tensor<?xf64>
      %e = math.exp %p : tensor<?xf64>
      %r = arith.divf %e, %x0 : tensor<?xf64>"""
    x = np.random.default_rng(1).standard_normal(50)
    exact, written = Interpreter(build_dir, elementwise("f", text, ["f64"], ["f64"])).calls([("f", p, [x]) for p in ("exact", "as-written")])
    np.testing.assert_allclose(exact.results[0], np.exp(x * x) / x, rtol=1e-15)
    assert name == "f64" or np.abs(written.results[0] / exact.results[0] - 1).max() > 2.0 ** -FORMATS[name][0]


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_random_roundings_are_the_two_neighbours(name, build_dir):
    bits, least, _ = FORMATS[name]
    x = np.concatenate([np.full(400, 1 + 2.0 ** (1 - bits) / 4), np.full(400, -2.0 ** (least - bits + 1) * 2.5), [1.5, 0.0, -0.0, INF, NAN, 2.0 ** 200]])
    module = elementwise("f", f"%r = arith.truncf %x0 : tensor<?xf64> to tensor<?x{name}>", ["f64"], [name])
    first, again, other = Interpreter(build_dir, module).calls([("f", f"random:{seed}", [x]) for seed in (1, 1, 2)])
    got = read(first.results[0])
    assert_same(first.results[0], read(again.results[0]), lambda i: (name, i))
    assert (got[:800] != read(other.results[0])[:800]).any()
    # A quarter of the way up, and half of it below the normal range.
    assert set(got[:400]) == {1.0, 1 + 2.0 ** (1 - bits)} and 0.15 < np.mean(got[:400] > 1) < 0.35
    unit = 2.0 ** (least - bits + 1)
    assert set(got[400:800]) == {-2 * unit, -3 * unit} and 0.4 < np.mean(got[400:800] == -3 * unit) < 0.6
    assert_same(first.results[0][800:], [1.5, 0.0, -0.0, INF, NAN, INF], lambda i: (name, i))
