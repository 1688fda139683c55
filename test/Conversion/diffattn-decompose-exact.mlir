// RUN: diffattn-opt %s --diffattn-decompose --one-shot-bufferize=bufferize-function-boundaries \
// RUN:   --convert-linalg-to-loops --expand-strided-metadata --lower-affine --convert-scf-to-cf \
// RUN:   --convert-math-to-libm --convert-to-llvm --reconcile-unrealized-casts \
// RUN: | mlir-runner -e main --entry-point-result=void \
// RUN:   --shared-libs=%mlir_lib_dir/libmlir_runner_utils.so,%mlir_lib_dir/libmlir_c_runner_utils.so,%mlir_lib_dir/libmlir_float16_utils.so \
// RUN: | FileCheck %s

// Logits of 200 and 0 saturate a softmax to exactly 1 and 0, so every answer is
// a sum of a few rows of V and no tolerance hides a wrong mask, head or layout.

func.func private @printMemrefF32(memref<*xf32>)

// Query i picks key (i mod 2) in map 1 and the other key in map 2.
func.func @basic(%tk: index, %l: tensor<f32>) {
  %q1 = arith.constant dense<[[[[200.0, 0.0], [0.0, 200.0]]]]> : tensor<1x1x2x2xf32>
  %q2 = arith.constant dense<[[[[0.0, 200.0], [200.0, 0.0]]]]> : tensor<1x1x2x2xf32>
  %k0 = arith.constant dense<[[[[1.0, 0.0], [0.0, 1.0]]]]> : tensor<1x1x2x2xf32>
  %v0 = arith.constant dense<[[[[2.0, 4.0, 0.5], [6.0, 8.0, 1.0]]]]> : tensor<1x1x2x3xf32>
  %k = tensor.extract_slice %k0[0, 0, 0, 0] [1, 1, %tk, 2] [1, 1, 1, 1]
      : tensor<1x1x2x2xf32> to tensor<1x1x?x2xf32>
  %v = tensor.extract_slice %v0[0, 0, 0, 0] [1, 1, %tk, 3] [1, 1, 1, 1]
      : tensor<1x1x2x3xf32> to tensor<1x1x?x3xf32>
  %init = tensor.empty() : tensor<1x1x2x3xf32>
  %o = diffattn.attention ins(%q1, %k, %q2, %k, %v : tensor<1x1x2x2xf32>, tensor<1x1x?x2xf32>,
         tensor<1x1x2x2xf32>, tensor<1x1x?x2xf32>, tensor<1x1x?x3xf32>)
         lambda(%l : tensor<f32>) outs(%init : tensor<1x1x2x3xf32>) {scale = 1.0 : f32}
         -> tensor<1x1x2x3xf32>
  %b = bufferization.to_buffer %o : tensor<1x1x2x3xf32> to memref<1x1x2x3xf32>
  %u = memref.cast %b : memref<1x1x2x3xf32> to memref<*xf32>
  call @printMemrefF32(%u) : (memref<*xf32>) -> ()
  return
}

