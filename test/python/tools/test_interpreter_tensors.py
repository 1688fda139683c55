"""linalg, tensor, scf and func ops of the interpreter against NumPy, with dynamic sizes."""
import numpy as np
import pytest

from interpreter import Interpreter

RANDOM = np.random.default_rng(0)


def f32(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def i64(*shape, below=10):
    return RANDOM.integers(-below, below, shape)


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def conv2d(x, w):
    """NHWC by HWCF, without padding, stride 2."""
    n, h, wide, _ = x.shape
    kh, kw, _, f = w.shape
    out = np.zeros((n, (h - kh) // 2 + 1, (wide - kw) // 2 + 1, f))
    for i in range(out.shape[1]):
        for j in range(out.shape[2]):
            out[:, i, j] = np.einsum("nhwc,hwcf->nf", x[:, 2 * i:2 * i + kh, 2 * j:2 * j + kw], w)
    return out


def named(op, inputs, out, fill="0.0", attributes=""):
    """A named op on a filled output."""
    ins = ", ".join(f"%a{i}" for i in range(len(inputs)))
    types = ", ".join(inputs)
    return f"""func.func @f({", ".join(f"%a{i}: {t}" for i, t in enumerate(inputs))}) -> {out} {{
  %z = arith.constant {fill} : {out.rpartition("x")[2][:-1]}
  %e = tensor.empty() : {out}
  %i = linalg.fill ins(%z : {out.rpartition("x")[2][:-1]}) outs(%e : {out}) -> {out}
  %r = {op} {attributes} ins({ins} : {types}) outs(%i : {out}) -> {out}
  return %r : {out}
}}"""


def returns(arguments, out, *lines):
    body = "\n  ".join(lines)
    return f"func.func @f({arguments}) -> {out} {{\n  {body}\n  return %r : {out}\n}}"


T = "tensor<{}>".format
#: name: (module, arguments, what NumPy gives)
CASES = {
    "matmul": (named("linalg.matmul", [T("3x5xf32"), T("5x4xf32")], T("3x4xf32")), [f32(3, 5), f32(5, 4)], lambda a, b: a @ b),
    "matmul transposed": (named("linalg.matmul", [T("3x5xf32"), T("4x5xf32")], T("3x4xf32"), attributes="indexing_maps = "
                                "[affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]"),
                          [f32(3, 5), f32(4, 5)], lambda a, b: a @ b.T),
    "integer matmul": (named("linalg.matmul", [T("3x5xi64"), T("5x4xi64")], T("3x4xi64"), "0"), [i64(3, 5), i64(5, 4)], lambda a, b: a @ b),
    "widening matmul": (named("linalg.matmul", [T("3x5xi8"), T("5x4xi8")], T("3x4xi32"), "0"),
                        [i64(3, 5, below=127).astype(np.int8), i64(5, 4, below=127).astype(np.int8)],
                        lambda a, b: a.astype(np.int32) @ b.astype(np.int32)),
    "unsigned matmul": (named("linalg.matmul", [T("3x5xi8"), T("5x4xi8")], T("3x4xi32"), "0", "{cast = #linalg.type_fn<cast_unsigned>}"),
                        [i64(3, 5, below=127).astype(np.int8), i64(5, 4, below=127).astype(np.int8)],
                        lambda a, b: a.astype(np.uint8).astype(np.int32) @ b.astype(np.uint8).astype(np.int32)),
    "batch_matmul": (named("linalg.batch_matmul", [T("2x3x5xf32"), T("2x5x4xf32")], T("2x3x4xf32")), [f32(2, 3, 5), f32(2, 5, 4)], lambda a, b: a @ b),
    "matvec": (named("linalg.matvec", [T("3x5xf32"), T("5xf32")], T("3xf32")), [f32(3, 5), f32(5)], lambda a, b: a @ b),
    "vecmat": (named("linalg.vecmat", [T("3xf32"), T("3x5xf32")], T("5xf32")), [f32(3), f32(3, 5)], lambda a, b: a @ b),
    "batch_reduce_matmul": (named("linalg.batch_reduce_matmul", [T("2x3x5xf32"), T("2x5x4xf32")], T("3x4xf32")), [f32(2, 3, 5), f32(2, 5, 4)],
                            lambda a, b: (a @ b).sum(0)),
    "contract": (named("linalg.contract", [T("3x2x5xf32"), T("5x2xf32")], T("2x3xf32"), attributes="indexing_maps = "
                       "[affine_map<(b, m, k) -> (m, b, k)>, affine_map<(b, m, k) -> (k, b)>, affine_map<(b, m, k) -> (b, m)>]"),
                 [f32(3, 2, 5), f32(5, 2)], lambda a, b: np.einsum("mbk,kb->bm", a, b)),
    "conv_2d_nhwc_hwcf": (named("linalg.conv_2d_nhwc_hwcf", [T("2x7x9x3xf32"), T("3x3x3x4xf32")], T("2x3x4x4xf32"),
                                attributes="{strides = dense<2> : tensor<2xi64>}"), [f32(2, 7, 9, 3), f32(3, 3, 3, 4)], conv2d),
    "pooling_nhwc_max": (named("linalg.pooling_nhwc_max", [T("1x4x6x2xf32"), T("2x2xf32")], T("1x3x5x2xf32"), "-1.0e30"), [f32(1, 4, 6, 2), f32(2, 2)],
                         lambda a, _: np.max([a[:, i:i + 3, j:j + 5] for i in range(2) for j in range(2)], 0)),
    "elementwise": (named("linalg.elementwise", [T("3x4xf32"), T("4xf32")], T("3x4xf32"), attributes="kind=#linalg.elementwise_kind<sub> indexing_maps = "
                          "[affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>]"),
                    [f32(3, 4), f32(4)], lambda a, b: a - b),
    "exp, add, div, max": ("""func.func @f(%a: tensor<3x4xf32>, %b: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %e = tensor.empty() : tensor<3x4xf32>
  %x = linalg.exp ins(%a : tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>
  %y = linalg.add ins(%x, %b : tensor<3x4xf32>, tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>
  %z = linalg.div ins(%y, %x : tensor<3x4xf32>, tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>
  %r = linalg.max ins(%z, %b : tensor<3x4xf32>, tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>
  return %r : tensor<3x4xf32>
}""", [f32(3, 4), f32(3, 4)], lambda a, b: np.maximum((np.exp(a) + b) / np.exp(a), b)),
    "transpose": (returns("%a: tensor<2x3x4xf32>", T("4x2x3xf32"), "%e = tensor.empty() : tensor<4x2x3xf32>",
                          "%r = linalg.transpose ins(%a : tensor<2x3x4xf32>) outs(%e : tensor<4x2x3xf32>) permutation = [2, 0, 1]"),
                  [f32(2, 3, 4)], lambda a: a.transpose(2, 0, 1)),
    "broadcast": (returns("%a: tensor<3xf32>", T("2x3x4xf32"), "%e = tensor.empty() : tensor<2x3x4xf32>",
                          "%r = linalg.broadcast ins(%a : tensor<3xf32>) outs(%e : tensor<2x3x4xf32>) dimensions = [0, 2]"),
                  [f32(3)], lambda a: np.broadcast_to(a[None, :, None], (2, 3, 4))),
    "reduce": (returns("%a: tensor<2x3x4xf32>, %i: tensor<2x4xf32>", T("2x4xf32"),
                       "%r = linalg.reduce { arith.addf } ins(%a : tensor<2x3x4xf32>) outs(%i : tensor<2x4xf32>) dimensions = [1]"),
               [f32(2, 3, 4), f32(2, 4)], lambda a, i: a.sum(1) + i),
    "map": (returns("%a: tensor<2x3xf32>, %b: tensor<2x3xf32>", T("2x3xf32"), "%e = tensor.empty() : tensor<2x3xf32>",
                    "%r = linalg.map { arith.mulf } ins(%a, %b : tensor<2x3xf32>, tensor<2x3xf32>) outs(%e : tensor<2x3xf32>)"),
            [f32(2, 3), f32(2, 3)], lambda a, b: a * b),
    "copy": (returns("%a: tensor<2x3xf32>", T("2x3xf64"), "%e = tensor.empty() : tensor<2x3xf64>",
                     "%r = linalg.copy ins(%a : tensor<2x3xf32>) outs(%e : tensor<2x3xf64>) -> tensor<2x3xf64>"),
             [f32(2, 3)], lambda a: a.astype(np.float64)),
    "softmax": (returns("%a: tensor<2x3x4xf32>", T("2x3x4xf32"), "%e = tensor.empty() : tensor<2x3x4xf32>",
                        "%r = linalg.softmax dimension(1) ins(%a : tensor<2x3x4xf32>) outs(%e : tensor<2x3x4xf32>) -> tensor<2x3x4xf32>"),
                [f32(2, 3, 4)], lambda a: softmax(a, 1)),
    "maximum and its place": ("""func.func @f(%a: tensor<?x?xf32>) -> (tensor<?xf32>, tensor<?xi64>) {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %a, %c0 : tensor<?x?xf32>
  %low = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0 : i64
  %e = tensor.empty(%n) : tensor<?xf32>
  %g = tensor.empty(%n) : tensor<?xi64>
  %m = linalg.fill ins(%low : f32) outs(%e : tensor<?xf32>) -> tensor<?xf32>
  %p = linalg.fill ins(%zero : i64) outs(%g : tensor<?xi64>) -> tensor<?xi64>
  %r:2 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i)>],
    iterator_types = ["parallel", "reduction"]} ins(%a : tensor<?x?xf32>) outs(%m, %p : tensor<?xf32>, tensor<?xi64>) {
  ^bb0(%x: f32, %best: f32, %at: i64):
    %j = linalg.index 1 : index
    %k = arith.index_cast %j : index to i64
    %max = arith.maximumf %x, %best : f32
    %above = arith.cmpf ogt, %x, %best : f32
    %place = arith.select %above, %k, %at : i64
    linalg.yield %max, %place : f32, i64
  } -> (tensor<?xf32>, tensor<?xi64>)
  return %r#0, %r#1 : tensor<?xf32>, tensor<?xi64>
}""", [f32(5, 7)], lambda a: (a.max(1), a.argmax(1))),
    "maps that are not linear": ("""func.func @f(%a: tensor<4xf32>, %b: tensor<12xf32>) -> tensor<12xf32> {
  %e = tensor.empty() : tensor<12xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i floordiv 3)>, affine_map<(i) -> ((i * 5 + 1) mod 12)>, affine_map<(i) -> (i)>],
    iterator_types = ["parallel"]} ins(%a, %b : tensor<4xf32>, tensor<12xf32>) outs(%e : tensor<12xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %s = arith.subf %x, %y : f32
    linalg.yield %s : f32
  } -> tensor<12xf32>
  return %r : tensor<12xf32>
}""", [f32(4), f32(12)], lambda a, b: a[np.arange(12) // 3] - b[(np.arange(12) * 5 + 1) % 12]),
    "an axis backwards, and a fixed one": ("""func.func @f(%a: tensor<5xf32>, %b: tensor<3x5xf32>) -> tensor<5xf32> {
  %e = tensor.empty() : tensor<5xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (4 - i)>, affine_map<(i) -> (2, i)>, affine_map<(i) -> (i)>],
    iterator_types = ["parallel"]} ins(%a, %b : tensor<5xf32>, tensor<3x5xf32>) outs(%e : tensor<5xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %s = arith.addf %x, %y : f32
    linalg.yield %s : f32
  } -> tensor<5xf32>
  return %r : tensor<5xf32>
}""", [f32(5), f32(3, 5)], lambda a, b: a[::-1] + b[2]),
    "a scalar operand, and a gather by tensor.extract": ("""func.func @f(%a: tensor<?x4xf32>, %at: tensor<3xi64>, %s: f32) -> tensor<3x4xf32> {
  %e = tensor.empty() : tensor<3x4xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> ()>, affine_map<(i, j) -> (i, j)>],
    iterator_types = ["parallel", "parallel"]} ins(%at, %s : tensor<3xi64>, f32) outs(%e : tensor<3x4xf32>) {
  ^bb0(%k: i64, %scale: f32, %o: f32):
    %row = arith.index_cast %k : i64 to index
    %j = linalg.index 1 : index
    %x = tensor.extract %a[%row, %j] : tensor<?x4xf32>
    %y = arith.mulf %x, %scale : f32
    linalg.yield %y : f32
  } -> tensor<3x4xf32>
  return %r : tensor<3x4xf32>
}""", [f32(6, 4), np.array([5, 0, 3]), np.float32(1.5)], lambda a, at, s: a[at] * s),
    "one tensor as input and output": ("""func.func @f(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %r:2 = linalg.generic {indexing_maps = [affine_map<(i) -> (3 - i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
    iterator_types = ["parallel"]} ins(%a : tensor<4xf32>) outs(%a, %a : tensor<4xf32>, tensor<4xf32>) {
  ^bb0(%x: f32, %o: f32, %p: f32):
    %s = arith.addf %x, %o : f32
    %d = arith.subf %x, %p : f32
    linalg.yield %s, %d : f32, f32
  } -> (tensor<4xf32>, tensor<4xf32>)
  return %r#0, %r#1 : tensor<4xf32>, tensor<4xf32>
}""", [f32(4)], lambda a: (a[::-1] + a, a[::-1] - a)),
    "slices": ("""func.func @f(%a: tensor<?x6x8xf32>, %o: index, %n: index) -> (tensor<?x8xf32>, tensor<2x3xf32>) {
  %x = tensor.extract_slice %a[%o, 2, 0] [%n, 1, 8] [2, 1, 1] : tensor<?x6x8xf32> to tensor<?x8xf32>
  %y = tensor.extract_slice %a[0, 1, 7] [1, 2, 3] [1, 3, -3] : tensor<?x6x8xf32> to tensor<2x3xf32>
  return %x, %y : tensor<?x8xf32>, tensor<2x3xf32>
}""", [f32(7, 6, 8), np.int64(1), np.int64(3)], lambda a, o, n: (a[1:6:2, 2], a[0, 1:5:3, 7:0:-3])),
    "insert_slice": ("""func.func @f(%a: tensor<2x3xf32>, %b: tensor<?x6x8xf32>, %o: index) -> (tensor<?x6x8xf32>, tensor<?x6x8xf32>) {
  %x = tensor.insert_slice %a into %b[%o, 1, 0] [1, 2, 3] [1, 2, 3] : tensor<2x3xf32> into tensor<?x6x8xf32>
  return %x, %b : tensor<?x6x8xf32>, tensor<?x6x8xf32>
}""", [f32(2, 3), f32(4, 6, 8), np.int64(2)], lambda a, b, o: (insert(b, (2, slice(1, 4, 2), slice(0, 7, 3)), a), b)),
    "pad": ("""func.func @f(%a: tensor<?x3xf32>, %low: index) -> tensor<?x6xf32> {
  %r = tensor.pad %a low[%low, 1] high[2, 2] {
  ^bb0(%i: index, %j: index):
    %s = arith.addi %i, %j : index
    %k = arith.index_cast %s : index to i64
    %x = arith.sitofp %k : i64 to f32
    tensor.yield %x : f32
  } : tensor<?x3xf32> to tensor<?x6xf32>
  return %r : tensor<?x6xf32>
}""", [f32(2, 3), np.int64(1)], lambda a, low: insert(np.add.outer(np.arange(5.0), np.arange(6.0)), (slice(1, 3), slice(1, 4)), a)),
    "concat": (returns("%a: tensor<2x?xf32>, %b: tensor<2x3xf32>", T("2x?xf32"),
                       "%r = tensor.concat dim(1) %a, %b, %a : (tensor<2x?xf32>, tensor<2x3xf32>, tensor<2x?xf32>) -> tensor<2x?xf32>"),
               [f32(2, 4), f32(2, 3)], lambda a, b: np.concatenate([a, b, a], 1)),
    "shapes": ("""func.func @f(%a: tensor<?x6xf32>, %n: index, %to: tensor<3xi32>) -> (tensor<?x2x3xf32>, tensor<?xf32>, tensor<?x?x?xf32>, index, index) {
  %x = tensor.expand_shape %a [[0], [1, 2]] output_shape [%n, 2, 3] : tensor<?x6xf32> into tensor<?x2x3xf32>
  %y = tensor.collapse_shape %a [[0, 1]] : tensor<?x6xf32> into tensor<?xf32>
  %z = tensor.reshape %y(%to) : (tensor<?xf32>, tensor<3xi32>) -> tensor<?x?x?xf32>
  %c1 = arith.constant 1 : index
  %d = tensor.dim %z, %c1 : tensor<?x?x?xf32>
  %rank = tensor.rank %z : tensor<?x?x?xf32>
  %s = tensor.cast %y : tensor<?xf32> to tensor<24xf32>
  %t = tensor.cast %s : tensor<24xf32> to tensor<?xf32>
  return %x, %t, %z, %d, %rank : tensor<?x2x3xf32>, tensor<?xf32>, tensor<?x?x?xf32>, index, index
}""", [f32(4, 6), np.int64(4), np.array([2, 3, 4], np.int32)], lambda a, n, to: (a.reshape(4, 2, 3), a.ravel(), a.reshape(2, 3, 4), 3, 3)),
    "elements": ("""func.func @f(%a: tensor<?xf32>, %x: f32, %n: index) -> (tensor<2x2xf32>, tensor<?x3xf32>, tensor<?xf32>, tensor<?x?xi64>, f32) {
  %c1 = arith.constant 1 : index
  %y = tensor.extract %a[%c1] : tensor<?xf32>
  %e = tensor.from_elements %x, %y, %y, %x : tensor<2x2xf32>
  %s = tensor.splat %x[%n] : tensor<?x3xf32>
  %i = tensor.insert %x into %a[%c1] : tensor<?xf32>
  %g = tensor.generate %n, %n {
  ^bb0(%r: index, %c: index):
    %p = arith.muli %r, %c : index
    %q = arith.index_cast %p : index to i64
    tensor.yield %q : i64
  } : tensor<?x?xi64>
  return %e, %s, %i, %g, %y : tensor<2x2xf32>, tensor<?x3xf32>, tensor<?xf32>, tensor<?x?xi64>, f32
}""", [f32(4), np.float32(7), np.int64(3)], lambda a, x, n: (np.array([[x, a[1]], [a[1], x]]), np.full((3, 3), x), insert(a, 1, x),
                                                           np.outer(np.arange(3), np.arange(3)), a[1])),
    "loops": ("""func.func @f(%a: tensor<?xf32>, %n: index) -> (tensor<?xf32>, f32, index) {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %zero = arith.constant 0.0 : f32
  %t, %s = scf.for %i = %c0 to %n step %c2 iter_args(%b = %a, %sum = %zero) -> (tensor<?xf32>, f32) {
    %x = tensor.extract %b[%i] : tensor<?xf32>
    %y = arith.addf %sum, %x : f32
    %w = tensor.insert %y into %b[%i] : tensor<?xf32>
    scf.yield %w, %y : tensor<?xf32>, f32
  }
  %k = scf.while (%j = %n) : (index) -> index {
    %more = arith.cmpi ugt, %j, %c2 : index
    scf.condition(%more) %j : index
  } do {
  ^bb0(%j: index):
    %h = arith.divui %j, %c2 : index
    scf.yield %h : index
  }
  return %t, %s, %k : tensor<?xf32>, f32, index
}""", [f32(7), np.int64(7)], lambda a, n: (insert(a, slice(0, 7, 2), np.cumsum(a[::2], dtype=np.float32)), np.cumsum(a[::2], dtype=np.float32)[-1], 1)),
    "branches": ("""func.func @f(%a: tensor<2xf32>, %b: tensor<2xf32>, %c: i1, %k: index) -> (tensor<2xf32>, f32, tensor<2xf32>) {
  %x = scf.if %c -> (tensor<2xf32>) {
    %s = arith.addf %a, %b : tensor<2xf32>
    scf.yield %s : tensor<2xf32>
  } else {
    scf.yield %b : tensor<2xf32>
  }
  %y = scf.index_switch %k -> f32
  case 3 {
    %v = arith.constant 3.0 : f32
    scf.yield %v : f32
  }
  case -1 {
    %v = arith.constant -1.0 : f32
    scf.yield %v : f32
  }
  default {
    %v = arith.constant 9.0 : f32
    scf.yield %v : f32
  }
  %z = arith.select %c, %a, %b : tensor<2xf32>
  return %x, %y, %z : tensor<2xf32>, f32, tensor<2xf32>
}""", [f32(2), f32(2), np.bool_(True), np.int64(-1)], lambda a, b, c, k: (a + b, -1.0, a)),
    "forall": ("""func.func @f(%a: tensor<4x6xf32>, %e: tensor<6x4xf32>) -> tensor<6x4xf32> {
  %r = scf.forall (%i, %j) = (0, 0) to (4, 6) step (2, 3) shared_outs(%o = %e) -> (tensor<6x4xf32>) {
    %x = tensor.extract_slice %a[%i, %j] [2, 3] [1, 1] : tensor<4x6xf32> to tensor<2x3xf32>
    %f = tensor.empty() : tensor<3x2xf32>
    %t = linalg.transpose ins(%x : tensor<2x3xf32>) outs(%f : tensor<3x2xf32>) permutation = [1, 0]
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %t into %o[%j, %i] [3, 2] [1, 1] : tensor<3x2xf32> into tensor<6x4xf32>
    }
  }
  return %r : tensor<6x4xf32>
}""", [f32(4, 6), f32(6, 4)], lambda a, e: a.T),
    "calls": ("""func.func private @twice(%a: tensor<?xf32>, %x: f32) -> (f32, tensor<?xf32>) {
  %y = arith.addf %x, %x : f32
  %b = arith.addf %a, %a : tensor<?xf32>
  return %y, %b : f32, tensor<?xf32>
}
func.func @f(%a: tensor<?xf32>, %x: f32) -> (tensor<?xf32>, f32, tensor<?xf32>) {
  %y, %b = func.call @twice(%a, %x) : (tensor<?xf32>, f32) -> (f32, tensor<?xf32>)
  %z, %c = func.call @twice(%b, %y) : (tensor<?xf32>, f32) -> (f32, tensor<?xf32>)
  return %c, %z, %a : tensor<?xf32>, f32, tensor<?xf32>
}""", [f32(3), np.float32(2)], lambda a, x: (a * 4, 8.0, a)),
    "affine maps and constants": ("""ml_program.global private @table(dense<[4, 5, 6]> : tensor<3xi32>) : tensor<3xi32>
func.func @f(%i: index, %j: index) -> (index, index, index, tensor<3xi32>, tensor<2x2xf16>) {
  %a = affine.apply affine_map<(d0)[s0] -> (d0 * 3 - s0 floordiv 4)>(%i)[%j]
  %b = affine.min affine_map<(d0, d1) -> (d0 mod 5, d1 ceildiv 2, 100)>(%i, %j)
  %c = affine.max affine_map<(d0, d1) -> (d0, -d1)>(%i, %j)
  %t = ml_program.global_load_const @table : tensor<3xi32>
  %h = arith.constant dense<[[1.5, -2.0], [0.0, 65504.0]]> : tensor<2x2xf16>
  return %a, %b, %c, %t, %h : index, index, index, tensor<3xi32>, tensor<2x2xf16>
}""", [np.int64(-7), np.int64(-9)], lambda i, j: (-21 + 3, -4, 9, np.array([4, 5, 6]), np.array([[1.5, -2], [0, 65504]]))),
    "nothing at all": ("""func.func @f(%a: tensor<?x3xf32>, %b: tensor<0xi64>) -> (tensor<3xf32>, tensor<?x3xf32>, tensor<0x4xf32>) {
  %z = arith.constant 1.0 : f32
  %e = tensor.empty() : tensor<3xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<3xf32>) -> tensor<3xf32>
  %s = linalg.reduce { arith.addf } ins(%a : tensor<?x3xf32>) outs(%i : tensor<3xf32>) dimensions = [0]
  %c = tensor.concat dim(0) %a, %a : (tensor<?x3xf32>, tensor<?x3xf32>) -> tensor<?x3xf32>
  %x = tensor.empty() : tensor<0x4xf32>
  %y = linalg.softmax dimension(0) ins(%x : tensor<0x4xf32>) outs(%x : tensor<0x4xf32>) -> tensor<0x4xf32>
  return %s, %c, %y : tensor<3xf32>, tensor<?x3xf32>, tensor<0x4xf32>
}""", [f32(0, 3), np.zeros(0, np.int64)], lambda a, b: (np.ones(3), a, np.zeros((0, 4)))),
}


def insert(array, where, values):
    array = np.array(array)
    array[where] = values
    return array


@pytest.mark.parametrize("name", CASES)
def test_op_gives_what_numpy_gives(name, build_dir):
    module, arguments, compute = CASES[name]
    want = compute(*arguments)
    want = want if isinstance(want, tuple) else (want,)
    for answer in Interpreter(build_dir, module).calls([("f", precision, arguments) for precision in ("as-written", "exact")]):
        assert answer.kind == "ok", answer.message
        assert not answer.undefined
        assert len(answer.results) == len(want)
        for got, expected in zip(answer.results, want):
            assert got.shape == np.shape(expected)
            np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)


def test_sums_round_after_every_step(build_dir):
    module = named("linalg.matmul", [T("1x4xf16"), T("4x1xf16")], T("1x1xf16"))
    a, b = np.array([[2048, 1, 1, 1]], np.float16), np.ones((4, 1), np.float16)
    written, exact = Interpreter(build_dir, module).calls([("f", p, [a, b]) for p in ("as-written", "exact")])
    assert written.results[0] == 2048 and exact.results[0] == 2051
    module = named("linalg.matmul", [T("1x4xf32"), T("4x1xf32")], T("1x1xf32"))
    a = np.array([[2.0 ** 24, 1, 1, 1]], np.float32)
    written, exact = Interpreter(build_dir, module).calls([("f", p, [a, b.astype(np.float32)]) for p in ("as-written", "exact")])
    assert written.results[0] == 2.0 ** 24 and exact.results[0] == 2.0 ** 24 + 3


def test_unset_elements_are_seen(build_dir):
    module = "func.func @f() -> (tensor<2xf32>, tensor<2xi8>) {\n  %a = tensor.empty() : tensor<2xf32>\n  %b = tensor.empty() : tensor<2xi8>\n" \
             "  return %a, %b : tensor<2xf32>, tensor<2xi8>\n}"
    floats, integers = Interpreter(build_dir, module).call("f")
    assert np.isnan(floats).all() and (integers == 0x5a).all()


def test_attention_is_the_formula(build_dir):
    q1, k1, q2, k2 = f32(1, 2, 5, 4), f32(1, 2, 7, 4), f32(1, 2, 5, 4), f32(1, 2, 7, 4)
    v, length = f32(1, 2, 7, 3), np.array([6])
    module = """func.func @f(%q1: tensor<1x2x?x4xf32>, %k1: tensor<1x2x?x4xf32>, %q2: tensor<1x2x?x4xf32>, %k2: tensor<1x2x?x4xf32>,
        %v: tensor<1x2x?x3xf32>, %l: tensor<f32>, %n: tensor<1xi64>, %init: tensor<1x?x2x3xf32>) -> tensor<1x?x2x3xf32> {
      %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<1x2x?x4xf32>, tensor<1x2x?x4xf32>, tensor<1x2x?x4xf32>, tensor<1x2x?x4xf32>,
        tensor<1x2x?x3xf32>) lambda(%l : tensor<f32>) kv_len(%n : tensor<1xi64>) outs(%init : tensor<1x?x2x3xf32>)
        {scale = 0.5 : f32, is_causal, o_layout = #diffattn.layout<bthd>} -> tensor<1x?x2x3xf32>
      return %o : tensor<1x?x2x3xf32>
    }"""
    visible = np.tri(5, 7, 1, dtype=bool) & (np.arange(7) < 6)
    maps = [softmax(np.where(visible, 0.5 * (q @ k.swapaxes(-1, -2)), -np.inf), -1) for q, k in ((q1, k1), (q2, k2))]
    want = ((maps[0] - 0.25 * maps[1]) @ v).swapaxes(1, 2)
    for precision in ("as-written", "exact"):
        got, = Interpreter(build_dir, module).call("f", q1, k1, q2, k2, v, np.float32(0.25), length, f32(1, 5, 2, 3), precision=precision)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_gradients_of_attention_are_the_formula(build_dir):
    """Both maps read the same keys, so that d_k1 is the gradient of both; each result is rounded once, to the type of its destination."""
    q1, k, q2, v, d, length = f32(1, 2, 5, 4), f32(1, 2, 7, 4), f32(1, 2, 5, 4), f32(1, 2, 7, 3), f32(1, 5, 2, 3), np.array([6])
    module = """func.func @f(%q1: tensor<1x2x?x4xf32>, %k: tensor<1x2x?x4xf32>, %q2: tensor<1x2x?x4xf32>, %v: tensor<1x2x?x3xf32>, %d: tensor<1x?x2x3xf32>,
        %l: tensor<2xf32>, %n: tensor<1xi64>) -> (tensor<1x2x?x4xf32>, tensor<1x2x?x4xf32>, tensor<1x2x?x3xf32>, tensor<2xf32>) {
      %r:4 = diffattn.attention_backward ins(%q1, %k, %q2, %k, %v : tensor<1x2x?x4xf32>, tensor<1x2x?x4xf32>, tensor<1x2x?x4xf32>, tensor<1x2x?x4xf32>,
        tensor<1x2x?x3xf32>) d_out(%d : tensor<1x?x2x3xf32>) lambda(%l : tensor<2xf32>) kv_len(%n : tensor<1xi64>)
        outs(d_k1(%k : tensor<1x2x?x4xf32>) d_q2(%q2 : tensor<1x2x?x4xf32>) d_v(%v : tensor<1x2x?x3xf32>) d_lambda(%l : tensor<2xf32>))
        {scale = 0.5 : f32, is_causal, o_layout = #diffattn.layout<bthd>}
        -> tensor<1x2x?x4xf32>, tensor<1x2x?x4xf32>, tensor<1x2x?x3xf32>, tensor<2xf32>
      return %r#0, %r#1, %r#2, %r#3 : tensor<1x2x?x4xf32>, tensor<1x2x?x4xf32>, tensor<1x2x?x3xf32>, tensor<2xf32>
    }"""
    lam, wide = np.array([0.25, 0.75], np.float32), lambda x: x.astype(np.float64)
    visible, factor, turned = np.tri(5, 7, 1, dtype=bool) & (np.arange(7) < 6), wide(lam)[:, None, None], lambda x: x.swapaxes(-1, -2)
    a1, a2 = (softmax(np.where(visible, 0.5 * (wide(q) @ turned(wide(k))), -np.inf), -1) for q in (q1, q2))
    dx = turned(wide(d).transpose(0, 2, 3, 1))
    dp = dx @ turned(wide(v))
    rows2 = (a2 * dp).sum(-1, keepdims=True)
    ds1, ds2 = 0.5 * a1 * (dp - (a1 * dp).sum(-1, keepdims=True)), -0.5 * factor * a2 * (dp - rows2)
    want = [turned(ds1) @ wide(q1) + turned(ds2) @ wide(q2), ds2 @ wide(k), turned(a1 - factor * a2) @ dx, -rows2.sum((0, 2, 3))]
    exact, written = (Interpreter(build_dir, module).call("f", q1, k, q2, v, d, lam, length, precision=p) for p in ("exact", "as-written"))
    for one, rounded, expected in zip(exact, written, want, strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(rounded, one.astype(np.float32))


ONLINE = """
func.func @{name}(%q1: tensor<?x4x?x8xf32>, %k1: tensor<?x{hk}x?x8xf32>, %q2: tensor<?x2x?x8xf32>, %k2: tensor<?x2x?x8xf32>, %v: tensor<?x{hv}x?x3xf32>,
    %l: tensor<?x?x2xf32>, %bias: tensor<1x2x?x?xf32>, %len: tensor<?xi64>, %at: tensor<?xi64>, %qs: tensor<?x?xi32>, %ks: tensor<?x?xi32>, %w: tensor<3xf32>, %g: tensor<?x?x4x3xf32>,
    %init: tensor<?x?x4x3xf32>, %max1: tensor<?x4x?xf32>, %acc1: tensor<?x4x?x3xf32>, %max2: tensor<?x2x?xf32>, %acc2: tensor<?x{ha}x?x3xf32>, %n: index) -> tensor<?x?x4x3xf32> {{
  {body}
  return %o : tensor<?x?x4x3xf32>
}}"""
MASKS = "is_causal, window = array<i64: 6, 2>, softcap = 3.0 : f32, scale = 0.5 : f32"
EPILOGUE = "lambda_act = #diffattn.activation<sigmoid>, norm = #diffattn.norm<rms>, norm_eps = 1.0e-3 : f32, out_scale = 0.8 : f32, o_layout = #diffattn.layout<bthd>"
QKV = "%q1, {k1}, %q2, {k2}, {v} : tensor<?x4x?x8xf32>, tensor<?x{hk}x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?x{hv}x?x3xf32>"
STATE = "tensor<?x4x?xf32>, tensor<?x4x?xf32>, tensor<?x4x?x3xf32>, tensor<?x2x?xf32>, tensor<?x2x?xf32>, tensor<?x{ha}x?x3xf32>"


def online_step(name, keys, offset, before, ha, hk, hv):
    k1, k2, v, bias, ids = keys
    where = f" k_offset({offset})" if offset else ""
    return (f"%{name}:6 = diffattn.online_attention ins({QKV.format(k1=k1, k2=k2, v=v, hk=hk, hv=hv)}) bias({bias} : tensor<1x2x?x?xf32>) "
            f"kv_len(%len : tensor<?xi64>) q_offset(%at : tensor<?xi64>) q_segments(%qs : tensor<?x?xi32>) kv_segments({ids} : tensor<?x?xi32>){where} outs({before} : {STATE.format(ha=ha)}) {{{MASKS}}} -> {STATE.format(ha=ha)}")


@pytest.mark.parametrize("hk, hv", [(2, 2), (4, 1), (1, 4)])
def test_attention_in_steps_is_attention(hk, hv, build_dir):
    """One op, one step, two steps and two merged states of keys: the same rows. Value heads that do not divide the noise heads have an
    accumulator a signal head."""
    ha = 2 if 2 % hv == 0 else 4
    tail = "lambda(%l : tensor<?x?x2xf32>) norm_weight(%w : tensor<3xf32>) gate(%g : tensor<?x?x4x3xf32>) outs(%init : tensor<?x?x4x3xf32>)"
    one = (f"%o = diffattn.attention ins({QKV.format(k1='%k1', k2='%k2', v='%v', hk=hk, hv=hv)}) lambda(%l : tensor<?x?x2xf32>) "
           "bias(%bias : tensor<1x2x?x?xf32>) norm_weight(%w : tensor<3xf32>) gate(%g : tensor<?x?x4x3xf32>) kv_len(%len : tensor<?xi64>) "
           "q_offset(%at : tensor<?xi64>) q_segments(%qs : tensor<?x?xi32>) kv_segments(%ks : tensor<?x?xi32>) "
           f"outs(%init : tensor<?x?x4x3xf32>) {{{MASKS}, {EPILOGUE}}} -> tensor<?x?x4x3xf32>")
    start = "%max1, %sum1, %acc1, %max2, %sum2, %acc2"
    zeros = ["%c0 = arith.constant 0 : index", "%c2 = arith.constant 2 : index", "%b = tensor.dim %q1, %c0 : tensor<?x4x?x8xf32>",
             "%tq = tensor.dim %q1, %c2 : tensor<?x4x?x8xf32>", "%tk = tensor.dim %k1, %c2 : tensor<?x" + str(hk) + "x?x8xf32>",
             "%rest = arith.subi %tk, %n : index", "%zero = arith.constant 0.0 : f32",
             "%sum1 = tensor.splat %zero[%b, %tq] : tensor<?x4x?xf32>", "%sum2 = tensor.splat %zero[%b, %tq] : tensor<?x2x?xf32>"]
    for part, (begin, size) in enumerate((("0", "%n"), ("%n", "%rest"))):
        for name, heads, width in (("k1", hk, 8), ("k2", 2, 8), ("v", hv, 3)):
            zeros.append(f"%{name}_{part} = tensor.extract_slice %{name}[0, 0, {begin}, 0] [%b, {heads}, {size}, {width}] [1, 1, 1, 1] : "
                         f"tensor<?x{heads}x?x{width}xf32> to tensor<?x{heads}x?x{width}xf32>")
        zeros.append(f"%bias_{part} = tensor.extract_slice %bias[0, 0, 0, {begin}] [1, 2, %tq, {size}] [1, 1, 1, 1] : "
                     "tensor<1x2x?x?xf32> to tensor<1x2x?x?xf32>")
        zeros.append(f"%ks_{part} = tensor.extract_slice %ks[0, {begin}] [%b, {size}] [1, 1] : tensor<?x?xi32> to tensor<?x?xi32>")
    parts = [[f"%{name}_{part}" for name in ("k1", "k2", "v", "bias", "ks")] for part in range(2)]
    whole = ["%k1", "%k2", "%v", "%bias", "%ks"]
    end = (f"%o = diffattn.finalize ins({{0}}#1, {{0}}#2, {{1}}#1, {{1}}#2 : tensor<?x4x?xf32>, tensor<?x4x?x3xf32>, tensor<?x2x?xf32>, "
           f"tensor<?x{ha}x?x3xf32>) {tail} {{{{{EPILOGUE}}}}} -> tensor<?x?x4x3xf32>")
    # Results 3 to 5 are the second state: renamed by a call, so that #1 and #2 are its sum and accumulator.
    second = (f"func.func private @second(%a: tensor<?x2x?xf32>, %b: tensor<?x2x?xf32>, %c: tensor<?x{ha}x?x3xf32>) -> (tensor<?x2x?xf32>, tensor<?x2x?xf32>, "
              f"tensor<?x{ha}x?x3xf32>) {{ return %a, %b, %c : tensor<?x2x?xf32>, tensor<?x2x?xf32>, tensor<?x{ha}x?x3xf32> }}")
    types2 = f"tensor<?x2x?xf32>, tensor<?x2x?xf32>, tensor<?x{ha}x?x3xf32>"

    def split(state):
        return f"%{state}b:3 = func.call @second(%{state}#3, %{state}#4, %{state}#5) : ({types2}) -> ({types2})"

    def results(state):
        return ", ".join(f"%{state}#{i}" for i in range(6))

    def merge(result, a, b, heads, accs):
        types = f"tensor<?x{heads}x?xf32>, tensor<?x{heads}x?xf32>, tensor<?x{accs}x?x3xf32>"
        state = [", ".join(f"%{x}#{i}" for i in range(3)) for x in (a, b)]
        return f"%{result}:3 = diffattn.merge ins({state[0]} : {types}) outs({state[1]} : {types}) -> {types}"

    args = ha, hk, hv
    bodies = {
        "one": [one],
        "step": [*zeros, online_step("s", whole, "", start, *args), split("s"), end.format("%s", "%sb")],
        "steps": [*zeros, online_step("s", parts[1], "%n", start, *args), online_step("t", parts[0], "", results("s"), *args), split("t"),
                  end.format("%t", "%tb")],
        "merged": [*zeros, online_step("s", parts[0], "", start, *args), online_step("t", parts[1], "%n", start, *args), split("s"), split("t"),
                   merge("m", "s", "t", 4, 4), merge("u", "sb", "tb", 2, ha), end.format("%m", "%u")],
    }
    module = second + "".join(ONLINE.format(name=name, hk=hk, hv=hv, ha=ha, body="\n  ".join(body)) for name, body in bodies.items())
    b, tq, tk = 2, 5, 9
    bias = f32(1, 2, tq, tk)
    bias[0, 0, 1, :5] = bias[0, 1, 3, 2] = -np.inf
    arguments = [f32(b, 4, tq, 8), f32(b, hk, tk, 8), f32(b, 2, tq, 8), f32(b, 2, tk, 8), f32(b, hv, tk, 3), f32(b, tq, 2), bias, np.array([9, 7]),
                 np.array([4, -1]), np.array([[0, 0, 3, -2, -2], [1] * 5], np.int32),
                 np.array([[0, 0, -2, 3, 0, -2, 3, 7, -2], [1] * 8 + [2]], np.int32), f32(3), f32(b, tq, 4, 3), f32(b, tq, 4, 3), np.full((b, 4, tq), -np.inf, np.float32), np.zeros((b, 4, tq, 3), np.float32),
                 np.full((b, 2, tq), -np.inf, np.float32), np.zeros((b, ha, tq, 3), np.float32), 4]
    answers = Interpreter(build_dir, module).calls([(name, precision, arguments) for precision in ("exact", "as-written") for name in bodies])
    for name, answer in zip([*bodies, *bodies], answers):
        assert answer.kind == "ok", (name, answer.message)
        np.testing.assert_allclose(answer.results[0], answers[0].results[0], rtol=1e-5, atol=1e-6, err_msg=name)
    # A query of the second prompt that sees no key.
    assert not answers[0].results[0][1, 0].any() and answers[0].results[0][1, 1].any()
    for name, answer in zip(bodies, answers):
        np.testing.assert_allclose(answer.results[0], answers[0].results[0], rtol=1e-12, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("flags", ["", "{transpose_b}", "{accumulate}", "{transpose_b, accumulate}"])
def test_gemm(flags, build_dir):
    b_shape = (4, 5) if "transpose_b" in flags else (5, 4)
    b_type = "x".join(map(str, b_shape))
    module = f"""func.func @f(%a: tensor<2x?x5xf32>, %b: tensor<{b_type}xf32>, %c: tensor<2x?x4xf32>) -> tensor<2x?x4xf32> {{
      %r = diffattn.gemm ins(%a, %b : tensor<2x?x5xf32>, tensor<{b_type}xf32>) outs(%c : tensor<2x?x4xf32>) {flags} -> tensor<2x?x4xf32>
      return %r : tensor<2x?x4xf32>
    }}"""
    a, b, c = f32(2, 3, 5), f32(*b_shape), f32(2, 3, 4)
    want = a @ (b.T if "transpose_b" in flags else b) + (c if "accumulate" in flags else 0)
    got, short = Interpreter(build_dir, module).calls([("f", "as-written", [a, b, c]), ("f", "as-written", [a, b, c[:, :2]])])
    np.testing.assert_allclose(got.results[0], want, rtol=1e-5, atol=1e-6)
    assert short.kind == "fault" and "'diffattn.gemm': expected size" in short.message
