"""Upstream ops that importers write: one small graph an op, compiled and compared with NumPy."""
import math

import ml_dtypes
import numpy as np
import pytest

from diffattn.runtime import CompileError, Executable

RNG = np.random.default_rng(7)
A = RNG.standard_normal((3, 4)).astype(np.float32)
B = RNG.standard_normal((3, 4)).astype(np.float32)
POSITIVE = np.abs(A) + np.float32(0.1)
UNIT = np.clip(A / 4, -0.95, 0.95).astype(np.float32)
I = RNG.integers(-50, 50, (3, 4)).astype(np.int64)
J = RNG.integers(1, 9, (3, 4)).astype(np.int64)
TYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32", "bool": "i1",
         "int8": "i8", "int16": "i16"}


def tensor(array):
    return f"tensor<{''.join(f'{n}x' for n in array.shape)}{TYPES[array.dtype.name]}>"


def run(body, inputs, results, prelude=""):
    """Calls a function of `inputs` whose body ends before its return; `results` are (name, NumPy array)."""
    arguments = ", ".join(f"%a{i}: {tensor(x)}" for i, x in enumerate(inputs))
    types = ", ".join(tensor(y) for _, y in results)
    text = (f"{prelude}\nfunc.func @main({arguments}) -> ({types}) {{\n{body}\n"
            f"  return {', '.join(n for n, _ in results)} : {types}\n}}\n")
    got = Executable(text, cache=False).call("main", *inputs)
    for (_, want), value in zip(results, got):
        assert value.dtype == want.dtype and value.shape == want.shape
        if want.dtype.kind in "iub":
            np.testing.assert_array_equal(value, want)
        else:
            coarse = 2e-2 if want.dtype.itemsize == 2 else 3e-6
            np.testing.assert_allclose(value.astype(np.float64), want.astype(np.float64), rtol=coarse, atol=coarse)


def elementwise(op, inputs, result, attribute="", signature=None):
    """The op in the body of a generic."""
    rank = result.ndim
    identity = f"affine_map<({', '.join(f'd{k}' for k in range(rank))}) -> ({', '.join(f'd{k}' for k in range(rank))})>"
    scalars = [TYPES[x.dtype.name] for x in inputs]
    out = TYPES[result.dtype.name]
    shape = ", ".join(f"%x{i}: {t}" for i, t in enumerate(scalars))
    signature = signature or scalars[0]
    body = f"""  %e = tensor.empty() : {tensor(result)}
  %r = linalg.generic {{indexing_maps = [{', '.join([identity] * (len(inputs) + 1))}], iterator_types = [{', '.join(['"parallel"'] * rank)}]}}
      ins({', '.join(f'%a{i}' for i in range(len(inputs)))} : {', '.join(tensor(x) for x in inputs)}) outs(%e : {tensor(result)}) {{
  ^bb0({shape}, %o: {out}):
    %y = {op} {attribute}{', '.join(f'%x{i}' for i in range(len(inputs)))} : {signature}
    linalg.yield %y : {out}
  }} -> {tensor(result)}"""
    run(body, inputs, [("%r", result)])


erf = np.vectorize(math.erf)
UNARY = {
    "math.absf": (A, np.abs), "math.acos": (UNIT, np.arccos), "math.acosh": (POSITIVE + 1, np.arccosh),
    "math.asin": (UNIT, np.arcsin), "math.asinh": (A, np.arcsinh), "math.atan": (A, np.arctan), "math.atanh": (UNIT, np.arctanh),
    "math.cbrt": (A, np.cbrt), "math.ceil": (A, np.ceil), "math.cos": (A, np.cos), "math.cosh": (A, np.cosh), "math.erf": (A, erf),
    "math.erfc": (A, lambda x: 1 - erf(x)), "math.exp": (A, np.exp), "math.exp2": (A, np.exp2), "math.expm1": (A, np.expm1),
    "math.floor": (A, np.floor), "math.log": (POSITIVE, np.log), "math.log10": (POSITIVE, np.log10), "math.log1p": (POSITIVE, np.log1p),
    "math.log2": (POSITIVE, np.log2), "math.round": (A, lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5)),
    "math.roundeven": (A, np.round), "math.rsqrt": (POSITIVE, lambda x: 1 / np.sqrt(x)), "math.sin": (A, np.sin),
    "math.sinh": (A, np.sinh), "math.sqrt": (POSITIVE, np.sqrt), "math.tan": (A, np.tan), "math.tanh": (A, np.tanh),
    "math.trunc": (A, np.trunc), "arith.negf": (A, np.negative),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op", UNARY)
def test_unary(op, dtype):
    x, f = UNARY[op]
    x = x.astype(dtype)
    elementwise(op, [x], np.asarray(f(x.astype(np.float64))).astype(dtype))


