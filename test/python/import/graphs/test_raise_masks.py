"""Masks whose conditions are integer arithmetic: what is raised hides the keys that the ops hide at their own width.

Each condition is one function of a module. The reference computes the mask with NumPy integers of the same width, and the
attention in f64. A row that sees no key is 0 once it is raised.
"""
import numpy as np
import pytest
from attention_reference import attention
from diffattn.runtime import Executable, emit

BATCH, ROWS, KEYS, WIDTH = 2, 10, 12, 4
LAMBDA = 0.5

FUNCTION = """
func.func @{name}(%q1: tensor<2x{q}x4xf32>, %k1: tensor<2x4x{k}xf32>, %q2: tensor<2x{q}x4xf32>, %k2: tensor<2x4x{k}xf32>,
    %v: tensor<2x{k}x4xf32>) -> tensor<2x{q}x4xf32> {{
  %zero = arith.constant 0.0 : f32
  %half = arith.constant 0.5 : f32
  %ninf = arith.constant 0xFF800000 : f32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %rows = tensor.dim %q1, %c1 : tensor<2x{q}x4xf32>
  %keys = tensor.dim %k1, %c2 : tensor<2x4x{k}xf32>
  %es = tensor.empty({sizes}) : tensor<2x{q}x{k}xf32>
  %zs = linalg.fill ins(%zero : f32) outs(%es : tensor<2x{q}x{k}xf32>) -> tensor<2x{q}x{k}xf32>
  %s1 = linalg.batch_matmul ins(%q1, %k1 : tensor<2x{q}x4xf32>, tensor<2x4x{k}xf32>) outs(%zs : tensor<2x{q}x{k}xf32>) -> tensor<2x{q}x{k}xf32>
  %s2 = linalg.batch_matmul ins(%q2, %k2 : tensor<2x{q}x4xf32>, tensor<2x4x{k}xf32>) outs(%zs : tensor<2x{q}x{k}xf32>) -> tensor<2x{q}x{k}xf32>
  {first}
  {second}
  %a1 = linalg.softmax dimension(2) ins(%m1 : tensor<2x{q}x{k}xf32>) outs(%es : tensor<2x{q}x{k}xf32>) -> tensor<2x{q}x{k}xf32>
  %a2 = linalg.softmax dimension(2) ins(%m2 : tensor<2x{q}x{k}xf32>) outs(%es : tensor<2x{q}x{k}xf32>) -> tensor<2x{q}x{k}xf32>
  %d = linalg.generic {{indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel", "parallel"]}}
      ins(%a1, %a2 : tensor<2x{q}x{k}xf32>, tensor<2x{q}x{k}xf32>) outs(%es : tensor<2x{q}x{k}xf32>) {{
  ^bb0(%a: f32, %b: f32, %o: f32):
    %scaled = arith.mulf %b, %half : f32
    %r = arith.subf %a, %scaled : f32
    linalg.yield %r : f32
  }} -> tensor<2x{q}x{k}xf32>
  %ev = tensor.empty({rows}) : tensor<2x{q}x4xf32>
  %zv = linalg.fill ins(%zero : f32) outs(%ev : tensor<2x{q}x4xf32>) -> tensor<2x{q}x4xf32>
  %out = linalg.batch_matmul ins(%d, %v : tensor<2x{q}x{k}xf32>, tensor<2x{k}x4xf32>) outs(%zv : tensor<2x{q}x4xf32>) -> tensor<2x{q}x4xf32>
  return %out : tensor<2x{q}x4xf32>
}}
"""
MASK = """%m{n} = linalg.generic {{indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel"]}}
      ins(%s{n} : tensor<2x{q}x{k}xf32>) outs(%es : tensor<2x{q}x{k}xf32>) {{
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    {condition}
    %r = arith.select %vis, %a, %ninf : f32
    linalg.yield %r : f32
  }} -> tensor<2x{q}x{k}xf32>"""


