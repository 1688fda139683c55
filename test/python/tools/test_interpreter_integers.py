"""Every integer op of the interpreter at the edges of its type, against Python's integers."""
import numpy as np
import pytest

from interpreter import Interpreter

WIDTHS = [1, 2, 4, 7, 8, 16, 31, 32, 63, 64, "index"]


def bits(width):
    return 64 if width == "index" else width


def name_of(width):
    return width if width == "index" else f"i{width}"


def signed(value, width):
    """The lowest bits as a signed number."""
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def unsigned(value, width):
    return value & ((1 << width) - 1)


def trunc_div(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def floor_div(a, b):
    return a // b


def ceil_div(a, b):
    return -(-a // b)


class Undefined(Exception):
    """The op has a result that MLIR does not define."""


class Fault(Exception):
    """The op has no result: the interpreter ends with an error."""


def signed_division(divide):
    def compute(a, b, width):
        if b == 0 or (b == -1 and a == -(1 << (width - 1))):
            raise Fault
        return divide(a, b)
    return compute


def unsigned_division(divide):
    def compute(a, b, width):
        a, b = unsigned(a, width), unsigned(b, width)
        if b == 0:
            raise Fault
        return divide(a, b)
    return compute


def shift(compute):
    def checked(a, b, width):
        if unsigned(b, width) >= width:
            raise Undefined
        return compute(a, b, width)
    return checked


def power(a, b, width):
    if b < 0:
        if a == 0:
            raise Fault
        return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)
    return pow(a, b, 1 << width)


def by_unsigned(choose):
    return lambda a, b, width: choose(a, b, key=lambda x: unsigned(x, width))


BINARY = {
    "arith.addi": lambda a, b, w: a + b,
    "arith.subi": lambda a, b, w: a - b,
    "arith.muli": lambda a, b, w: a * b,
    "arith.divsi": signed_division(trunc_div),
    "arith.remsi": signed_division(lambda a, b: a - b * trunc_div(a, b)),
    "arith.floordivsi": signed_division(floor_div),
    "arith.ceildivsi": signed_division(ceil_div),
    "arith.divui": unsigned_division(floor_div),
    "arith.remui": unsigned_division(lambda a, b: a % b),
    "arith.ceildivui": unsigned_division(ceil_div),
    "arith.andi": lambda a, b, w: a & b,
    "arith.ori": lambda a, b, w: a | b,
    "arith.xori": lambda a, b, w: a ^ b,
    "arith.maxsi": lambda a, b, w: max(a, b),
    "arith.minsi": lambda a, b, w: min(a, b),
    "arith.maxui": by_unsigned(max),
    "arith.minui": by_unsigned(min),
    "arith.shli": shift(lambda a, b, w: a << b),
    "arith.shrsi": shift(lambda a, b, w: a >> b),
    "arith.shrui": shift(lambda a, b, w: unsigned(a, w) >> b),
    "math.ipowi": power,
}
INDEX_BINARY = {
    "index.add": "arith.addi", "index.sub": "arith.subi", "index.mul": "arith.muli", "index.divs": "arith.divsi",
    "index.divu": "arith.divui", "index.ceildivs": "arith.ceildivsi", "index.ceildivu": "arith.ceildivui",
    "index.floordivs": "arith.floordivsi", "index.rems": "arith.remsi", "index.remu": "arith.remui", "index.maxs": "arith.maxsi",
    "index.maxu": "arith.maxui", "index.mins": "arith.minsi", "index.minu": "arith.minui", "index.shl": "arith.shli",
    "index.shrs": "arith.shrsi", "index.shru": "arith.shrui", "index.and": "arith.andi", "index.or": "arith.ori",
    "index.xor": "arith.xori",
}
UNARY = {
    "math.absi": lambda a, w: abs(a),
    "math.ctlz": lambda a, w: w - unsigned(a, w).bit_length(),
    "math.cttz": lambda a, w: (unsigned(a, w) & -unsigned(a, w)).bit_length() - 1 if a else w,
    "math.ctpop": lambda a, w: unsigned(a, w).bit_count(),
}
COMPARE = {
    "eq": lambda a, b, w: a == b, "ne": lambda a, b, w: a != b,
    "slt": lambda a, b, w: a < b, "sle": lambda a, b, w: a <= b, "sgt": lambda a, b, w: a > b, "sge": lambda a, b, w: a >= b,
    "ult": lambda a, b, w: unsigned(a, w) < unsigned(b, w), "ule": lambda a, b, w: unsigned(a, w) <= unsigned(b, w),
    "ugt": lambda a, b, w: unsigned(a, w) > unsigned(b, w), "uge": lambda a, b, w: unsigned(a, w) >= unsigned(b, w),
}
EXTENDED = {
    "arith.addui_extended": lambda a, b, w: (unsigned(a, w) + unsigned(b, w), (unsigned(a, w) + unsigned(b, w)) >> w),
    "arith.mulsi_extended": lambda a, b, w: (a * b, (a * b) >> w),
    "arith.mului_extended": lambda a, b, w: (unsigned(a, w) * unsigned(b, w), (unsigned(a, w) * unsigned(b, w)) >> w),
}


def edges(width, seed, count=12):
    """The ends of the type, their neighbours, small numbers and random ones."""
    half = 1 << (width - 1)
    random = np.random.default_rng(seed)
    numbers = [-half, -half + 1, half - 1, half - 2, -3, -2, -1, 0, 1, 2, 3, width - 1, width, width + 1]
    numbers += [int(x) for x in random.integers(-half, half - 1, count, endpoint=True)]
    numbers += [int(x) >> int(random.integers(0, width)) for x in random.integers(-half, half - 1, count, endpoint=True)]
    return sorted({signed(x, width) for x in numbers})


def cast_line(result, value, source, target):
    if source == target:
        return f"%{result} = arith.addi %{value}, %zero : i64"
    if "index" in (source, target):
        return f"%{result} = arith.index_cast %{value} : {source} to {target}"
    return f"%{result} = arith.{'trunci' if target != 'i64' else 'extsi'} %{value} : {source} to {target}"


def function(symbol, name, body, results, operands=2):
    """A function over tensors of i64 whose body works on `name`: from %a and %b to %r0, %r1, of the types `results`."""
    arguments = ["x", "y"][:operands]
    ins = ", ".join(f"%t{x}" for x in arguments)
    types = ", ".join(["tensor<?xi64>"] * operands)
    maps = ", ".join(["affine_map<(i) -> (i)>"] * (operands + len(results)))
    outs = ", ".join(f"%e{i}" for i in range(len(results)))
    lines = [cast_line("ab"[i], x, "i64", name) for i, x in enumerate(arguments)]
    lines += [body] + [cast_line(f"s{i}", f"r{i}", result, "i64") for i, result in enumerate(results)]
    block = ", ".join([f"%{x}: i64" for x in arguments] + [f"%o{i}: i64" for i in range(len(results))])
    empty = "\n  ".join(f"%e{i} = tensor.empty(%n) : tensor<?xi64>" for i in range(len(results)))
    outer = ", ".join(["tensor<?xi64>"] * len(results))
    return f"""
func.func @{symbol}({", ".join(f"%t{x}: tensor<?xi64>" for x in arguments)}) -> ({outer}) {{
  %zero = arith.constant 0 : i64
  %c0 = arith.constant 0 : index
  %n = tensor.dim %tx, %c0 : tensor<?xi64>
  {empty}
  %r:{len(results)} = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
    ins({ins} : {types}) outs({outs} : {outer}) {{
  ^bb0({block}):
    {(chr(10) + "    ").join(lines)}
    linalg.yield {", ".join(f"%s{i}" for i in range(len(results)))} : {", ".join(["i64"] * len(results))}
  }} -> ({outer})
  return {", ".join(f"%r#{i}" for i in range(len(results)))} : {outer}
}}"""


def symbol_of(op, name):
    return f"{op.replace('.', '_')}_{name}"


def cases(width, compute, seed):
    """The pairs of edges that have a result, the results, and a pair of each other kind."""
    w = bits(width)
    defined, undefined, faults = [], [], []
    for a in edges(w, seed):
        for b in edges(w, seed + 1):
            try:
                defined.append((a, b, compute(a, b, w)))
            except Undefined:
                undefined.append((a, b))
            except Fault:
                faults.append((a, b))
    return defined, undefined, faults


def some(pairs):
    """A few of them, from the first on."""
    return pairs[::max(1, len(pairs) // 4)]


def check(build_dir, functions, wanted):
    """Runs {symbol: text} once each; `wanted` has (symbol, arguments, results)."""
    answers = Interpreter(build_dir, "\n".join(functions)).calls([(symbol, "as-written", arguments) for symbol, arguments, _ in wanted])
    for (symbol, arguments, results), answer in zip(wanted, answers):
        assert answer.kind == "ok", (symbol, answer.message)
        assert not answer.undefined, (symbol, answer.undefined)
        for got, want in zip(answer.results, results):
            wrong = np.flatnonzero(got != np.array(want, np.int64))
            assert not wrong.size, (symbol, [x[wrong[0]] for x in arguments], int(got[wrong[0]]), want[wrong[0]])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("width", WIDTHS, ids=name_of)
def test_two_operands(width, build_dir):
    name, w = name_of(width), bits(width)
    functions, wanted, others = [], [], []
    table = dict(BINARY)
    if width == "index":
        del table["math.ipowi"]
        table |= {op: BINARY[same] for op, same in INDEX_BINARY.items()}
    for number, (op, compute) in enumerate(table.items()):
        symbol = symbol_of(op, name)
        tail = "" if op.startswith("index.") else f" : {name}"
        functions.append(function(symbol, name, f"%r0 = {op} %a, %b{tail}", [name]))
        defined, undefined, faults = cases(width, compute, number)
        a, b, results = zip(*defined)
        wanted.append((symbol, [a, b], [[signed(r, w) for r in results]]))
        others += [(symbol, pair, kind) for kind, pairs in (("undefined", undefined), ("fault", faults)) for pair in some(pairs)]
    check(build_dir, functions, wanted)
    answers = Interpreter(build_dir, "\n".join(functions)).calls(
        [(symbol, "as-written", [np.array([a]), np.array([b])]) for symbol, (a, b), _ in others])
    for (symbol, pair, kind), answer in zip(others, answers):
        assert (answer.kind == "fault") == (kind == "fault"), (symbol, pair, answer)
        assert bool(answer.undefined) == (kind == "undefined"), (symbol, pair, answer)


@pytest.mark.parametrize("width", WIDTHS, ids=name_of)
def test_comparisons_and_one_operand(width, build_dir):
    name, w = name_of(width), bits(width)
    functions, wanted = [], []
    for number, (predicate, compute) in enumerate(COMPARE.items()):
        spellings = [("arith.cmpi", f"%r0 = arith.cmpi {predicate}, %a, %b : {name}")]
        if width == "index":
            spellings.append(("index.cmp", f"%r0 = index.cmp {predicate}(%a, %b)"))
        for op, text in spellings:
            symbol = symbol_of(f"{op}_{predicate}", name)
            functions.append(function(symbol, name, text, ["i1"]))
            a, b, results = zip(*cases(width, compute, number)[0])
            wanted.append((symbol, [a, b], [[-int(r) for r in results]]))
    if width != "index":
        for number, (op, compute) in enumerate(UNARY.items()):
            symbol = symbol_of(op, name)
            functions.append(function(symbol, name, f"%r0 = {op} %a : {name}", [name], operands=1))
            a = edges(w, number, 100)
            wanted.append((symbol, [a], [[signed(compute(x, w), w) for x in a]]))
        for number, (op, compute) in enumerate(EXTENDED.items()):
            symbol = symbol_of(op, name)
            high = "i1" if op == "arith.addui_extended" else name
            types = f"{name}, i1" if op == "arith.addui_extended" else name
            functions.append(function(symbol, name, f"%r0, %r1 = {op} %a, %b : {types}", [name, high]))
            a, b, results = zip(*cases(width, compute, number)[0])
            wanted.append((symbol, [a, b], [[signed(r[0], w) for r in results],
                                            [signed(r[1], 1 if high == "i1" else w) for r in results]]))
    check(build_dir, functions, wanted)


FLAGS = {
    "arith.addi": lambda a, b: a + b, "arith.subi": lambda a, b: a - b, "arith.muli": lambda a, b: a * b, "arith.shli": lambda a, b: a << b,
}


@pytest.mark.parametrize("width", [8, 32, 63, 64, "index"], ids=name_of)
def test_overflow_flags_are_noticed(width, build_dir):
    name, w = name_of(width), bits(width)
    functions, pairs = [], []
    random = np.random.default_rng(w)
    for op, compute in FLAGS.items():
        for flag in ("nsw", "nuw"):
            symbol = symbol_of(f"{op}_{flag}", name)
            functions.append(function(symbol, name, f"%r0 = {op} %a, %b overflow<{flag}> : {name}", [name]))
            view = signed if flag == "nsw" else unsigned
            for a, b in random.choice([(a, b) for a in edges(w, 1, 4) for b in edges(w, 2, 4)], 20):
                a, b = int(a), int(b)
                if op == "arith.shli" and not 0 <= b < w:
                    continue
                exact = compute(view(a, w), view(b, w))
                pairs.append((symbol, (a, b), signed(exact, w), exact != view(exact, w)))
    for op, rest in (("arith.divsi", lambda a, b: a % b), ("arith.divui", lambda a, b: unsigned(a, w) % unsigned(b, w)),
                     ("arith.shrsi", lambda a, b: a % (1 << b)), ("arith.shrui", lambda a, b: a % (1 << b))):
        symbol = symbol_of(f"{op}_exact", name)
        functions.append(function(symbol, name, f"%r0 = {op} %a, %b exact : {name}", [name]))
        for a, b in ((12, 3), (12, 5), (-16, 2), (-7, 2), (8, 4), (0, 1)):
            pairs.append((symbol, (a, b), signed(BINARY[op](a, b, w), w), rest(a, b) != 0))
    answers = Interpreter(build_dir, "\n".join(functions)).calls(
        [(symbol, "as-written", [np.array([a]), np.array([b])]) for symbol, (a, b), _, _ in pairs])
    assert {wraps for *_, wraps in pairs} == {False, True}
    for (symbol, pair, result, wraps), answer in zip(pairs, answers):
        assert bool(answer.undefined) == wraps, (symbol, pair, answer)
        assert answer.results[0][0] == result, (symbol, pair)


CASTS = [(source, target) for source in WIDTHS for target in WIDTHS if source != target]


def test_casts_between_widths(build_dir):
    functions, wanted = [], []
    for source, target in CASTS:
        from_, to = name_of(source), name_of(target)
        wider = bits(target) > bits(source)
        if "index" in (source, target):
            ops = [("arith.index_cast", signed), ("arith.index_castui", unsigned)]
            ops += [("index.casts", signed), ("index.castu", unsigned)]
        elif wider:
            ops = [("arith.extsi", signed), ("arith.extui", unsigned)]
        else:
            ops = [("arith.trunci", signed)]
        for op, view in ops:
            symbol = symbol_of(f"{op}_{from_}", to)
            functions.append(function(symbol, from_, f"%r0 = {op} %a : {from_} to {to}", [to], operands=1))
            a = edges(bits(source), 3)
            wanted.append((symbol, [a], [[signed(view(x, bits(source)), bits(target)) for x in a]]))
    check(build_dir, functions, wanted)