BINARY = [
    ("arith.addf", (A, B), np.add), ("arith.subf", (A, B), np.subtract), ("arith.mulf", (A, B), np.multiply),
    ("arith.divf", (A, POSITIVE), np.divide), ("arith.remf", (A, POSITIVE), np.fmod), ("arith.maximumf", (A, B), np.maximum),
    ("arith.minimumf", (A, B), np.minimum), ("arith.maxnumf", (A, B), np.fmax), ("arith.minnumf", (A, B), np.fmin),
    ("math.atan2", (A, B), np.arctan2), ("math.copysign", (A, B), np.copysign), ("math.powf", (POSITIVE, B), np.power),
    ("arith.addi", (I, J), np.add), ("arith.subi", (I, J), np.subtract), ("arith.muli", (I, J), np.multiply),
    ("arith.divsi", (I, J), lambda x, y: np.trunc(x / y).astype(np.int64)), ("arith.floordivsi", (I, J), np.floor_divide),
    ("arith.ceildivsi", (I, J), lambda x, y: -(-x // y)), ("arith.remsi", (I, J), np.fmod), ("arith.maxsi", (I, J), np.maximum),
    ("arith.minsi", (I, J), np.minimum), ("arith.andi", (I, J), np.bitwise_and), ("arith.ori", (I, J), np.bitwise_or),
    ("arith.xori", (I, J), np.bitwise_xor), ("arith.shli", (J, J), np.left_shift), ("arith.shrsi", (I, J), np.right_shift),
    ("arith.divui", (J, J), np.floor_divide), ("arith.remui", (J, J), np.remainder), ("arith.maxui", (J, J), np.maximum),
    ("arith.minui", (J, J), np.minimum), ("arith.shrui", (J, J), np.right_shift),         ("arith.ceildivui", (J, J), lambda x, y: -(-x // y)),
]
CASTS = [
    ("math.fma", (A, B, A), lambda x, y, z: x * y + z, "f32"), ("arith.select", (A > 0, A, B), np.where, "f32"),
    ("math.fpowi", (A, np.full((3, 4), 3, np.int32)), lambda x, y: x ** 3, "f32, i32"),
    ("math.isnan", (np.where(A > 0, A, np.nan).astype(np.float32),), np.isnan, "f32"),
    ("math.isinf", (np.where(A > 0, A, np.inf).astype(np.float32),), np.isinf, "f32"),
    ("math.isfinite", (np.where(A > 0, A, np.inf).astype(np.float32),), np.isfinite, "f32"),
    ("math.isnormal", (A,), lambda x: np.ones_like(x, bool), "f32"),
    ("math.absi", (I,), np.abs, "i64"), ("math.ctpop", (J,), lambda x: np.vectorize(lambda v: bin(v).count("1"))(x), "i64"),
    ("math.ctlz", (J,), lambda x: np.vectorize(lambda v: 64 - int(v).bit_length())(x), "i64"),
    ("math.cttz", (J,), lambda x: np.vectorize(lambda v: (int(v) & -int(v)).bit_length() - 1)(x), "i64"),
    ("arith.extf", (A,), lambda x: x.astype(np.float64), "f32 to f64"), ("arith.truncf", (A,), lambda x: x.astype(np.float16), "f32 to f16"),
    ("arith.truncf", (A,), lambda x: x.astype(ml_dtypes.bfloat16), "f32 to bf16"),
    ("arith.extf", (A.astype(ml_dtypes.bfloat16),), lambda x: x.astype(np.float32), "bf16 to f32"),
    ("arith.sitofp", (I,), lambda x: x.astype(np.float32), "i64 to f32"), ("arith.uitofp", (J,), lambda x: x.astype(np.float32), "i64 to f32"),
    ("arith.fptosi", (A * 9,), lambda x: x.astype(np.int64), "f32 to i64"), ("arith.fptoui", (POSITIVE * 9,), lambda x: x.astype(np.int64), "f32 to i64"),
    ("arith.uitofp", (A > 0,), lambda x: x.astype(np.float32), "i1 to f32"), ("arith.extsi", (I.astype(np.int32),), lambda x: x.astype(np.int64), "i32 to i64"),
    ("arith.extui", (A > 0,), lambda x: x.astype(np.int64), "i1 to i64"), ("arith.trunci", (I,), lambda x: x.astype(np.int32), "i64 to i32"),
    ("arith.trunci", (I,), lambda x: x.astype(np.int8), "i64 to i8"), ("arith.bitcast", (A,), lambda x: x.view(np.int32), "f32 to i32"),
    ("arith.sitofp", (I,), lambda x: x.astype(np.float16), "i64 to f16"),
]


@pytest.mark.parametrize("op, inputs, f", BINARY, ids=[case[0] for case in BINARY])
def test_binary(op, inputs, f):
    elementwise(op, list(inputs), np.asarray(f(*inputs)).astype(inputs[0].dtype))


@pytest.mark.parametrize("op, inputs, f, signature", CASTS, ids=[f"{case[0]}-{case[3]}" for case in CASTS])
def test_other_signatures(op, inputs, f, signature):
    elementwise(op, list(inputs), np.asarray(f(*inputs)), signature=signature)


def S(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


M, N = S(5, 6), S(6, 7)
V = S(6)
X3, Y3 = S(2, 5, 6), S(2, 6, 7)
IMG, KER = S(1, 2, 8, 8), S(3, 2, 3, 3)


def conv(x, w):
    n, _, h, ww = x.shape
    f, _, kh, kw = w.shape
    y = np.zeros((n, f, h - kh + 1, ww - kw + 1), np.float32)
    for i in range(y.shape[2]):
        for j in range(y.shape[3]):
            y[:, :, i, j] = np.einsum("nchw,fchw->nf", x[:, :, i:i + kh, j:j + kw], w)
    return y


Z = "%z = arith.constant 0.0 : f32\n"


def filled(shape, t="f32"):
    return f"%e = tensor.empty() : tensor<{shape}x{t}>\n%f = linalg.fill ins(%z : {t}) outs(%e : tensor<{shape}x{t}>) -> tensor<{shape}x{t}>\n"


#: Body, inputs, result.
OPS = {
    "matmul": (Z + filled("5x7") + "%r = linalg.matmul ins(%a0, %a1 : tensor<5x6xf32>, tensor<6x7xf32>) outs(%f : tensor<5x7xf32>) -> tensor<5x7xf32>", [M, N], M @ N),
    "matmul_tb": (Z + filled("5x7") + "%r = linalg.matmul indexing_maps = [affine_map<(d0,d1,d2)->(d0,d2)>, affine_map<(d0,d1,d2)->(d1,d2)>, affine_map<(d0,d1,d2)->(d0,d1)>] ins(%a0, %a1 : tensor<5x6xf32>, tensor<7x6xf32>) outs(%f : tensor<5x7xf32>) -> tensor<5x7xf32>", [M, np.ascontiguousarray(N.T)], M @ N),
    "matmul_ta": (Z + filled("5x7") + "%r = linalg.matmul indexing_maps = [affine_map<(d0,d1,d2)->(d2,d0)>, affine_map<(d0,d1,d2)->(d2,d1)>, affine_map<(d0,d1,d2)->(d0,d1)>] ins(%a0, %a1 : tensor<6x5xf32>, tensor<6x7xf32>) outs(%f : tensor<5x7xf32>) -> tensor<5x7xf32>", [np.ascontiguousarray(M.T), N], M @ N),
    "batch_matmul": (Z + filled("2x5x7") + "%r = linalg.batch_matmul ins(%a0, %a1 : tensor<2x5x6xf32>, tensor<2x6x7xf32>) outs(%f : tensor<2x5x7xf32>) -> tensor<2x5x7xf32>", [X3, Y3], X3 @ Y3),
    "batch_matmul_tb": (Z + filled("2x5x7") + "%r = linalg.batch_matmul indexing_maps = [affine_map<(b,d0,d1,d2)->(b,d0,d2)>, affine_map<(b,d0,d1,d2)->(b,d1,d2)>, affine_map<(b,d0,d1,d2)->(b,d0,d1)>] ins(%a0, %a1 : tensor<2x5x6xf32>, tensor<2x7x6xf32>) outs(%f : tensor<2x5x7xf32>) -> tensor<2x5x7xf32>", [X3, np.ascontiguousarray(Y3.transpose(0, 2, 1))], X3 @ Y3),
    "batch_reduce_matmul": (Z + filled("5x7") + "%r = linalg.batch_reduce_matmul ins(%a0, %a1 : tensor<2x5x6xf32>, tensor<2x6x7xf32>) outs(%f : tensor<5x7xf32>) -> tensor<5x7xf32>", [X3, Y3], (X3 @ Y3).sum(0)),
    "contract": (Z + filled("2x5x7") + "%r = linalg.contract indexing_maps = [affine_map<(b,i,j,k)->(b,i,k)>, affine_map<(b,i,j,k)->(b,k,j)>, affine_map<(b,i,j,k)->(b,i,j)>] ins(%a0, %a1 : tensor<2x5x6xf32>, tensor<2x6x7xf32>) outs(%f : tensor<2x5x7xf32>) -> tensor<2x5x7xf32>", [X3, Y3], X3 @ Y3),
    "matvec": (Z + filled("5") + "%r = linalg.matvec ins(%a0, %a1 : tensor<5x6xf32>, tensor<6xf32>) outs(%f : tensor<5xf32>) -> tensor<5xf32>", [M, V], M @ V),
    "vecmat": (Z + filled("7") + "%r = linalg.vecmat ins(%a0, %a1 : tensor<6xf32>, tensor<6x7xf32>) outs(%f : tensor<7xf32>) -> tensor<7xf32>", [V, N], V @ N),
    "batch_matvec": (Z + filled("2x5") + "%r = linalg.batch_matvec ins(%a0, %a1 : tensor<2x5x6xf32>, tensor<2x6xf32>) outs(%f : tensor<2x5xf32>) -> tensor<2x5xf32>", [X3, Y3[:, :, 0].copy()], np.einsum("bij,bj->bi", X3, Y3[:, :, 0])),
    "batch_vecmat": (Z + filled("2x7") + "%r = linalg.batch_vecmat ins(%a0, %a1 : tensor<2x6xf32>, tensor<2x6x7xf32>) outs(%f : tensor<2x7xf32>) -> tensor<2x7xf32>", [X3[:, 0].copy(), Y3], np.einsum("bj,bjk->bk", X3[:, 0], Y3)),
    "dot": (Z + "%e = tensor.empty() : tensor<f32>\n%f = linalg.fill ins(%z : f32) outs(%e : tensor<f32>) -> tensor<f32>\n%r = linalg.dot ins(%a0, %a1 : tensor<6xf32>, tensor<6xf32>) outs(%f : tensor<f32>) -> tensor<f32>", [V, V], np.asarray(V @ V)),
    "softmax": ("%e = tensor.empty() : tensor<3x4xf32>\n%r = linalg.softmax dimension(1) ins(%a0 : tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>", [A], np.exp(A) / np.exp(A).sum(1, keepdims=True)),
    "reduce": (Z + filled("3") + "%r = linalg.reduce ins(%a0 : tensor<3x4xf32>) outs(%f : tensor<3xf32>) dimensions = [1] (%x: f32, %y: f32) { %s = arith.addf %x, %y : f32 linalg.yield %s : f32 }", [A], A.sum(1)),
    "map": ("%e = tensor.empty() : tensor<3x4xf32>\n%r = linalg.map { math.exp } ins(%a0 : tensor<3x4xf32>) outs(%e : tensor<3x4xf32>)", [A], np.exp(A)),
    "broadcast": ("%e = tensor.empty() : tensor<6x5xf32>\n%r = linalg.broadcast ins(%a0 : tensor<6xf32>) outs(%e : tensor<6x5xf32>) dimensions = [1]", [V], np.repeat(V[:, None], 5, 1)),
    "transpose": ("%e = tensor.empty() : tensor<4x3xf32>\n%r = linalg.transpose ins(%a0 : tensor<3x4xf32>) outs(%e : tensor<4x3xf32>) permutation = [1, 0]", [A], A.T.copy()),
    "copy": ("%e = tensor.empty() : tensor<3x4xf32>\n%r = linalg.copy ins(%a0 : tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>", [A], A),
    "conv_2d_nchw_fchw": (Z + filled("1x3x6x6") + "%r = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>} ins(%a0, %a1 : tensor<1x2x8x8xf32>, tensor<3x2x3x3xf32>) outs(%f : tensor<1x3x6x6xf32>) -> tensor<1x3x6x6xf32>", [IMG, KER], conv(IMG, KER)),
    "pooling_nchw_max": ("%z = arith.constant -1.0e30 : f32\n" + filled("1x2x4x4") + "%w = tensor.empty() : tensor<2x2xf32>\n%r = linalg.pooling_nchw_max {dilations = dense<1> : vector<2xi64>, strides = dense<2> : vector<2xi64>} ins(%a0, %w : tensor<1x2x8x8xf32>, tensor<2x2xf32>) outs(%f : tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>", [IMG], IMG.reshape(1, 2, 4, 2, 4, 2).max((3, 5))),
    "depthwise_conv": (Z + filled("1x6x6x2") + "%r = linalg.depthwise_conv_2d_nhwc_hwc {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>} ins(%a0, %a1 : tensor<1x8x8x2xf32>, tensor<3x3x2xf32>) outs(%f : tensor<1x6x6x2xf32>) -> tensor<1x6x6x2xf32>", [S(1, 8, 8, 2), S(3, 3, 2)], None),
    "exp_named": ("%e = tensor.empty() : tensor<3x4xf32>\n%r = linalg.exp ins(%a0 : tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>", [A], np.exp(A)),
    "add_named": ("%e = tensor.empty() : tensor<3x4xf32>\n%r = linalg.add ins(%a0, %a1 : tensor<3x4xf32>, tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>", [A, B], A + B),
    "select_named": ("%e = tensor.empty() : tensor<3x4xf32>\n%r = linalg.select ins(%a0, %a1, %a2 : tensor<3x4xi1>, tensor<3x4xf32>, tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>", [A > 0, A, B], np.where(A > 0, A, B)),
    "elementwise": ("%e = tensor.empty() : tensor<3x4xf32>\n%r = linalg.elementwise kind=#linalg.elementwise_kind<mul> ins(%a0, %a1 : tensor<3x4xf32>, tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>", [A, B], A * B),
    "mmt4d": (Z + filled("2x3x4x5") + "%r = linalg.mmt4d ins(%a0, %a1 : tensor<2x2x4x3xf32>, tensor<3x2x5x3xf32>) outs(%f : tensor<2x3x4x5xf32>) -> tensor<2x3x4x5xf32>", [S(2, 2, 4, 3), S(3, 2, 5, 3)], None),
    "pack": ("%e = tensor.empty() : tensor<2x2x2x3xf32>\n%r = linalg.pack %a0 inner_dims_pos = [0, 1] inner_tiles = [2, 3] into %e : tensor<4x6xf32> -> tensor<2x2x2x3xf32>", [M[:4].copy()], M[:4].reshape(2, 2, 2, 3).transpose(0, 2, 1, 3).copy()),
    "arith_on_tensors": ("%s = arith.addf %a0, %a1 : tensor<3x4xf32>\n%t = math.exp %s : tensor<3x4xf32>\n%c = arith.cmpf ogt, %a0, %a1 : tensor<3x4xf32>\n%r = arith.select %c, %t, %a0 : tensor<3x4xi1>, tensor<3x4xf32>", [A, B], np.where(A > B, np.exp(A + B), A)),
    "pad": ("%z = arith.constant 1.5 : f32\n%r = tensor.pad %a0 low[1, 0] high[0, 2] { ^bb0(%i: index, %j: index): tensor.yield %z : f32 } : tensor<3x4xf32> to tensor<4x6xf32>", [A], np.pad(A, ((1, 0), (0, 2)), constant_values=1.5)),
    "concat": ("%r = tensor.concat dim(1) %a0, %a1 : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x8xf32>", [A, B], np.concatenate([A, B], 1)),
    "gather_i": ("%r = tensor.gather %a0[%a1] gather_dims([0]) : (tensor<5x6xf32>, tensor<3x1xi64>) -> tensor<3x1x6xf32>", [M, np.array([[4], [0], [2]])], M[[4, 0, 2]][:, None]),
    "gather_d": ("%r = tensor.gather %a0[%a1] gather_dims([0]) : (tensor<5x6xf32>, tensor<3x1xi64>) -> tensor<3x6xf32>", [M, np.array([[4], [0], [2]])], M[[4, 0, 2]]),
    "scatter": ("%r = tensor.scatter %a0 into %a1[%a2] scatter_dims([0]) unique : (tensor<3x1x6xf32>, tensor<5x6xf32>, tensor<3x1xi64>) -> tensor<5x6xf32>", [S(3, 1, 6), M, np.array([[4], [0], [2]])], None),
    "insert": ("%c = arith.constant 1 : index\n%s = arith.constant 9.0 : f32\n%r = tensor.insert %s into %a0[%c, %c] : tensor<3x4xf32>", [A], None),
    "extract": ("%c = arith.constant 1 : index\n%s = tensor.extract %a0[%c, %c] : tensor<3x4xf32>\n%r = tensor.from_elements %s, %s : tensor<2xf32>", [A], np.array([A[1, 1]] * 2)),
    "reshape": ("%s = arith.constant dense<[2, 6]> : tensor<2xi64>\n%r = tensor.reshape %a0(%s) : (tensor<3x4xf32>, tensor<2xi64>) -> tensor<2x6xf32>", [A], A.reshape(2, 6)),
    "generate": ("%r = tensor.generate { ^bb0(%i: index, %j: index): %k = arith.addi %i, %j : index\n %l = arith.index_cast %k : index to i64\n tensor.yield %l : i64 } : tensor<3x4xi64>", [], np.add.outer(np.arange(3), np.arange(4))),
    "splat": ("%s = arith.constant 2.5 : f32\n%r = tensor.splat %s : tensor<3x4xf32>", [], np.full((3, 4), 2.5, np.float32)),
    "insert_slice": ("%r = tensor.insert_slice %a0 into %a1[1, 1] [3, 4] [1, 1] : tensor<3x4xf32> into tensor<5x6xf32>", [A, M], None),
    "extract_slice": ("%r = tensor.extract_slice %a0[0, 1] [2, 2] [2, 2] : tensor<5x6xf32> to tensor<2x2xf32>", [M], M[0:3:2, 1:4:2].copy()),
    "parallel_insert": ("%c0 = arith.constant 0 : index\n%r = scf.forall (%i) in (3) shared_outs(%o = %a0) -> (tensor<3x4xf32>) { %s = tensor.extract_slice %a1[%i, 0] [1, 4] [1, 1] : tensor<3x4xf32> to tensor<1x4xf32>\n scf.forall.in_parallel { tensor.parallel_insert_slice %s into %o[%i, 0] [1, 4] [1, 1] : tensor<1x4xf32> into tensor<3x4xf32> } }", [A, B], B),
    "bitcast": ("%r = tensor.bitcast %a0 : tensor<3x4xi32> to tensor<3x4xi32>", [I.astype(np.int32)], I.astype(np.int32)),
    "rank": ("%k = tensor.rank %a0 : tensor<3x4xf32>\n%i = arith.index_cast %k : index to i64\n%r = tensor.from_elements %i : tensor<1xi64>", [A], np.array([2])),
    "dim": ("%c = arith.constant 1 : index\n%k = tensor.dim %a0, %c : tensor<3x4xf32>\n%i = arith.index_cast %k : index to i64\n%r = tensor.from_elements %i : tensor<1xi64>", [A], np.array([4])),
    "scf_if": ("%c = arith.constant 0 : index\n%s = tensor.extract %a0[%c, %c] : tensor<3x4xf32>\n%z = arith.constant 0.0 : f32\n%b = arith.cmpf ogt, %s, %z : f32\n%r = scf.if %b -> tensor<3x4xf32> { scf.yield %a0 : tensor<3x4xf32> } else { scf.yield %a1 : tensor<3x4xf32> }", [A, B], A if A[0, 0] > 0 else B),
    "scf_for": ("%c0 = arith.constant 0 : index\n%c1 = arith.constant 1 : index\n%c3 = arith.constant 3 : index\n%r = scf.for %i = %c0 to %c3 step %c1 iter_args(%t = %a0) -> tensor<3x4xf32> { %s = arith.addf %t, %a1 : tensor<3x4xf32>\n scf.yield %s : tensor<3x4xf32> }", [A, B], A + 3 * B),
    "scf_while": ("%c0 = arith.constant 0 : i64\n%c1 = arith.constant 1 : i64\n%c4 = arith.constant 4 : i64\n%q:2 = scf.while (%i = %c0, %t = %a0) : (i64, tensor<3x4xf32>) -> (i64, tensor<3x4xf32>) { %b = arith.cmpi slt, %i, %c4 : i64\n scf.condition(%b) %i, %t : i64, tensor<3x4xf32> } do { ^bb0(%i: i64, %t: tensor<3x4xf32>): %j = arith.addi %i, %c1 : i64\n %s = arith.addf %t, %a1 : tensor<3x4xf32>\n scf.yield %j, %s : i64, tensor<3x4xf32> }\n%r = tensor.cast %q#1 : tensor<3x4xf32> to tensor<3x4xf32>", [A, B], A + 4 * B),
    "scf_index_switch": ("%c = arith.constant 1 : index\n%r = scf.index_switch %c -> tensor<3x4xf32>\ncase 1 { scf.yield %a0 : tensor<3x4xf32> }\ndefault { scf.yield %a1 : tensor<3x4xf32> }", [A, B], A),
    "cf_assert": ("%t = arith.constant true\ncf.assert %t, \"never\"\n%r = tensor.cast %a0 : tensor<3x4xf32> to tensor<3x4xf32>", [A], A),
    "dense_resource_f16": ("%k = arith.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf16>\n%r = arith.addf %k, %a0 : tensor<4xf16>", [A[0].astype(np.float16)], A[0].astype(np.float16) + np.array([1, 2, 3, 4], np.float16)),
    "argmax": ("%k = arith.constant 0 : i64\n%e = tensor.empty() : tensor<3xi64>\n%f = linalg.fill ins(%k : i64) outs(%e : tensor<3xi64>) -> tensor<3xi64>\n%m = arith.constant 0xFF800000 : f32\n%g = tensor.empty() : tensor<3xf32>\n%h = linalg.fill ins(%m : f32) outs(%g : tensor<3xf32>) -> tensor<3xf32>\n%q:2 = linalg.generic {indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(i)>, affine_map<(i,j)->(i)>], iterator_types=[\"parallel\",\"reduction\"]} ins(%a0 : tensor<3x4xf32>) outs(%h, %f : tensor<3xf32>, tensor<3xi64>) { ^bb0(%x: f32, %o: f32, %p: i64): %i = linalg.index 1 : index\n %c = arith.index_cast %i : index to i64\n %y = arith.maximumf %x, %o : f32\n %b = arith.cmpf ogt, %x, %o : f32\n %s = arith.select %b, %c, %p : i64\n linalg.yield %y, %s : f32, i64 } -> (tensor<3xf32>, tensor<3xi64>)\n%r = tensor.cast %q#1 : tensor<3xi64> to tensor<3xi64>", [A], A.argmax(1)),
}
X = OPS["depthwise_conv"][1]; y = np.zeros((1, 6, 6, 2), np.float32)
for i in range(6):
    for j in range(6): y[0, i, j] = (X[0][0, i:i + 3, j:j + 3] * X[1]).sum((0, 1))
OPS["depthwise_conv"] = OPS["depthwise_conv"][:2] + (y,)
X = OPS["mmt4d"][1]; OPS["mmt4d"] = OPS["mmt4d"][:2] + (np.einsum("abij,cbkj->acik", *X),)
X = OPS["scatter"][1]; y = X[1].copy(); y[[4, 0, 2]] = X[0][:, 0]; OPS["scatter"] = OPS["scatter"][:2] + (y,)
y = A.copy(); y[1, 1] = 9; OPS["insert"] = OPS["insert"][:2] + (y,)
y = M.copy(); y[1:4, 1:5] = A; OPS["insert_slice"] = OPS["insert_slice"][:2] + (y,)
@pytest.mark.parametrize("name", OPS)
def test_op(name):
    body, inputs, want = OPS[name]
    run(body, inputs, [("%r", want)])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["cpu", "cpu:avx2", "cpu:generic", "cuda-sim:sm_80"])
@pytest.mark.parametrize("op, reduce", [("maxnumf", np.fmax.reduce), ("minnumf", np.fmin.reduce), ("maximumf", np.maximum.reduce),
                                        ("minimumf", np.minimum.reduce)])
def test_reductions_to_an_extreme(op, reduce, target):
    """Rows of every small number of elements, some of them NaN or infinite, reduced from NaN and from a number."""
    for start in ("0x7FC00000", "0x00000000"):
        for length in (1, 4, 5, 6, 7, 9) if target.startswith("cuda") else (1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33, 70):
            text = f"""func.func @f(%x: tensor<9x{length}xf32>) -> tensor<9xf32> {{
  %c = arith.constant {start} : f32
  %e = tensor.empty() : tensor<9xf32>
  %i = linalg.fill ins(%c : f32) outs(%e : tensor<9xf32>) -> tensor<9xf32>
  %r = linalg.generic {{indexing_maps = [affine_map<(a, b) -> (a, b)>, affine_map<(a, b) -> (a)>], iterator_types = ["parallel", "reduction"]}}
      ins(%x : tensor<9x{length}xf32>) outs(%i : tensor<9xf32>) {{
  ^bb0(%p: f32, %q: f32):
    %m = arith.{op} %p, %q : f32
    linalg.yield %m : f32
  }} -> tensor<9xf32>
  return %r : tensor<9xf32>
}}"""
            code = Executable(text, target=target, cache=False)
            for odd in (None, -np.inf, np.nan, np.float32(-3.4e38)):
                x = RNG.standard_normal((9, length)).astype(np.float32)
                if odd is not None:
                    x[RNG.random(x.shape) < 0.5] = odd
                first = np.full((9, 1), np.array(int(start, 16), np.uint32).view(np.float32))
                got, = code.call("f", x)
                np.testing.assert_array_equal(got, reduce(np.concatenate([first, x], 1), axis=1), f"{length} {odd}")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", ["cpu", "cpu:avx2", "cpu:generic", "cuda-sim:sm_80"])
@pytest.mark.parametrize("shape, axes", [((70001,), (0,)), ((3, 9000), (1,)), ((300, 70), (0, 1)), ((70001, 3), (0,)), ((600, 4100), (0,)), ((2, 5000, 7), (1,)),
                                         ((40, 9, 65, 6), (0, 1)), ((2, 600, 5, 6), (1,)), ((513, 2, 2100), (0,)), ((8, 4, 16, 16), (0, 2, 3)), ((3, 600, 40), (0, 2))], ids=str)
def test_long_sums_keep_their_digits(shape, axes, target):
    """Equal terms, which one chain of additions would all round alike; and small integers, whose sum is exact."""
    if target.startswith("cuda") and np.prod(shape) > 1e6:
        shape = tuple(min(n, 601) for n in shape)
    loops = [f"d{i}" for i in range(len(shape))]
    kept = [n for i, n in enumerate(loops) if i not in axes]
    result = "".join(f"{n}x" for i, n in enumerate(shape) if i not in axes) + "f32"
    kinds = ", ".join('"reduction"' if i in axes else '"parallel"' for i in range(len(shape)))
    for size in (str, lambda n: "?"):  # known and not
        given = f"tensor<{'x'.join(map(size, shape))}xf32>"
        code = Executable(f"""func.func @f(%x: {given}, %i: tensor<{result}>) -> (tensor<{result}>, tensor<{result}>) {{
  %r:2 = linalg.generic {{indexing_maps = [affine_map<({", ".join(loops)}) -> ({", ".join(loops)})>, affine_map<({", ".join(loops)}) -> ({", ".join(kept)})>,
                          affine_map<({", ".join(loops)}) -> ({", ".join(kept)})>], iterator_types = [{kinds}]}}
      ins(%x : {given}) outs(%i, %i : tensor<{result}>, tensor<{result}>) {{
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    %p = arith.mulf %a, %a : f32
    %t = arith.addf %c, %p : f32
    linalg.yield %s, %t : f32, f32
  }} -> (tensor<{result}>, tensor<{result}>)
  return %r#0, %r#1 : tensor<{result}>, tensor<{result}>
}}""", target=target, cache=False)
        start = np.zeros([n for i, n in enumerate(shape) if i not in axes], np.float32)
        x = np.full(shape, 0.7, np.float32)
        for got, want in zip(code.call("f", x, start), (x.astype(np.float64), x.astype(np.float64) ** 2)):
            np.testing.assert_allclose(got, want.sum(axes), rtol=4e-5)
        x = RNG.integers(-3, 4, shape).astype(np.float32)
        for got, want in zip(code.call("f", x, start + 1), (x, x * x)):
            np.testing.assert_array_equal(got, want.sum(axes) + 1)
        assert np.signbit(code.call("f", -np.zeros(shape, np.float32), -start)[0]).all()


@pytest.mark.parametrize("length", [1, 3, 5, 6, 33])
def test_softmax_of_rows_with_infinite_scores(length):
    x = RNG.standard_normal((4, length, 1, 1)).astype(np.float32)
    x[1, : length - 1] = -np.inf
    powers = np.exp(x - x.max(1, keepdims=True))
    run(f"""  %e = tensor.empty() : {tensor(x)}
  %r = linalg.softmax dimension(1) ins(%a0 : {tensor(x)}) outs(%e : {tensor(x)}) -> {tensor(x)}""", [x], [("%r", powers / powers.sum(1, keepdims=True))])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("along", [0, 1])
def test_softmax_of_buffers(dtype, along):
    """In place, too; 16-bit numbers are summed up in f32."""
    x = RNG.standard_normal((4, 700)).astype(dtype)
    view = f"memref<?x?x{TYPES[x.dtype.name]}, strided<[?, 1]>>"
    code = Executable(f"""func.func @f(%x: {view}, %y: {view}) {{
  linalg.softmax dimension({along}) ins(%x : {view}) outs(%y : {view})
  linalg.softmax dimension({along}) ins(%x : {view}) outs(%x : {view})
  return
}}""", cache=False)
    powers = np.exp(x.astype(np.float64) - x.max(along, keepdims=True))
    y = np.zeros_like(x)
    code.call("f", x, y)
    for got in (x, y):
        np.testing.assert_allclose(got, powers / powers.sum(along, keepdims=True), rtol=4 * np.finfo(dtype).eps, atol=1e-7)


def test_clones_of_strided_buffers():
    """Clones as upstream's deallocation of buffers makes them."""
    code = Executable("""func.func @f(%x: memref<?x4xf32, strided<[?, ?], offset: ?>>) -> memref<?x4xf32> {
  %c = bufferization.clone %x : memref<?x4xf32, strided<[?, ?], offset: ?>> to memref<?x4xf32>
  return %c : memref<?x4xf32>
}""", cache=False)
    x = RNG.standard_normal((6, 12)).astype(np.float32)[::2, ::3]
    got, = code.call("f", x)
    np.testing.assert_array_equal(got, x)


def test_functions_that_are_nowhere_are_named():
    with pytest.raises(CompileError, match="that the module, the runtime or the C library has, but the code calls '(printF32|printNewline)', '") as error:
        Executable("func.func @f(%x: f32) {\n  vector.print %x : f32\n  return\n}", cache=False)
    assert "'printF32'" in str(error.value) and "'printNewline'" in str(error.value)


def test_op_without_a_lowering_is_named():
    with pytest.raises(CompileError, match="math.ipowi"):
        elementwise("math.ipowi", [I, J], I)


RESOURCES = """
ml_program.global private @global(dense_resource<one> : tensor<f32>) : tensor<f32>
func.func @f() -> (tensor<2x0xf32>, tensor<f32>, tensor<f16>, tensor<i64>, tensor<2x2xi1>, tensor<2xf32>, tensor<0xi1>, tensor<f32>, f32) {
  %global = ml_program.global_load_const @global : tensor<f32>
  %none = arith.constant dense_resource<none> : tensor<2x0xf32>
  %one = arith.constant dense_resource<one> : tensor<f32>
  %half = arith.constant dense_resource<half> : tensor<f16>
  %number = arith.constant dense_resource<number> : tensor<i64>
  %bits = arith.constant dense_resource<bits> : tensor<2x2xi1>
  %pair = arith.constant dense_resource<pair> : tensor<2xf32>
  %no_bits = arith.constant dense_resource<none> : tensor<0xi1>
  %at = arith.constant 1 : index
  %second = tensor.extract %pair[%at] : tensor<2xf32>
  return %none, %one, %half, %number, %bits, %pair, %no_bits, %global, %second
    : tensor<2x0xf32>, tensor<f32>, tensor<f16>, tensor<i64>, tensor<2x2xi1>, tensor<2xf32>, tensor<0xi1>, tensor<f32>, f32
}
{-# dialect_resources: { builtin: {
  none: "0x04000000", one: "0x040000000000C03F", half: "0x02000000003E", number: "0x08000000FEFFFFFFFFFFFFFF", bits: "0x0100000001000001",
  pair: "0x040000000000803F00000040" } } #-}
"""


@pytest.mark.parametrize("target", ["cpu", "cuda-sim:sm_80"])
def test_constants_that_are_resources(target):
    """Without elements, of rank 0, of bits and those that folders read, on which upstream crashes or gives up."""
    got = Executable(RESOURCES, target=target, cache=False).call("f")
    want = [np.ones((2, 0), np.float32), np.float32(1.5), np.float16(1.5), np.int64(-2), np.array([[True, False], [False, True]]),
            np.array([1, 2], np.float32), np.ones(0, bool), np.float32(1.5), np.float32(2)]
    for value, expected in zip(got, want, strict=True):
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(value, expected)


def test_resources_of_a_wrong_size():
    with pytest.raises(CompileError, match="expected 4 bytes in the resource 'one' of 'tensor<f32>', but got 2"):
        Executable(RESOURCES.replace("0x040000000000C03F", "0x02000000C03F"), cache=False)
