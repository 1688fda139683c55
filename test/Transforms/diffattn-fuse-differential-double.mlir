// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" --remarks-filter="diffattn.*" --remark-format=emitRemark --verify-diagnostics | FileCheck %s

// The op computes in f32: a graph of f64 keeps its digits, one that only widens f32 has none to lose.

!q = tensor<6x20x16xf64>
!kt = tensor<6x16x20xf64>
!v = tensor<6x20x32xf64>
!s = tensor<6x20x20xf64>

// CHECK-LABEL: func.func @double(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @double(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f64) -> !v {
  %zero = arith.constant 0.0 : f64
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f64) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f64) outs(%ev : !v) -> !v
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="q1 is computed in f64, of which the op's f32 would lose digits", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// CHECK-LABEL: func.func @one_double(
// CHECK-NOT:     diffattn.attention
// CHECK-LABEL: func.func @widened(
// CHECK:         diffattn.attention
func.func @one_double(%q1s: tensor<6x20x16xf32>, %k1s: tensor<6x16x20xf32>, %q2s: tensor<6x20x16xf32>, %k2s: tensor<6x16x20xf32>, %v: !v, %l: f64) -> !v {
  %q1 = arith.extf %q1s : tensor<6x20x16xf32> to !q
  %k1 = arith.extf %k1s : tensor<6x16x20xf32> to !kt
  %q2 = arith.extf %q2s : tensor<6x20x16xf32> to !q
  %k2 = arith.extf %k2s : tensor<6x16x20xf32> to !kt
  %zero = arith.constant 0.0 : f64
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f64) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f64) outs(%ev : !v) -> !v
  // expected-remark @below {{Reason="v is computed in f64, of which the op's f32 would lose digits"}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}
func.func @widened(%q1s: tensor<6x20x16xf32>, %k1s: tensor<6x16x20xf32>, %q2s: tensor<6x20x16xbf16>, %k2s: tensor<6x16x20xf32>, %vs: tensor<6x20x32xf32>, %l: f64) -> !v {
  %q1 = arith.extf %q1s : tensor<6x20x16xf32> to !q
  %k1 = arith.extf %k1s : tensor<6x16x20xf32> to !kt
  %q2 = arith.extf %q2s : tensor<6x20x16xbf16> to !q
  %k2 = arith.extf %k2s : tensor<6x16x20xf32> to !kt
  %v = arith.extf %vs : tensor<6x20x32xf32> to !v
  %zero = arith.constant 0.0 : f64
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f64) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f64) outs(%ev : !v) -> !v
  // expected-remark @below {{[Passed] Raised}}
  // expected-remark @below {{[Missed] ComputedInF32}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}
