// States of ranges of keys, an axis in front, by one op: the exact answers of
// online-numerics.mlir. Four keys in ranges of 3, of 1, and in ranges of which one
// has no key.
//
// DEFINE: %{lower} = --diffattn-decompose --one-shot-bufferize=bufferize-function-boundaries \
// DEFINE:   --convert-linalg-to-loops --expand-strided-metadata --lower-affine \
// DEFINE:   --convert-scf-to-cf --convert-math-to-libm --convert-to-llvm \
// DEFINE:   --reconcile-unrealized-casts
// DEFINE: %{run} = mlir-runner -e main --entry-point-result=void \
// DEFINE:   --shared-libs=%mlir_lib_dir/libmlir_runner_utils.so,%mlir_lib_dir/libmlir_c_runner_utils.so
//
// RUN: diffattn-opt %s %{lower} | %{run} | FileCheck %s
//
// A loop over ranges, of ops that know where their keys stand and how many come
// before the first query.
// RUN: diffattn-opt %s --diffattn-decompose --canonicalize | FileCheck %s --check-prefix=LOOP

!q = tensor<1x2x3x1xf32>
!n = tensor<1x1x3x1xf32>
!k = tensor<1x1x4x1xf32>
!v = tensor<1x2x4x2xf32>
!m1 = tensor<1x2x3xf32>
!a1 = tensor<1x2x3x2xf32>
!m2 = tensor<1x1x3xf32>
!r1 = tensor<?x1x2x3xf32>
!ra = tensor<?x1x2x3x2xf32>
!r2 = tensor<?x1x1x3xf32>
func.func private @printMemrefF32(memref<*xf32>)