def function(name, condition, dynamic=False):
    q, k = ("?", "?") if dynamic else (ROWS, KEYS)
    lines = "\n    ".join(line.strip() for line in condition.strip().splitlines())
    masks = [MASK.format(n=n, q=q, k=k, condition=lines) for n in (1, 2)]
    return FUNCTION.format(name=name, q=q, k=k, first=masks[0], second=masks[1],
                           sizes="%rows, %keys" if dynamic else "", rows="%rows" if dynamic else "")


def module(functions):
    return "#id = affine_map<(b, i, j) -> (b, i, j)>\n" + "".join(functions)


def inputs(rows=ROWS, keys=KEYS):
    draw = np.random.default_rng(rows * 100 + keys).standard_normal
    return [draw((BATCH, *shape)).astype(np.float32)
            for shape in ((rows, WIDTH), (WIDTH, keys), (rows, WIDTH), (WIDTH, keys), (keys, WIDTH))]


def reference(mask, q1, k1, q2, k2, v):
    (q1, q2, v), (k1, k2) = (x[:, None] for x in (q1, q2, v)), (x.swapaxes(1, 2)[:, None] for x in (k1, k2))
    return attention(q1, k1, q2, k2, v, LAMBDA, scale=1.0, bias=mask.reshape(-1, 1, *mask.shape[-2:]))[0][:, 0]


def positions(rows=ROWS, keys=KEYS):
    i, j = np.meshgrid(np.arange(rows), np.arange(keys), indexing="ij")
    return i.astype(np.int64), j.astype(np.int64)


def check(cases, raised=True):
    """cases: name -> (condition, mask)."""
    text = module(function(name, condition) for name, (condition, _) in cases.items())
    if raised:
        missing = [part.split("(")[0] for part in emit(text, "raised").decode().split("func.func @")[1:]
                   if "diffattn.attention" not in part]
        assert not missing
    executable = Executable(text, cache=False, raise_attention=raised)
    arrays = inputs()
    wrong = []
    for name, (_, mask) in cases.items():
        want = reference(mask, *arrays)
        got = executable.call(name, *arrays)[0]
        rows = slice(None) if raised else mask.any(-1)
        if not np.allclose(got[:, rows], want[:, rows], rtol=1e-4, atol=1e-5):
            wrong.append(name)
    assert not wrong


U64 = np.uint64
PREDICATES = {
    "eq": np.equal, "ne": np.not_equal,
    "slt": np.less, "sle": np.less_equal, "sgt": np.greater, "sge": np.greater_equal,
    "ult": lambda a, b: a.astype(U64) < b.astype(U64), "ule": lambda a, b: a.astype(U64) <= b.astype(U64),
    "ugt": lambda a, b: a.astype(U64) > b.astype(U64), "uge": lambda a, b: a.astype(U64) >= b.astype(U64),
}
MAX, MIN = 2**63 - 1, -(2**63)
BOUNDS = [0, 1, 3, ROWS - 1, ROWS, KEYS, -1, -3, -KEYS, MAX, MAX - 3, MIN, MIN + 3]


def comparisons(bounds):
    i, j = positions()
    cases = {}
    for predicate, compare in PREDICATES.items():
        for bound in bounds:
            for forward in (True, False):  # i - j or j - i
                for swapped in (False, True):
                    d = i - j if forward else j - i
                    other = np.full_like(d, bound)
                    mask = compare(other, d) if swapped else compare(d, other)
                    if not mask.any():
                        continue
                    difference = "%i, %j" if forward else "%j, %i"
                    operands = "%n, %d" if swapped else "%d, %n"
                    name = f"{predicate}_{str(bound).replace('-', 'm')}_{int(forward)}{int(swapped)}"
                    cases[name] = (f"""%d = arith.subi {difference} : index
                                       %n = arith.constant {bound} : index
                                       %vis = arith.cmpi {predicate}, {operands} : index""", mask)
    return cases


