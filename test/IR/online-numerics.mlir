// One attention in three forms, and a single map likewise: whole, as an online op over all keys, and as two
// online ops over parts of the keys whose states are joined. All are exact here:
// logits of 200 and 0 saturate the softmax, and ties share weight by halves.
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
// The same with the ops themselves in buffers: states are read, so those that are
// used twice are copied.
// RUN: diffattn-opt %s --one-shot-bufferize=bufferize-function-boundaries \
// RUN: | FileCheck %s --check-prefix=BUFFERS
// RUN: diffattn-opt %s --one-shot-bufferize=bufferize-function-boundaries %{lower} \
// RUN: | %{run} | FileCheck %s
//
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-to-online))" \
// RUN: | diffattn-opt %{lower} | %{run} | FileCheck %s

!q = tensor<1x2x3x1xf32>
!n = tensor<1x1x3x1xf32>
!k = tensor<1x1x4x1xf32>
!v = tensor<1x2x4x2xf32>
!m1 = tensor<1x2x3xf32>
!a1 = tensor<1x2x3x2xf32>
!m2 = tensor<1x1x3xf32>
func.func private @printMemrefF32(memref<*xf32>)

func.func @print(%o: !a1) {
  %b = bufferization.to_buffer %o : !a1 to memref<1x2x3x2xf32>
  %u = memref.cast %b : memref<1x2x3x2xf32> to memref<*xf32>
  call @printMemrefF32(%u) : (memref<*xf32>) -> ()
  return
}

// Two signal heads with values of their own share a noise head; rows 0 to 2 see
// keys 0..1, 0..2 and 0..3, of which kv_len takes the last away.
func.func @whole(%q1: !q, %q2: !n, %k: !k, %v: !v, %l: tensor<1xf32>, %n: tensor<1xi64>) {
  %init = tensor.empty() : !a1
  %l0 = tensor.collapse_shape %l [] : tensor<1xf32> into tensor<f32>
  %p = arith.constant dense<1> : tensor<1xi64>
  %o = diffattn.attention ins(%q1, %k, %q2, %k, %v : !q, !k, !n, !k, !v) lambda(%l0 : tensor<f32>)
         kv_len(%n : tensor<1xi64>) q_offset(%p : tensor<1xi64>) outs(%init : !a1)
         {scale = 1.0 : f32, is_causal} -> !a1
  call @print(%o) : (!a1) -> ()
  return
}

