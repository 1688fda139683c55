"""Functions of floats over all of their ranges, on a CPU and on a simulated GPU, against NumPy in f64."""
import math

import ml_dtypes
import numpy as np
import pytest

from diffattn.runtime import Executable

TARGETS = ["cpu", "cuda-sim:sm_80"]
UNARY = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan, "atanh": np.arctanh,
    "cbrt": np.cbrt, "cos": np.cos, "cosh": np.cosh, "erf": np.vectorize(math.erf, otypes=[float]),
    "erfc": np.vectorize(math.erfc, otypes=[float]), "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log,
    "log10": np.log10, "log1p": np.log1p, "log2": np.log2, "rsqrt": lambda x: np.copysign(1 / np.sqrt(np.where(x == 0, 0, x)), x),
    "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
}
BINARY = {"atan2": np.arctan2, "powf": np.power}
TYPES = {np.float32: "f32", np.float16: "f16", ml_dtypes.bfloat16: "bf16"}
#: Both sides of where functions change how they are computed, and of what they give.
EDGES = [0.0, 1e-45, 1e-40, 2.0**-126, 1e-20, 1e-4, 0.4142, 0.5, 0.66, 0.7071, 1.0, 1.5707964, 2.0, 2.4142, 3.0, 10.06, 44.0, 80.0,
         88.72283, 104.0, 126.0, 128.0, 149.0, 2.0**23, 2.0**24, 2.0**30, 2.0**31, 2.0**40, 2.0**50, 2.0**63, 1e30,
         16367173 * 2.0**72, 3.4028235e38, np.inf]


def numbers():
    edges = np.array(EDGES, np.float32)
    with np.errstate(over="ignore"):
        edges = np.concatenate([np.nextafter(edges, np.float32(0)), edges, np.nextafter(edges, np.float32(np.inf)), [np.nan]])
    return np.concatenate([edges, -edges]).astype(np.float32)


def functions(dtype):
    t = f"tensor<?x{TYPES[dtype]}>"
    text = "".join(f"func.func @f_{op}(%x: {t}) -> {t} {{\n  %r = math.{op} %x : {t}\n  return %r : {t}\n}}\n" for op in UNARY)
    text += "".join(f"func.func @f_{op}(%x: {t}, %y: {t}) -> {t} {{\n  %r = math.{op} %x, %y : {t}\n  return %r : {t}\n}}\n" for op in BINARY)
    return text + "".join(f"func.func @f_fpowi_{i}(%x: {t}, %y: tensor<?x{i}>) -> {t} {{\n  %r = math.fpowi %x, %y : {t}, tensor<?x{i}>\n"
                          f"  return %r : {t}\n}}\n" for i in ("i8", "i32", "i64"))


def check(got, want, limit, *operands):
    """`want` in f64. Zeros and infinities have signs."""
    with np.errstate(all="ignore"):
        rounded = want.astype(np.float32).astype(got.dtype).astype(np.float64)
        value = got.astype(np.float64)
        isNumber = ~np.isnan(want)
        wrong = np.isnan(value) == isNumber
        wrong |= isNumber & (np.signbit(value) != np.signbit(want))
        finite = isNumber & np.isfinite(rounded)
        wrong |= isNumber & ~finite & (value != rounded)
        # Half of the smallest number is what rounding may take from any.
        wrong |= finite & ~(np.abs(value - want) <= limit * np.abs(want) + 2.0**-149)
    assert not wrong.any(), [(*(x[k] for x in operands), got[k], rounded[k]) for k in np.flatnonzero(wrong)[:5]]


@pytest.fixture(scope="module", params=TARGETS)
def singles(request):
    return Executable(functions(np.float32), target=request.param, threads=1)


def test_f32(singles):
    rng = np.random.default_rng(0)
    x = np.concatenate([numbers(), rng.integers(0, 2**32, 3000, dtype=np.uint32).view(np.float32),
                        rng.uniform(-4, 4, 1000).astype(np.float32)])
    with np.errstate(all="ignore"):
        for op, f in UNARY.items():
            check(singles.call(f"f_{op}", x)[0], f(x.astype(np.float64)), 6e-7, x)


def test_f32_of_two(singles):
    rng = np.random.default_rng(1)
    x, y = (v.ravel() for v in np.meshgrid(numbers(), numbers()))
    # Powers of every size, where a logarithm in f32 is off by the most.
    base = np.exp(rng.uniform(-80, 80, 3000)).astype(np.float32)
    x = np.concatenate([x, base])
    with np.errstate(all="ignore"):
        y = np.concatenate([y, (rng.uniform(-103, 88, 3000) / np.log(base.astype(np.float64))).astype(np.float32)])
        for op, f in BINARY.items():
            want = f(x.astype(np.float64), y.astype(np.float64))
            # A result that rounds to infinity is large by any measure.
            kept = ~(np.abs(want / 3.4028235e38 - 1) < 1e-6)
            check(singles.call(f"f_{op}", x, y)[0][kept], want[kept], 2e-7, x[kept], y[kept])


def test_integer_powers(singles):
    exponents = np.array([0, 1, -1, 2, 3, -3, 31, -104, 149, 2**24 + 1, -(2**24) - 1, 2**31 - 1, -(2**31), 2**62, 2**53 + 1, -(2**53) - 1])
    bases = np.concatenate([numbers(), np.array([1 + 2.0**-23, 1 - 2.0**-24, -1 - 2.0**-23, 0.1], np.float32)])
    for kind in (np.int8, np.int32, np.int64):
        k = exponents[(exponents >= np.iinfo(kind).min) & (exponents <= np.iinfo(kind).max)].astype(kind)
        x, y = (v.ravel() for v in np.meshgrid(bases, k))
        with np.errstate(all="ignore"):
            size = np.power(np.abs(x.astype(np.float64)), y.astype(np.float64))
        want = np.where(y % 2 == 1, np.copysign(size, x), size)
        kept = ~(np.abs(size / 3.4028235e38 - 1) < 1e-6)
        check(singles.call(f"f_fpowi_i{8 * y.itemsize}", x, y)[0][kept], want[kept], 2e-7, x[kept], y[kept])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("target", TARGETS)
def test_half_precision_is_rounded_once(target, dtype):
    executable = Executable(functions(dtype), target=target, threads=1)
    x = np.arange(0, 2**16, 7, dtype=np.uint16).view(dtype)
    # CPUs may convert to subnormal numbers of bf16 as to 0.
    least = 2.0**-126 if dtype is ml_dtypes.bfloat16 else 0
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        cases = {op: (f(wide), (x,)) for op, f in UNARY.items()}
        cases["fpowi_i32"] = wide**3, (x, np.full(x.shape, 3, np.int32))
        for op, (want, operands) in cases.items():
            got, rounded = executable.call(f"f_{op}", *operands)[0], want.astype(np.float32).astype(dtype)
            assert (np.isnan(got) == np.isnan(rounded)).all(), op
            differs = (got != rounded) & ~np.isnan(rounded) & (np.abs(want) >= least)
            # Results of f32 that are a tie but for an ulp.
            assert differs.sum() <= 5, (op, x[differs][:5], got[differs][:5], rounded[differs][:5])