func.func @end(%m10: !r1, %s10: !r1, %a10: !ra, %m20: !r2, %s20: !r2, %a20: !ra) {
  %max1 = tensor.empty() : !m1
  %acc = tensor.empty() : !a1
  %max2 = tensor.empty() : !m2
  %m:3 = diffattn.merge ins(%m10, %s10, %a10 : !r1, !r1, !ra) outs(%max1, %max1, %acc : !m1, !m1, !a1)
           -> !m1, !m1, !a1
  %w:3 = diffattn.merge ins(%m20, %s20, %a20 : !r2, !r2, !ra) outs(%max2, %max2, %acc : !m2, !m2, !a1)
           -> !m2, !m2, !a1
  %l = arith.constant dense<0.5> : tensor<f32>
  %o = diffattn.finalize ins(%m#1, %m#2, %w#1, %w#2 : !m1, !a1, !m2, !a1)
         lambda(%l : tensor<f32>) outs(%acc : !a1) -> !a1
  %b = bufferization.to_buffer %o : !a1 to memref<1x2x3x2xf32>
  %u = memref.cast %b : memref<1x2x3x2xf32> to memref<*xf32>
  call @printMemrefF32(%u) : (memref<*xf32>) -> ()
  return
}

// LOOP-LABEL: func.func @threes(
// LOOP:         scf.for %[[R:.+]] = %c0 to %{{.+}} step %c1 iter_args
// LOOP:           affine.min #{{.+}}(%[[R]])
// LOOP-NOT:       diffattn.online_attention
// LOOP:           tensor.insert_slice {{.*}}[%[[R]], 0, 0, 0] [1, 1, 2, 3] [1, 1, 1, 1]
// The offset is given, and so is the number of keys.
func.func @threes(%q1: !q, %q2: !n, %k: !k, %v: !v, %n: tensor<1xi64>, %ranges: index) {
  %p = arith.constant dense<1> : tensor<1xi64>
  %max1 = tensor.empty(%ranges) : !r1
  %acc = tensor.empty(%ranges) : !ra
  %max2 = tensor.empty(%ranges) : !r2
  %a:6 = diffattn.online_attention ins(%q1, %k, %q2, %k, %v : !q, !k, !n, !k, !v)
           kv_len(%n : tensor<1xi64>) q_offset(%p : tensor<1xi64>)
           outs(%max1, %max1, %acc, %max2, %max2, %acc : !r1, !r1, !ra, !r2, !r2, !ra)
           {scale = 1.0 : f32, is_causal, kv_split_size = 3} -> !r1, !r1, !ra, !r2, !r2, !ra
  call @end(%a#0, %a#1, %a#2, %a#3, %a#4, %a#5) : (!r1, !r1, !ra, !r2, !r2, !ra) -> ()
  return
}

// Without q_offset the last query sees the last key that there is: here it is the
// number of all keys less that of queries, 0.
func.func @ones(%q1: !q, %q2: !n, %k: !k, %v: !v, %n: tensor<1xi64>, %ranges: index) {
  %max1 = tensor.empty(%ranges) : !r1
  %acc = tensor.empty(%ranges) : !ra
  %max2 = tensor.empty(%ranges) : !r2
  %a:6 = diffattn.online_attention ins(%q1, %k, %q2, %k, %v : !q, !k, !n, !k, !v) kv_len(%n : tensor<1xi64>)
           outs(%max1, %max1, %acc, %max2, %max2, %acc : !r1, !r1, !ra, !r2, !r2, !ra)
           {scale = 1.0 : f32, is_causal, kv_split_size = 1} -> !r1, !r1, !ra, !r2, !r2, !ra
  call @end(%a#0, %a#1, %a#2, %a#3, %a#4, %a#5) : (!r1, !r1, !ra, !r2, !r2, !ra) -> ()
  return
}

// A GPU's schedule is nothing to the loop.
// LOOP-LABEL: func.func @scheduled(
// LOOP:         scf.for
// LOOP-NOT:     diffattn.online_attention
func.func @scheduled(%q1: !q, %q2: !n, %k: !k, %v: !v, %ranges: index) {
  %max1 = tensor.empty(%ranges) : !r1
  %acc = tensor.empty(%ranges) : !ra
  %max2 = tensor.empty(%ranges) : !r2
  %a:6 = diffattn.online_attention ins(%q1, %k, %q2, %k, %v : !q, !k, !n, !k, !v)
           outs(%max1, %max1, %acc, %max2, %max2, %acc : !r1, !r1, !ra, !r2, !r2, !ra)
           {scale = 1.0 : f32, kv_split_size = 16, schedule = #diffattn.gpu_split_kv<warps = 1, kv_split_size = 16>}
           -> !r1, !r1, !ra, !r2, !r2, !ra
  call @end(%a#0, %a#1, %a#2, %a#3, %a#4, %a#5) : (!r1, !r1, !ra, !r2, !r2, !ra) -> ()
  return
}

func.func @main() {
  %q1 = arith.constant dense<[[[[200.0], [-200.0], [0.0]], [[-200.0], [200.0], [200.0]]]]> : !q
  %q2 = arith.constant dense<[[[[0.0], [200.0], [-200.0]]]]> : !n
  %k = arith.constant dense<[[[[0.0], [1.0], [2.0], [9.0]]]]> : !k
  %v = arith.constant dense<[[[[2.0, 4.0], [6.0, 8.0], [10.0, 1.0], [77.0, 77.0]],
                              [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [77.0, 77.0]]]]> : !v
  %n = arith.constant dense<3> : tensor<1xi64>
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %c4 = arith.constant 4 : index
  // CHECK:      [4,   5],
  // CHECK-NEXT: [-3,   3.5],
  // CHECK-NEXT: [5,   2.33333]
  // CHECK:      [0,   0.5],
  // CHECK-NEXT: [2.5,   3],
  // CHECK-NEXT: [4.5,   5]
  call @threes(%q1, %q2, %k, %v, %n, %c2) : (!q, !n, !k, !v, tensor<1xi64>, index) -> ()
  // CHECK:      [4,   5],
  // CHECK-NEXT: [-3,   3.5],
  // CHECK-NEXT: [5,   2.33333]
  // CHECK:      [0,   0.5],
  // CHECK-NEXT: [2.5,   3],
  // CHECK-NEXT: [4.5,   5]
  call @threes(%q1, %q2, %k, %v, %n, %c3) : (!q, !n, !k, !v, tensor<1xi64>, index) -> ()
  // Row 0 sees one key, row 1 two, row 2 three.
  // CHECK:      [1,   2],
  // CHECK-NEXT: [-1,   0],
  // CHECK-NEXT: [5,   2.33333]
  // CHECK:      [0.5,   1],
  // CHECK-NEXT: [1.5,   2],
  // CHECK-NEXT: [4.5,   5]
  call @ones(%q1, %q2, %k, %v, %n, %c4) : (!q, !n, !k, !v, tensor<1xi64>, index) -> ()
  // CHECK:      [0,   0],
  // CHECK-NEXT: [0,   0],
  // CHECK-NEXT: [0,   0]
  %none = arith.constant dense<0> : tensor<1xi64>
  call @threes(%q1, %q2, %k, %v, %none, %c2) : (!q, !n, !k, !v, tensor<1xi64>, index) -> ()
  return
}