// Two signal heads to one noise head, lengths before heads, the mask a window of
// one key to the left beside causal, lambda by token and noise head, V by signal head.
func.func @grouped() {
  %q1 = arith.constant dense<0.0> : tensor<1x3x2x1xf32>
  %q2 = arith.constant dense<0.0> : tensor<1x3x1x1xf32>
  %k = arith.constant dense<1.0> : tensor<1x3x1x1xf32>
  %v = arith.constant dense<[[[[1.0], [3.0], [7.0]], [[10.0], [30.0], [70.0]]]]>
      : tensor<1x2x3x1xf32>
  %l = arith.constant dense<[[[0.0], [0.5], [2.0]]]> : tensor<1x3x1xf32>
  %init = tensor.empty() : tensor<1x3x2x1xf32>
  %o = diffattn.attention ins(%q1, %k, %q2, %k, %v : tensor<1x3x2x1xf32>, tensor<1x3x1x1xf32>,
         tensor<1x3x1x1xf32>, tensor<1x3x1x1xf32>, tensor<1x2x3x1xf32>)
         lambda(%l : tensor<1x3x1xf32>) outs(%init : tensor<1x3x2x1xf32>)
         {scale = 1.0 : f32, is_causal, window = array<i64: 1, -1>,
          q_layout = #diffattn.layout<bthd>, k_layout = #diffattn.layout<bthd>,
          o_layout = #diffattn.layout<bthd>} -> tensor<1x3x2x1xf32>
  %b = bufferization.to_buffer %o : tensor<1x3x2x1xf32> to memref<1x3x2x1xf32>
  %u = memref.cast %b : memref<1x3x2x1xf32> to memref<*xf32>
  call @printMemrefF32(%u) : (memref<*xf32>) -> ()
  return
}

// The same op on memrefs; a row that sees no key is 0, also behind norm and gate,
// and NaN in a value that no query sees stays out.
func.func @memrefs() {
  %q_t = arith.constant dense<0.0> : tensor<2x1x2x1xf32>
  %v_t = arith.constant dense<[[[[4.0, 0.0], [0x7FC00000, 5.0]]], [[[6.0, 8.0], [2.0, 0.0]]]]>
      : tensor<2x1x2x2xf32>
  %n_t = arith.constant dense<[1, 2]> : tensor<2xi64>
  %l_t = arith.constant dense<0.5> : tensor<f32>
  %g_t = arith.constant dense<0.0> : tensor<2x1x2x2xf32>
  %m_t = arith.constant dense<[[[[true, true], [false, true]]]]> : tensor<1x1x2x2xi1>
  %q = bufferization.to_buffer %q_t read_only : tensor<2x1x2x1xf32> to memref<2x1x2x1xf32>
  %v = bufferization.to_buffer %v_t read_only : tensor<2x1x2x2xf32> to memref<2x1x2x2xf32>
  %n = bufferization.to_buffer %n_t read_only : tensor<2xi64> to memref<2xi64>
  %l = bufferization.to_buffer %l_t read_only : tensor<f32> to memref<f32>
  %g = bufferization.to_buffer %g_t read_only : tensor<2x1x2x2xf32> to memref<2x1x2x2xf32>
  %m = bufferization.to_buffer %m_t read_only : tensor<1x1x2x2xi1> to memref<1x1x2x2xi1>
  %o = memref.alloc() : memref<2x1x2x2xf32>
  diffattn.attention ins(%q, %q, %q, %q, %v : memref<2x1x2x1xf32>, memref<2x1x2x1xf32>,
         memref<2x1x2x1xf32>, memref<2x1x2x1xf32>, memref<2x1x2x2xf32>)
         lambda(%l : memref<f32>) bias(%m : memref<1x1x2x2xi1>) gate(%g : memref<2x1x2x2xf32>)
         kv_len(%n : memref<2xi64>) outs(%o : memref<2x1x2x2xf32>) {scale = 1.0 : f32}
  %u = memref.cast %o : memref<2x1x2x2xf32> to memref<*xf32>
  call @printMemrefF32(%u) : (memref<*xf32>) -> ()
  diffattn.attention ins(%q, %q, %q, %q, %v : memref<2x1x2x1xf32>, memref<2x1x2x1xf32>,
         memref<2x1x2x1xf32>, memref<2x1x2x1xf32>, memref<2x1x2x2xf32>)
         lambda(%l : memref<f32>) bias(%m : memref<1x1x2x2xi1>)
         kv_len(%n : memref<2xi64>) outs(%o : memref<2x1x2x2xf32>)
         {scale = 1.0 : f32, norm = #diffattn.norm<rms>, norm_eps = 0.0 : f32}
  call @printMemrefF32(%u) : (memref<*xf32>) -> ()
  memref.dealloc %o : memref<2x1x2x2xf32>
  return
}

// NaN in a row of Q stays in that row; NaN in a key or value reaches the rows that see it.
func.func @nan(%q1: tensor<1x1x3x1xf32>, %k: tensor<1x1x3x1xf32>, %v: tensor<1x1x3x1xf32>) {
  %q2 = arith.constant dense<0.0> : tensor<1x1x3x1xf32>
  %k2 = arith.constant dense<0.0> : tensor<1x1x3x1xf32>
  %l = arith.constant dense<0.0> : tensor<1xf32>
  %init = tensor.empty() : tensor<1x1x3x1xf32>
  %o = diffattn.attention ins(%q1, %k, %q2, %k2, %v : tensor<1x1x3x1xf32>, tensor<1x1x3x1xf32>,
         tensor<1x1x3x1xf32>, tensor<1x1x3x1xf32>, tensor<1x1x3x1xf32>)
         lambda(%l : tensor<1xf32>) outs(%init : tensor<1x1x3x1xf32>)
         {scale = 1.0 : f32, is_causal} -> tensor<1x1x3x1xf32>
  %b = bufferization.to_buffer %o : tensor<1x1x3x1xf32> to memref<1x1x3x1xf32>
  %u = memref.cast %b : memref<1x1x3x1xf32> to memref<*xf32>
  call @printMemrefF32(%u) : (memref<*xf32>) -> ()
  return
}

func.func @main() {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %half = arith.constant dense<0.5> : tensor<f32>
  // CHECK:      [-1,     0,    0],
  // CHECK-NEXT: [5,    6,    0.75]
  call @basic(%c2, %half) : (index, tensor<f32>) -> ()
  // Without keys every row is 0.
  // CHECK:      [0,    0,    0],
  // CHECK-NEXT: [0,    0,    0]
  call @basic(%c0, %half) : (index, tensor<f32>) -> ()
  // CHECK:      [1],
  // CHECK-NEXT: [10]
  // CHECK:      [1],
  // CHECK-NEXT: [10]
  // CHECK:      [-5],
  // CHECK-NEXT: [-50]
  call @grouped() : () -> ()
  // CHECK:      [1,    0],
  // CHECK-NEXT: [0,    0]
  // CHECK:      [1,    1],
  // CHECK-NEXT: [0.5,    0]
  // CHECK:      [1.41421,    0],
  // CHECK-NEXT: [0,    0]
  // CHECK:      [1,    1],
  // CHECK-NEXT: [1.41421,    0]
  call @memrefs() : () -> ()
  %zeros = arith.constant dense<0.0> : tensor<1x1x3x1xf32>
  %ones = arith.constant dense<1.0> : tensor<1x1x3x1xf32>
  %second = arith.constant dense<[[[[1.0], [0x7FC00000], [1.0]]]]> : tensor<1x1x3x1xf32>
  // CHECK:      [1],
  // CHECK-NEXT: [nan],
  // CHECK-NEXT: [1]
  call @nan(%second, %zeros, %ones)
      : (tensor<1x1x3x1xf32>, tensor<1x1x3x1xf32>, tensor<1x1x3x1xf32>) -> ()
  // CHECK:      [1],
  // CHECK-NEXT: [nan],
  // CHECK-NEXT: [nan]
  call @nan(%zeros, %second, %ones)
      : (tensor<1x1x3x1xf32>, tensor<1x1x3x1xf32>, tensor<1x1x3x1xf32>) -> ()
  // CHECK:      [1],
  // CHECK-NEXT: [nan],
  // CHECK-NEXT: [nan]
  call @nan(%zeros, %zeros, %second)
      : (tensor<1x1x3x1xf32>, tensor<1x1x3x1xf32>, tensor<1x1x3x1xf32>) -> ()
  return
}