// BUFFERS-LABEL: func.func @split(
// BUFFERS:         memref.copy
// BUFFERS:         diffattn.online_attention ins({{.*}} : memref<
// BUFFERS:         diffattn.online_attention ins({{.*}} : memref<
// BUFFERS:         diffattn.merge ins({{.*}} : memref<
// BUFFERS:         diffattn.merge ins({{.*}} : memref<
// BUFFERS:         diffattn.finalize ins({{.*}} : memref<
func.func @split(%q1: !q, %q2: !n, %k: !k, %v: !v, %l: tensor<1xf32>, %n: tensor<1xi64>) {
  %init = tensor.empty() : !a1
  %l0 = tensor.collapse_shape %l [] : tensor<1xf32> into tensor<f32>
  %p = arith.constant dense<1> : tensor<1xi64>
  %c1 = arith.constant 1 : index
  %ka = tensor.extract_slice %k[0, 0, 0, 0] [1, 1, 1, 1] [1, 1, 1, 1] : !k to tensor<1x1x1x1xf32>
  %va = tensor.extract_slice %v[0, 0, 0, 0] [1, 2, 1, 2] [1, 1, 1, 1] : !v to tensor<1x2x1x2xf32>
  %kb = tensor.extract_slice %k[0, 0, 1, 0] [1, 1, 3, 1] [1, 1, 1, 1] : !k to tensor<1x1x3x1xf32>
  %vb = tensor.extract_slice %v[0, 0, 1, 0] [1, 2, 3, 2] [1, 1, 1, 1] : !v to tensor<1x2x3x2xf32>
  %max1 = arith.constant dense<0xFF800000> : !m1
  %sum1 = arith.constant dense<0.0> : !m1
  %acc = arith.constant dense<0.0> : !a1
  %max2 = arith.constant dense<0xFF800000> : !m2
  %sum2 = arith.constant dense<0.0> : !m2
  %a:6 = diffattn.online_attention ins(%q1, %ka, %q2, %ka, %va : !q, tensor<1x1x1x1xf32>, !n,
           tensor<1x1x1x1xf32>, tensor<1x2x1x2xf32>) kv_len(%n : tensor<1xi64>)
           q_offset(%p : tensor<1xi64>)
           outs(%max1, %sum1, %acc, %max2, %sum2, %acc : !m1, !m1, !a1, !m2, !m2, !a1)
           {scale = 1.0 : f32, is_causal} -> !m1, !m1, !a1, !m2, !m2, !a1
  %b:6 = diffattn.online_attention ins(%q1, %kb, %q2, %kb, %vb : !q, tensor<1x1x3x1xf32>, !n,
           tensor<1x1x3x1xf32>, tensor<1x2x3x2xf32>) kv_len(%n : tensor<1xi64>)
           q_offset(%p : tensor<1xi64>) k_offset(%c1)
           outs(%max1, %sum1, %acc, %max2, %sum2, %acc : !m1, !m1, !a1, !m2, !m2, !a1)
           {scale = 1.0 : f32, is_causal} -> !m1, !m1, !a1, !m2, !m2, !a1
  %m:3 = diffattn.merge ins(%a#0, %a#1, %a#2 : !m1, !m1, !a1)
           outs(%b#0, %b#1, %b#2 : !m1, !m1, !a1) -> !m1, !m1, !a1
  %w:3 = diffattn.merge ins(%b#3, %b#4, %b#5 : !m2, !m2, !a1)
           outs(%a#3, %a#4, %a#5 : !m2, !m2, !a1) -> !m2, !m2, !a1
  %o = diffattn.finalize ins(%m#1, %m#2, %w#1, %w#2 : !m1, !a1, !m2, !a1)
         lambda(%l0 : tensor<f32>) outs(%init : !a1) -> !a1
  call @print(%o) : (!a1) -> ()
  return
}

// One map, its heads signal heads, and an end of its rows.
func.func @whole_of_one_map(%q: !q, %k: !k, %v: !v, %n: tensor<1xi64>) {
  %init = tensor.empty() : !a1
  %p = arith.constant dense<1> : tensor<1xi64>
  %o = diffattn.attention ins(%q, %k, %v : !q, !k, !v) kv_len(%n : tensor<1xi64>) q_offset(%p : tensor<1xi64>)
         outs(%init : !a1) {scale = 1.0 : f32, is_causal, out_scale = 2.0 : f32} -> !a1
  call @print(%o) : (!a1) -> ()
  return
}

func.func @split_of_one_map(%q: !q, %k: !k, %v: !v, %n: tensor<1xi64>) {
  %init = tensor.empty() : !a1
  %p = arith.constant dense<1> : tensor<1xi64>
  %c1 = arith.constant 1 : index
  %ka = tensor.extract_slice %k[0, 0, 0, 0] [1, 1, 1, 1] [1, 1, 1, 1] : !k to tensor<1x1x1x1xf32>
  %va = tensor.extract_slice %v[0, 0, 0, 0] [1, 2, 1, 2] [1, 1, 1, 1] : !v to tensor<1x2x1x2xf32>
  %kb = tensor.extract_slice %k[0, 0, 1, 0] [1, 1, 3, 1] [1, 1, 1, 1] : !k to tensor<1x1x3x1xf32>
  %vb = tensor.extract_slice %v[0, 0, 1, 0] [1, 2, 3, 2] [1, 1, 1, 1] : !v to tensor<1x2x3x2xf32>
  %max = arith.constant dense<0xFF800000> : !m1
  %sum = arith.constant dense<0.0> : !m1
  %acc = arith.constant dense<0.0> : !a1
  %a:3 = diffattn.online_attention ins(%q, %ka, %va : !q, tensor<1x1x1x1xf32>, tensor<1x2x1x2xf32>)
           kv_len(%n : tensor<1xi64>) q_offset(%p : tensor<1xi64>)
           outs(%max, %sum, %acc : !m1, !m1, !a1) {scale = 1.0 : f32, is_causal} -> !m1, !m1, !a1
  %b:3 = diffattn.online_attention ins(%q, %kb, %vb : !q, tensor<1x1x3x1xf32>, tensor<1x2x3x2xf32>)
           kv_len(%n : tensor<1xi64>) q_offset(%p : tensor<1xi64>) k_offset(%c1)
           outs(%max, %sum, %acc : !m1, !m1, !a1) {scale = 1.0 : f32, is_causal} -> !m1, !m1, !a1
  %m:3 = diffattn.merge ins(%a#0, %a#1, %a#2 : !m1, !m1, !a1)
           outs(%b#0, %b#1, %b#2 : !m1, !m1, !a1) -> !m1, !m1, !a1
  %o = diffattn.finalize ins(%m#1, %m#2 : !m1, !a1) outs(%init : !a1) {out_scale = 2.0 : f32} -> !a1
  call @print(%o) : (!a1) -> ()
  return
}

func.func @print_rows(%m: !m1) {
  %b = bufferization.to_buffer %m : !m1 to memref<1x2x3xf32>
  %u = memref.cast %b : memref<1x2x3xf32> to memref<*xf32>
  call @printMemrefF32(%u) : (memref<*xf32>) -> ()
  return
}

// Scores of 0, of no key in row 0, of key 0 in row 1, and of keys 0 and 1 in row 2, with sinks that count for two
// keys and for none in map 1, and for one in map 2.
func.func @sums(%v: !v, %l: tensor<1xf32>) {
  %q1 = arith.constant dense<0.0> : !q
  %q2 = arith.constant dense<0.0> : !n
  %k = arith.constant dense<0.0> : !k
  %s1 = arith.constant dense<[0.693147180, 0xFF800000]> : tensor<2xf32>
  %s2 = arith.constant dense<0.0> : tensor<1xf32>
  %p = arith.constant dense<-1> : tensor<1xi64>
  %init = tensor.empty() : !a1
  %m1 = tensor.empty() : !m1
  %m2 = tensor.empty() : !m2
  %l0 = tensor.collapse_shape %l [] : tensor<1xf32> into tensor<f32>
  %o:3 = diffattn.attention ins(%q1, %k, %q2, %k, %v : !q, !k, !n, !k, !v) lambda(%l0 : tensor<f32>)
         q_offset(%p : tensor<1xi64>) sink(%s1 : tensor<2xf32>) sink2(%s2 : tensor<1xf32>) outs(%init : !a1)
         lse1(%m1 : !m1) lse2(%m2 : !m2) {scale = 1.0 : f32, is_causal} -> !a1, !m1, !m2
  %twice = tensor.concat dim(1) %o#2, %o#2 : (!m2, !m2) -> !m1
  call @print(%o#0) : (!a1) -> ()
  call @print_rows(%o#1) : (!m1) -> ()
  call @print_rows(%twice) : (!m1) -> ()
  return
}

func.func @main() {
  %q1 = arith.constant dense<[[[[200.0], [-200.0], [0.0]], [[-200.0], [200.0], [200.0]]]]> : !q
  %q2 = arith.constant dense<[[[[0.0], [200.0], [-200.0]]]]> : !n
  %k = arith.constant dense<[[[[0.0], [1.0], [2.0], [9.0]]]]> : !k
  %v = arith.constant dense<[[[[2.0, 4.0], [6.0, 8.0], [10.0, 1.0], [77.0, 77.0]],
                              [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [77.0, 77.0]]]]> : !v
  %l = arith.constant dense<0.5> : tensor<1xf32>
  %n = arith.constant dense<3> : tensor<1xi64>
  // Head 0: key 1 less half the mean of keys 0 and 1, ...
  // CHECK:      [4,   5],
  // CHECK-NEXT: [-3,   3.5],
  // CHECK-NEXT: [5,   2.33333]
  // CHECK:      [0,   0.5],
  // CHECK-NEXT: [2.5,   3],
  // CHECK-NEXT: [4.5,   5]
  call @whole(%q1, %q2, %k, %v, %l, %n) : (!q, !n, !k, !v, tensor<1xf32>, tensor<1xi64>) -> ()
  // CHECK:      [4,   5],
  // CHECK-NEXT: [-3,   3.5],
  // CHECK-NEXT: [5,   2.33333]
  // CHECK:      [0,   0.5],
  // CHECK-NEXT: [2.5,   3],
  // CHECK-NEXT: [4.5,   5]
  call @split(%q1, %q2, %k, %v, %l, %n) : (!q, !n, !k, !v, tensor<1xf32>, tensor<1xi64>) -> ()
  // Without keys a row is 0 in every form.
  %none = arith.constant dense<0> : tensor<1xi64>
  // CHECK:      [0,   0],
  // CHECK-NEXT: [0,   0],
  // CHECK-NEXT: [0,   0]
  call @split(%q1, %q2, %k, %v, %l, %none)
      : (!q, !n, !k, !v, tensor<1xf32>, tensor<1xi64>) -> ()
  // One map picks keys 1, 0 and all three of head 0, and 0, 2 and 2 of head 1; twice their values.
  // CHECK:      [12,   16],
  // CHECK-NEXT: [4,   8],
  // CHECK-NEXT: [12,   8.66667]
  // CHECK:      [2,   4],
  // CHECK-NEXT: [10,   12],
  // CHECK-NEXT: [10,   12]
  call @whole_of_one_map(%q1, %k, %v, %n) : (!q, !k, !v, tensor<1xi64>) -> ()
  // CHECK:      [12,   16],
  // CHECK-NEXT: [4,   8],
  // CHECK-NEXT: [12,   8.66667]
  // CHECK:      [2,   4],
  // CHECK-NEXT: [10,   12],
  // CHECK-NEXT: [10,   12]
  call @split_of_one_map(%q1, %k, %v, %n) : (!q, !k, !v, tensor<1xi64>) -> ()
  // CHECK:      [0,   0],
  // CHECK-NEXT: [0,   0],
  // CHECK-NEXT: [0,   0]
  call @split_of_one_map(%q1, %k, %v, %none) : (!q, !k, !v, tensor<1xi64>) -> ()
  // A third of key 0 less half of its half, ...; logarithms of 3 and 4, of 1 and 2, and of 2 and 3.
  // CHECK:      {{\[\[\[\[}}0,   0],
  // CHECK-NEXT: [0.166667,   0.333333],
  // CHECK-NEXT: [0.666667,   1]
  // CHECK-NEXT: {{\[\[}}0,   0],
  // CHECK-NEXT: [0.75,   1.5],
  // CHECK-NEXT: [1.33333,   2]
  // CHECK:      [-inf,    1.09861,    1.38629],
  // CHECK-NEXT: [-inf,    0,    0.693147]
  // CHECK:      [-inf,    0.693147,    1.09861]
  call @sums(%v, %l) : (!v, tensor<1xf32>) -> ()
  return
}