@pytest.mark.sampled(3)
@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_one_comparison(bound, full):
    cases = comparisons([bound])
    check(cases)
    if full:
        check(cases, raised=False)


def truncated(a, b):
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def narrow_cases():
    i, j = positions()
    d = i - j
    i8, j8, d8 = i.astype(np.int8), j.astype(np.int8), d.astype(np.int8)
    u8 = d8.astype(np.uint8)
    as8 = """%i8 = arith.index_cast %i : index to i8
             %j8 = arith.index_cast %j : index to i8
             %d = arith.subi %i8, %j8 : i8
             """
    as32 = """%i32 = arith.index_cast %i : index to i32
              %j32 = arith.index_cast %j : index to i32
              %d = arith.subi %i32, %j32 : i32
              """

    def op8(line, result, bound, predicate="sle"):
        """`result` of numbers of 8 bits, compared with `bound`."""
        compare = PREDICATES[predicate]
        bound = np.int8(bound)
        return (as8 + f"%n = arith.constant {bound} : i8\n{line}\n%vis = arith.cmpi {predicate}, %x, %n : i8",
                compare(result.astype(np.int8), np.full_like(d8, bound)))

    def op32(line, result, bound, predicate="sle"):
        return (as32 + f"%n = arith.constant {bound} : i32\n{line}\n%vis = arith.cmpi {predicate}, %x, %n : i32",
                PREDICATES[predicate](result, np.full_like(d, bound)))

    def constant(value, type="i8"):
        return f"%c = arith.constant {value} : {type}\n"

    floor, ceil = d // 3, -(-d // 3)
    cases = {
        # Sums and products that wrap around in 8 bits.
        "add_wraps": op8(constant(120) + "%x = arith.addi %i8, %c : i8", i8 + np.int8(120), 0),
        "sub_wraps": op8(constant(-125) + "%x = arith.subi %i8, %c : i8", i8 - np.int8(-125), 0, "sgt"),
        "mul_wraps": op8(constant(20) + "%x = arith.muli %i8, %c : i8", i8 * np.int8(20), 50),
        "square_wraps": op8("%y = arith.muli %i8, %j8 : i8\n%x = arith.addi %y, %y : i8", 2 * i8 * j8, 60),
        "shift_wraps": op8(constant(4) + "%x = arith.shli %i8, %c : i8", i8 << np.int8(4), 40),
        "unsigned_8": op8("%x = arith.addi %d, %d : i8", d8 + d8, 7, "ult"),
        "unsigned_8_high": op8("%x = arith.addi %d, %d : i8", d8 + d8, -7, "uge"),
        "trunci_wraps": ("""%c = arith.constant 30 : index
                             %p = arith.muli %i, %c : index
                             %x = arith.index_cast %p : index to i64
                             %t = arith.trunci %x : i64 to i8
                             %j8 = arith.index_cast %j : index to i8
                             %vis = arith.cmpi sge, %t, %j8 : i8""", (30 * i).astype(np.int8) >= j8),
        # Extended with and without its sign.
        "extui": op8("%e = arith.extui %d : i8 to i16\n%s = arith.constant 8 : i16\n%h = arith.shrui %e, %s : i16\n"
                     "%m = arith.constant 200 : i16\n%y = arith.cmpi ult, %e, %m : i16\n%x = arith.extui %y : i1 to i8",
                     (u8 < 200), 0, "ne"),
        "extsi": op8("%e = arith.extsi %d : i8 to i16\n%m = arith.constant 200 : i16\n"
                     "%y = arith.cmpi slt, %e, %m : i16\n%x = arith.extsi %y : i1 to i8", -np.ones_like(d), -1, "eq"),
        "castui": (as8 + """%w = arith.index_castui %d : i8 to index
                            %n = arith.constant 250 : index
                            %vis = arith.cmpi slt, %w, %n : index""", u8.astype(np.int64) < 250),
        "castui_nowrap": (as8 + """%w = arith.index_castui %i8 : i8 to index
                            %vis = arith.cmpi sge, %w, %j : index""", i >= j),
        # Division and remainders of negative numbers.
        "divsi": op32(constant(3, "i32") + "%x = arith.divsi %d, %c : i32", truncated(d, 3), 0),
        "divsi_negative": op32(constant(-3, "i32") + "%x = arith.divsi %d, %c : i32", truncated(d, -3), 0),
        "floordivsi": op32(constant(3, "i32") + "%x = arith.floordivsi %d, %c : i32", floor, -1),
        "floordivsi_low": op32(constant(3, "i32") + "%x = arith.floordivsi %d, %c : i32", floor, 0, "sge"),
        "ceildivsi": op32(constant(3, "i32") + "%x = arith.ceildivsi %d, %c : i32", ceil, 0),
        "ceildivui": op32(constant(3, "i32") + "%x = arith.ceildivui %i32, %c : i32", -(-i // 3), 2),
        "divui": op32(constant(3, "i32") + "%x = arith.divui %d, %c : i32", (d % 2**32) // 3, 4, "ult"),
        "divui_positions": op32(constant(3, "i32") + "%y = arith.divui %i32, %c : i32\n%z = arith.divui %j32, %c : i32\n"
                                "%x = arith.subi %y, %z : i32", i // 3 - j // 3, 0, "sge"),
        "remsi": op32(constant(4, "i32") + "%x = arith.remsi %d, %c : i32", np.fmod(d, 4), 0, "sge"),
        "remui": op32(constant(5, "i32") + "%x = arith.remui %d, %c : i32", (d % 2**32) % 5, 2),
        "remui_positions": op32(constant(5, "i32") + "%x = arith.remui %j32, %c : i32", j % 5, 2),
        # Shifts, bits, choices.
        "shrsi": op32(constant(2, "i32") + "%x = arith.shrsi %d, %c : i32", d >> 2, -1),
        "shrui": op32(constant(2, "i32") + "%x = arith.shrui %d, %c : i32", (d % 2**32) >> 2, 1, "ule"),
        "shli": op32(constant(2, "i32") + "%x = arith.shli %d, %c : i32", d << 2, 7),
        "andi": op32(constant(6, "i32") + "%x = arith.andi %d, %c : i32", d & 6, 2),
        "ori": op32(constant(6, "i32") + "%x = arith.ori %d, %c : i32", d | 6, 6),
        "xori": op32(constant(-1, "i32") + "%x = arith.xori %d, %c : i32", ~d, 2),
        "minsi": op32(constant(2, "i32") + "%x = arith.minsi %d, %c : i32", np.minimum(d, 2), 1),
        "minui": op32(constant(2, "i32") + "%x = arith.minui %d, %c : i32", np.minimum(d % 2**32, 2), 1),
        "maxsi": op32(constant(2, "i32") + "%x = arith.maxsi %d, %c : i32", np.maximum(d, 2), 3),
        "maxui": op32(constant(2, "i32") + "%x = arith.maxui %d, %c : i32",
                      np.maximum(d % 2**32, 2).astype(np.uint32).astype(np.int32), 3),
        "absi": op32("%x = math.absi %d : i32", np.abs(d), 3),
        "select": op32("%y = arith.cmpi slt, %d, %n : i32\n%x = arith.select %y, %i32, %j32 : i32",
                       np.where(d < 4, i, j), 4),
        # Integers and numbers.
        "sitofp": (as32 + """%f = arith.sitofp %d : i32 to f32
                             %n = arith.constant 2.5 : f32
                             %vis = arith.cmpf ole, %f, %n : f32""", d <= 2),
        "uitofp": (as32 + """%f = arith.uitofp %d : i32 to f32
                             %n = arith.constant 2.5 : f32
                             %vis = arith.cmpf ole, %f, %n : f32""", (d % 2**32) <= 2),
        "uitofp_positions": (as32 + """%f = arith.uitofp %i32 : i32 to f32
                             %g = arith.uitofp %j32 : i32 to f32
                             %vis = arith.cmpf oge, %f, %g : f32""", i >= j),
        "fptosi": (as32 + """%f = arith.sitofp %d : i32 to f32
                             %h = arith.mulf %f, %half : f32
                             %x = arith.fptosi %h : f32 to i32
                             %n = arith.constant 0 : i32
                             %vis = arith.cmpi sge, %x, %n : i32""", d > -2),
        "fptoui": (as32 + """%f = arith.sitofp %i32 : i32 to f32
                             %h = arith.mulf %f, %half : f32
                             %x = arith.fptoui %h : f32 to i8
                             %j8 = arith.index_cast %j : index to i8
                             %vis = arith.cmpi uge, %x, %j8 : i8""", i // 2 >= j),
        # A number that f64 does not hold.
        "large_constant": (f"""%c = arith.constant {2**53} : i64
                               %n = arith.constant {2**53 + 3} : i64
                               %w = arith.index_cast %i : index to i64
                               %x = arith.addi %c, %w : i64
                               %y = arith.index_cast %j : index to i64
                               %z = arith.addi %n, %y : i64
                               %vis = arith.cmpi sle, %z, %x : i64""", 2**53 + 3 + j <= 2**53 + i),
        "large_in_a_tensor": (f"""%t = arith.constant dense<[{MAX}, {MAX - 1}, {MIN}, 3, {2**53 + 1}, 9]> : tensor<6xi64>
                               %six = arith.constant 6 : index
                               %p = arith.remui %j, %six : index
                               %x = tensor.extract %t[%p] : tensor<6xi64>
                               %n = arith.constant {2**53} : i64
                               %vis = arith.cmpi ugt, %x, %n : i64""",
                              np.isin(j % 6, (0, 1, 2, 4))),
        "index_wraps": (f"""%c = arith.constant {MAX - 4} : index
                            %x = arith.addi %i, %c : index
                            %vis = arith.cmpi sgt, %x, %j : index""", i <= 4),
    }
    # Truth values: true is 1 without a sign, -1 with one.
    a, b = i >= j, j >= 3
    truths = {
        "addi": ("%vis = arith.addi %a0, %b0 : i1", a ^ b), "subi": ("%vis = arith.subi %a0, %b0 : i1", a ^ b),
        "muli": ("%vis = arith.muli %a0, %b0 : i1", a & b), "xori": ("%vis = arith.xori %a0, %b0 : i1", a ^ b),
        "maxui": ("%vis = arith.maxui %a0, %b0 : i1", a | b), "maxsi": ("%vis = arith.maxsi %a0, %b0 : i1", a & b),
        "minui": ("%vis = arith.minui %a0, %b0 : i1", a & b), "minsi": ("%vis = arith.minsi %a0, %b0 : i1", a | b),
        "extsi": ("%z = arith.constant 0 : i32\n%x = arith.extsi %a0 : i1 to i32\n%vis = arith.cmpi slt, %x, %z : i32", a),
        "extui": ("%z = arith.constant 0 : i32\n%x = arith.extui %a0 : i1 to i32\n%vis = arith.cmpi sgt, %x, %z : i32", a),
        "trunci": ("%w = arith.index_cast %j : index to i32\n%vis = arith.trunci %w : i32 to i1", j % 2 == 1),
        "castui": ("%x = arith.index_castui %a0 : i1 to index\n%vis = arith.cmpi eq, %x, %c1 : index", a),
        "uitofp": ("%x = arith.uitofp %a0 : i1 to f32\n%vis = arith.cmpf ogt, %x, %zero : f32", a),
        "sitofp": ("%x = arith.sitofp %a0 : i1 to f32\n%vis = arith.cmpf olt, %x, %zero : f32", a),
    }
    for predicate, result in {"eq": a == b, "ne": a != b, "ult": ~a & b, "ule": ~a | b, "ugt": a & ~b, "uge": a | ~b,
                              "slt": a & ~b, "sle": a | ~b, "sgt": ~a & b, "sge": ~a | b}.items():
        truths[predicate] = (f"%vis = arith.cmpi {predicate}, %a0, %b0 : i1", result)
    for name, (lines, mask) in truths.items():
        cases[f"i1_{name}"] = ("""%three = arith.constant 3 : index
                                   %a0 = arith.cmpi sge, %i, %j : index
                                   %b0 = arith.cmpi sge, %j, %three : index
                                   """ + lines, mask)
    return cases


def test_other_ops(full):
    cases = narrow_cases()
    assert all(mask.shape == (ROWS, KEYS) and mask.any() for _, mask in cases.values())
    check(cases)
    if full:
        check(cases, raised=False)


DYNAMIC = {
    # The band 0 <= i - j < N, however it is spelled.
    "ult_size": ("%d = arith.subi %i, %j : index\n%vis = arith.cmpi ult, %d, %rows : index", "is_causal",
                 lambda i, j, rows, keys: i >= j),
    # No attribute holds a limit that is a length.
    "ugt_size": ("%d = arith.subi %i, %j : index\n%vis = arith.cmpi ugt, %keys, %d : index", "bias",
                 lambda i, j, rows, keys: (i >= j) & (i - j < keys)),
    "ule_3": ("%d = arith.subi %i, %j : index\n%n = arith.constant 3 : index\n%vis = arith.cmpi ule, %d, %n : index",
              "window = array<i64: 3, -1>", lambda i, j, rows, keys: (i >= j) & (i - j <= 3)),
    "uge_hides": ("""%d = arith.subi %i, %j : index
                     %n = arith.constant 4 : index
                     %h = arith.cmpi uge, %d, %n : index
                     %true = arith.constant true
                     %vis = arith.xori %h, %true : i1""",
                  "window = array<i64: 3, -1>", lambda i, j, rows, keys: (i >= j) & (i - j < 4)),
    "ult_max": (f"%d = arith.subi %i, %j : index\n%n = arith.constant {MAX} : index\n%vis = arith.cmpi ult, %d, %n : index",
                "is_causal", lambda i, j, rows, keys: i >= j),
    "eq": ("%vis = arith.cmpi eq, %i, %j : index", None, lambda i, j, rows, keys: i == j),
    # Never raised to a band: all keys but one, and what may wrap around.
    "ult_minus_one": ("%d = arith.subi %i, %j : index\n%n = arith.constant -1 : index\n%vis = arith.cmpi ult, %d, %n : index",
                      "bias", lambda i, j, rows, keys: i - j != -1),
    "i8": ("""%i8 = arith.index_cast %i : index to i8
              %j8 = arith.index_cast %j : index to i8
              %vis = arith.cmpi sge, %i8, %j8 : i8""", "bias",
           lambda i, j, rows, keys: i.astype(np.int8) >= j.astype(np.int8)),
    "i32": ("""%i32 = arith.index_cast %i : index to i32
               %j32 = arith.index_cast %j : index to i32
               %vis = arith.cmpi sge, %i32, %j32 : i32""", "is_causal", lambda i, j, rows, keys: i >= j),
    "last_positions": (f"""%c = arith.constant {MAX - 4} : index
                           %x = arith.addi %i, %c : index
                           %vis = arith.cmpi sgt, %x, %j : index""", "bias", lambda i, j, rows, keys: i <= 4),
}


def test_dynamic_lengths():
    text = module(function(name, condition, dynamic=True) for name, (condition, _, _) in DYNAMIC.items())
    raised = {part.split("(")[0]: part for part in emit(text, "raised").decode().split("func.func @")[1:]}
    for name, (_, wanted, _) in DYNAMIC.items():
        assert raised[name].count("diffattn.attention") == 1, name
        assert ("bias(" in raised[name]) == (wanted == "bias"), name
        assert wanted in (None, "bias") or wanted in raised[name], name
    executable = Executable(text, cache=False)
    for rows, keys in ((10, 12), (1, 1), (5, 3), (130, 140)):
        i, j = positions(rows, keys)
        arrays = inputs(rows, keys)
        for name, (_, _, mask) in DYNAMIC.items():
            want = reference(mask(i, j, rows, keys), *arrays)
            got = executable.call(name, *arrays)[0]
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{name} {rows} {keys}")


def test_numbers_of_keys_at_the_edges():
    """`kv_len` that is one more or less than a number known at run time, which may be the largest or the least."""
    shifts = {"le": ("sle", "%j", 0), "behind": ("slt", "%p", 2), "before": ("sle", "%p", -2)}
    functions = []
    for name, (predicate, position, shift) in shifts.items():
        text = function(name, f"""%b = linalg.index 0 : index
                                  %n = tensor.extract %len[%b] : tensor<2xi64>
                                  %w = arith.constant {shift} : index
                                  %p = arith.addi %j, %w : index
                                  %x = arith.index_cast {position} : index to i64
                                  %vis = arith.cmpi {predicate}, %x, %n : i64""")
        functions.append(text.replace(f"%v: tensor<2x{KEYS}x4xf32>)", f"%v: tensor<2x{KEYS}x4xf32>, %len: tensor<2xi64>)"))
    text = module(functions)
    assert emit(text, "raised").decode().count("kv_len(") == len(shifts)
    executable = Executable(text, cache=False)
    arrays, (_, j) = inputs(), positions()
    for lengths in ((MAX, MIN), (MAX - 1, MIN + 1), (0, -1), (1, 2), (KEYS - 1, KEYS), (KEYS + 1, KEYS + 5)):
        for name, (predicate, _, shift) in shifts.items():
            # Python's integers do not wrap around.
            visible = {"sle": int.__le__, "slt": int.__lt__}[predicate]
            mask = np.stack([[[visible(int(p) + shift, n) for p in row] for row in j] for n in lengths])
            got = executable.call(name, *arrays, np.array(lengths))[0]
            np.testing.assert_allclose(got, reference(mask, *arrays), rtol=1e-4, atol=1e-5, err_msg=f"{name} {lengths}")


OWN = """%b = linalg.index 0 : index
         %x = tensor.extract %qs[%b, %i] : tensor<2x{q}x{t}>
         %y = tensor.extract %ks[%b, %j] : tensor<2x{k}x{t}>
         """
ONE = """%b = linalg.index 0 : index
         %more = arith.constant {more} : index
         %p = arith.addi %i, %more : index
         %x = tensor.extract %ks[%b, %p] : tensor<2x{k}x{t}>
         %y = tensor.extract %ks[%b, %j] : tensor<2x{k}x{t}>
         """
EQUAL = "%vis = arith.cmpi eq, %x, %y : {t}"
SWAPPED = "%vis = arith.cmpi eq, %y, %x : {t}"
NEGATED = """%other = arith.cmpi ne, %x, %y : {t}
             %true = arith.constant true
             %vis = arith.xori %other, %true : i1"""
CAUSAL = """%same = arith.cmpi eq, %x, %y : {t}
            %last = arith.constant {at} : index
            %end = arith.addi %i, %last : index
            %before = arith.cmpi sle, %j, %end : index
            %vis = arith.andi %before, %same : i1"""
INFINITE, FINITE = "0xFF800000", "-1.0e9"
#: name -> (condition, type of the numbers, fill, what the op gets)
SEGMENTS = {
    "two_tensors": (OWN + EQUAL, "i64", INFINITE, "q_segments"),
    "swapped": (OWN + SWAPPED, "i32", INFINITE, "q_segments"),
    "negated": (OWN + NEGATED, "i64", INFINITE, "q_segments"),
    "two_tensors_finite": (OWN + EQUAL, "i64", FINITE, "bias"),
    "one_tensor": (ONE + EQUAL, "i64", FINITE, "q_segments"),
    "one_tensor_from_the_first": (ONE.replace("{more}", "0") + EQUAL, "i32", FINITE, "q_segments"),
    "one_tensor_between": (ONE.replace("{more}", "1") + EQUAL, "i64", FINITE, "bias"),
    "causal": (ONE + CAUSAL, "i64", FINITE, "q_segments"),
    "causal_with_two_tensors": (OWN + CAUSAL, "i32", INFINITE, "q_segments"),
    "causal_two_tensors_finite": (OWN + CAUSAL, "i64", FINITE, "bias"),
    "causal_that_hides_the_own_key": (ONE + CAUSAL.replace("{at}", "1"), "i64", FINITE, "bias"),
    "other_relation": (OWN + EQUAL.replace("eq", "sle"), "i64", INFINITE, "bias"),
    "short_integers": (OWN + EQUAL, "i8", INFINITE, "bias"),
}


def test_segments():
    more = KEYS - ROWS
    functions = []
    for name, (condition, kind, fill, _) in SEGMENTS.items():
        condition = condition.replace("{more}", str(more)).replace("{at}", str(more)).format(q=ROWS, k=KEYS, t=kind)
        text = function(name, condition).replace("arith.constant 0xFF800000", f"arith.constant {fill}")
        functions.append(text.replace(f"%v: tensor<2x{KEYS}x4xf32>)",
                                      f"%v: tensor<2x{KEYS}x4xf32>, %qs: tensor<2x{ROWS}x{kind}>, %ks: tensor<2x{KEYS}x{kind}>)"))
    text = module(functions)
    raised = {part.split("(")[0]: part for part in emit(text, "raised").decode().split("func.func @")[1:]}
    executable, plain = Executable(text, cache=False), Executable(text, cache=False, raise_attention=False)
    rng, (i, j), arrays = np.random.default_rng(1), positions(), inputs()
    for name, (_, kind, fill, wanted) in SEGMENTS.items():
        assert raised[name].count("diffattn.attention") == 1, name
        for clause in ("q_segments", "bias"):
            assert (f" {clause}(" in raised[name]) == (clause == wanted), (name, clause)
        assert ("is_causal" in raised[name]) == name.startswith("causal") or wanted == "bias", name
        for keys in (rng.integers(0, 3, (2, KEYS)), np.sort(rng.integers(-9, 9, (2, KEYS)), 1), np.arange(2 * KEYS).reshape(2, KEYS)):
            keys = keys.astype(f"int{kind[1:]}")
            for queries in (keys[:, more:], rng.permutation(keys.T)[:ROWS].T.copy()):
                got = executable.call(name, *arrays, np.ascontiguousarray(queries), keys)[0]
                seen = queries[:, :, None] == keys[:, None, :]
                if name == "other_relation":
                    seen = queries[:, :, None] <= keys[:, None, :]
                if name.startswith("one_tensor"):
                    own = {"one_tensor": more, "one_tensor_from_the_first": 0, "one_tensor_between": 1}[name]
                    seen = keys[:, own: own + ROWS, None] == keys[:, None, :]
                if name.startswith("causal"):
                    if "two" not in name:
                        seen = keys[:, more:, None] == keys[:, None, :]
                    seen = seen & (j - i <= (1 if "hides" in name else more))
                want = reference(seen, *arrays)
                if fill == FINITE:  # rows without a key are the graph's own
                    want = np.where(seen.any(-1)[..., None], want, plain.call(name, *arrays, np.ascontiguousarray(queries), keys)[0])
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{name} {queries} {keys}")
