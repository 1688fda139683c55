// RUN: diffattn-opt %s --diffattn-bind-weights --diffattn-merge-gemms --cse --split-input-file | FileCheck %s

// Queries, keys and values of a layer: one product with the rows of all, in the order of declaration. That of the values, which is
// bf16 where others are f32, is rounded from f32.
// CHECK: diffattn.weights = [#diffattn.weight<name = "l.{}.q", type = tensor<64x32xbf16>, layers = 3>,
// CHECK-SAME: #diffattn.weight<name = "l.{}.norm", type = tensor<32xf32>, layers = 3>,
// CHECK-SAME: #diffattn.weight<name = "l.{}.k", type = tensor<16x32xbf16>, layers = 3, follows = "l.{}.q">,
// CHECK-SAME: #diffattn.weight<name = "l.{}.v", type = tensor<32x32xbf16>, layers = 3, follows = "l.{}.k">]
ml_program.global private @"l.{}.q"(#ml_program.extern<tensor<64x32xbf16>>) : tensor<64x32xbf16> {diffattn.layers = 3 : i64}
ml_program.global private @"l.{}.norm"(#ml_program.extern<tensor<32xf32>>) : tensor<32xf32> {diffattn.layers = 3 : i64}
ml_program.global private @"l.{}.k"(#ml_program.extern<tensor<16x32xbf16>>) : tensor<16x32xbf16> {diffattn.layers = 3 : i64}
ml_program.global private @"l.{}.v"(#ml_program.extern<tensor<32x32xbf16>>) : tensor<32x32xbf16> {diffattn.layers = 3 : i64}
// CHECK-LABEL: func.func @layer(
// CHECK-SAME: %[[X:.+]]: tensor<?x32xbf16>, %[[LAYER:.+]]: index, %[[M:.+]]: index)
func.func @layer(%x: tensor<?x32xbf16>, %layer: index, %m: index) -> (tensor<?x32xbf16>, tensor<?x64xf32>, tensor<?x16xf32>) {
  // CHECK-DAG: %[[FIRST:.+]] = arith.constant 0 : index
  // CHECK: %[[SLOT:.+]] = arith.addi %[[LAYER]], %[[FIRST]]
  // CHECK: %[[W:.+]] = diffattn.weight %[[SLOT]] : memref<112x32xbf16>
  // CHECK: %[[B:.+]] = bufferization.to_tensor %[[W]] restrict
  // CHECK: %[[C:.+]] = tensor.empty({{.+}}) : tensor<?x112xf32>
  // CHECK: %[[P:.+]] = diffattn.gemm ins(%[[X]], %[[B]] : tensor<?x32xbf16>, tensor<112x32xbf16>) outs(%[[C]] : tensor<?x112xf32>) {transpose_b}
  // CHECK: %[[V32:.+]] = tensor.extract_slice %[[P]][0, 80] [{{.+}}, 32] [1, 1]
  // CHECK: %[[V:.+]] = linalg.generic {{.+}} ins(%[[V32]] : tensor<?x32xf32>) outs({{.+}} : tensor<?x32xbf16>)
  // CHECK: arith.truncf
  // CHECK: %[[Q:.+]] = tensor.extract_slice %[[P]][0, 0] [{{.+}}, 64] [1, 1]
  // CHECK: %[[K:.+]] = tensor.extract_slice %[[P]][0, 64] [{{.+}}, 16] [1, 1]
  // CHECK-NOT: diffattn.gemm
  // CHECK: return %[[V]], %[[Q]], %[[K]]
  %wv = diffattn.layer_weight @"l.{}.v"[%layer] : tensor<32x32xbf16>
  %ev = tensor.empty(%m) : tensor<?x32xbf16>
  %v = diffattn.gemm ins(%x, %wv : tensor<?x32xbf16>, tensor<32x32xbf16>) outs(%ev : tensor<?x32xbf16>) {transpose_b} -> tensor<?x32xbf16>
  %wq = diffattn.layer_weight @"l.{}.q"[%layer] : tensor<64x32xbf16>
  %eq = tensor.empty(%m) : tensor<?x64xf32>
  %q = diffattn.gemm ins(%x, %wq : tensor<?x32xbf16>, tensor<64x32xbf16>) outs(%eq : tensor<?x64xf32>) {transpose_b} -> tensor<?x64xf32>
  %wk = diffattn.layer_weight @"l.{}.k"[%layer] : tensor<16x32xbf16>
  %ek = tensor.empty(%m) : tensor<?x16xf32>
  %k = diffattn.gemm ins(%x, %wk : tensor<?x32xbf16>, tensor<16x32xbf16>) outs(%ek : tensor<?x16xf32>) {transpose_b} -> tensor<?x16xf32>
  return %v, %q, %k : tensor<?x32xbf16>, tensor<?x64xf32>, tensor<?x16xf32>
}

// -----

// A gate and what it gates, without layers. The weights may be read alone too: neither moves.
// CHECK: #diffattn.weight<name = "gate", type = tensor<64x32xf32>>, #diffattn.weight<name = "up", type = tensor<64x32xf32>, follows = "gate">
ml_program.global private @gate(#ml_program.extern<tensor<64x32xf32>>) : tensor<64x32xf32>
ml_program.global private @up(#ml_program.extern<tensor<64x32xf32>>) : tensor<64x32xf32>
// CHECK-LABEL: func.func @gated(
// CHECK: diffattn.gemm {{.+}} tensor<128x32xf32>) outs({{.+}} : tensor<4x128xf32>)
// CHECK-NOT: diffattn.gemm
// CHECK: tensor.extract_slice {{.+}}[0, 0] [4, 64] [1, 1]
// CHECK: tensor.extract_slice {{.+}}[0, 64] [4, 64] [1, 1]
func.func @gated(%x: tensor<4x32xf32>) -> (tensor<4x64xf32>, tensor<4x64xf32>) {
  %wg = ml_program.global_load_const @gate : tensor<64x32xf32>
  %wu = ml_program.global_load_const @up : tensor<64x32xf32>
  %e = tensor.empty() : tensor<4x64xf32>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  return %g, %u : tensor<4x64xf32>, tensor<4x64xf32>
}
// Another function has one of them alone.
// CHECK-LABEL: func.func @alone(
// CHECK: %[[ONE:.+]] = arith.constant 1 : index
// CHECK: diffattn.weight %[[ONE]] : memref<64x32xf32>
// CHECK: diffattn.gemm {{.+}} tensor<64x32xf32>)
func.func @alone(%x: tensor<4x32xf32>) -> tensor<4x64xf32> {
  %wu = ml_program.global_load_const @up : tensor<64x32xf32>
  %e = tensor.empty() : tensor<4x64xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  return %u : tensor<4x64xf32>
}

// -----

// A weight lies beside one other: what another function would have beside it stays apart.
// CHECK: #diffattn.weight<name = "a", type = tensor<64x32xf32>>, #diffattn.weight<name = "b", type = tensor<64x32xf32>, follows = "a">, #diffattn.weight<name = "c", type = tensor<64x32xf32>>
ml_program.global private @a(#ml_program.extern<tensor<64x32xf32>>) : tensor<64x32xf32>
ml_program.global private @b(#ml_program.extern<tensor<64x32xf32>>) : tensor<64x32xf32>
ml_program.global private @c(#ml_program.extern<tensor<64x32xf32>>) : tensor<64x32xf32>
// CHECK-LABEL: func.func @a_and_b(
// CHECK: diffattn.gemm {{.+}} tensor<128x32xf32>)
func.func @a_and_b(%x: tensor<4x32xf32>) -> (tensor<4x64xf32>, tensor<4x64xf32>) {
  %w0 = ml_program.global_load_const @a : tensor<64x32xf32>
  %w1 = ml_program.global_load_const @b : tensor<64x32xf32>
  %e = tensor.empty() : tensor<4x64xf32>
  %0 = diffattn.gemm ins(%x, %w0 : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  %1 = diffattn.gemm ins(%x, %w1 : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  return %0, %1 : tensor<4x64xf32>, tensor<4x64xf32>
}
// CHECK-LABEL: func.func @a_and_c(
// CHECK-COUNT-2: diffattn.gemm {{.+}} tensor<64x32xf32>)
func.func @a_and_c(%x: tensor<4x32xf32>) -> (tensor<4x64xf32>, tensor<4x64xf32>) {
  %w0 = ml_program.global_load_const @a : tensor<64x32xf32>
  %w1 = ml_program.global_load_const @c : tensor<64x32xf32>
  %e = tensor.empty() : tensor<4x64xf32>
  %0 = diffattn.gemm ins(%x, %w0 : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  %1 = diffattn.gemm ins(%x, %w1 : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  return %0, %1 : tensor<4x64xf32>, tensor<4x64xf32>
}

// -----

// What stays apart.
// CHECK-NOT: follows
ml_program.global private @w(#ml_program.extern<tensor<64x32xf32>>) : tensor<64x32xf32>
ml_program.global private @u(#ml_program.extern<tensor<64x32xf32>>) : tensor<64x32xf32>
ml_program.global private @tall(#ml_program.extern<tensor<32x64xf32>>) : tensor<32x64xf32>
ml_program.global private @flat(#ml_program.extern<tensor<32x64xf32>>) : tensor<32x64xf32>
ml_program.global private @odd(#ml_program.extern<tensor<2x32xf32>>) : tensor<2x32xf32>
ml_program.global private @rough(#ml_program.extern<tensor<4x6xf32>>) : tensor<4x6xf32>
ml_program.global private @coarse(#ml_program.extern<tensor<4x6xf32>>) : tensor<4x6xf32>
ml_program.global private @half(#ml_program.extern<tensor<64x32xbf16>>) : tensor<64x32xbf16>
ml_program.global private @"l.{}.w"(#ml_program.extern<tensor<64x32xf32>>) : tensor<64x32xf32> {diffattn.layers = 2 : i64}
ml_program.global private @"l.{}.u"(#ml_program.extern<tensor<64x32xf32>>) : tensor<64x32xf32> {diffattn.layers = 2 : i64}
ml_program.global private @bytes(#ml_program.extern<tensor<64x32xi8>>) : tensor<64x32xi8>
ml_program.global private @scales(#ml_program.extern<tensor<64x4xf32>>) : tensor<64x4xf32>

// Other rows.
// CHECK-LABEL: func.func @other_rows(
// CHECK-COUNT-2: diffattn.gemm {{.+}} tensor<64x32xf32>)
func.func @other_rows(%x: tensor<4x32xf32>, %y: tensor<4x32xf32>) -> (tensor<4x64xf32>, tensor<4x64xf32>) {
  %w = ml_program.global_load_const @w : tensor<64x32xf32>
  %u = ml_program.global_load_const @u : tensor<64x32xf32>
  %e = tensor.empty() : tensor<4x64xf32>
  %0 = diffattn.gemm ins(%x, %w : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  %1 = diffattn.gemm ins(%y, %u : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  return %0, %1 : tensor<4x64xf32>, tensor<4x64xf32>
}

// Rows whose number is known in one product alone.
// CHECK-LABEL: func.func @other_sizes(
// CHECK-COUNT-2: diffattn.gemm {{.+}} tensor<64x32xf32>)
func.func @other_sizes(%x: tensor<?x32xf32>, %n: index) -> (tensor<?x64xf32>, tensor<4x64xf32>) {
  %w = ml_program.global_load_const @w : tensor<64x32xf32>
  %u = ml_program.global_load_const @u : tensor<64x32xf32>
  %e = tensor.empty(%n) : tensor<?x64xf32>
  %e4 = tensor.empty() : tensor<4x64xf32>
  %0 = diffattn.gemm ins(%x, %w : tensor<?x32xf32>, tensor<64x32xf32>) outs(%e : tensor<?x64xf32>) {transpose_b} -> tensor<?x64xf32>
  %1 = diffattn.gemm ins(%x, %u : tensor<?x32xf32>, tensor<64x32xf32>) outs(%e4 : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  return %0, %1 : tensor<?x64xf32>, tensor<4x64xf32>
}

// A matrix that is no weight, and one that is but not as a whole.
// CHECK-LABEL: func.func @no_weight(
// CHECK-COUNT-3: diffattn.gemm {{.+}} tensor<64x32xf32>)
func.func @no_weight(%x: tensor<4x32xf32>, %z: tensor<64x32xf32>) -> (tensor<4x64xf32>, tensor<4x64xf32>, tensor<4x64xf32>) {
  %w = ml_program.global_load_const @w : tensor<64x32xf32>
  %t = ml_program.global_load_const @tall : tensor<32x64xf32>
  %flat = tensor.collapse_shape %t [[0, 1]] : tensor<32x64xf32> into tensor<2048xf32>
  %p = tensor.expand_shape %flat [[0, 1]] output_shape [64, 32] : tensor<2048xf32> into tensor<64x32xf32>
  %e = tensor.empty() : tensor<4x64xf32>
  %0 = diffattn.gemm ins(%x, %w : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  %1 = diffattn.gemm ins(%x, %z : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  %2 = diffattn.gemm ins(%x, %p : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  return %0, %1, %2 : tensor<4x64xf32>, tensor<4x64xf32>, tensor<4x64xf32>
}

// Results that have a place already, or are added to what is there.
// CHECK-LABEL: func.func @with_a_place(
// CHECK-COUNT-2: diffattn.gemm {{.+}} tensor<64x32xf32>)
func.func @with_a_place(%x: tensor<4x32xf32>, %c: tensor<4x64xf32>) -> (tensor<4x64xf32>, tensor<4x64xf32>) {
  %w = ml_program.global_load_const @w : tensor<64x32xf32>
  %u = ml_program.global_load_const @u : tensor<64x32xf32>
  %e = tensor.empty() : tensor<4x64xf32>
  %0 = diffattn.gemm ins(%x, %w : tensor<4x32xf32>, tensor<64x32xf32>) outs(%c : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  %1 = diffattn.gemm ins(%x, %u : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {accumulate, transpose_b} -> tensor<4x64xf32>
  return %0, %1 : tensor<4x64xf32>, tensor<4x64xf32>
}

// [K, N]: the columns of two weights do not lie side by side.
// CHECK-LABEL: func.func @columns(
// CHECK-COUNT-2: diffattn.gemm {{.+}} tensor<32x64xf32>)
func.func @columns(%x: tensor<4x32xf32>) -> (tensor<4x64xf32>, tensor<4x64xf32>) {
  %w = ml_program.global_load_const @tall : tensor<32x64xf32>
  %u = ml_program.global_load_const @flat : tensor<32x64xf32>
  %e = tensor.empty() : tensor<4x64xf32>
  %0 = diffattn.gemm ins(%x, %w : tensor<4x32xf32>, tensor<32x64xf32>) outs(%e : tensor<4x64xf32>) -> tensor<4x64xf32>
  %1 = diffattn.gemm ins(%x, %u : tensor<4x32xf32>, tensor<32x64xf32>) outs(%e : tensor<4x64xf32>) -> tensor<4x64xf32>
  return %0, %1 : tensor<4x64xf32>, tensor<4x64xf32>
}

// Columns of results that would begin at no 16 bytes, and weights that could not lie side by side.
// CHECK-LABEL: func.func @unaligned(
// CHECK: diffattn.gemm {{.+}} tensor<64x32xf32>)
// CHECK: diffattn.gemm {{.+}} tensor<2x32xf32>)
// CHECK-COUNT-2: diffattn.gemm {{.+}} tensor<4x6xf32>)
func.func @unaligned(%x: tensor<4x32xf32>, %y: tensor<4x6xf32>) -> (tensor<4x64xf32>, tensor<4x2xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
  %w = ml_program.global_load_const @w : tensor<64x32xf32>
  %o = ml_program.global_load_const @odd : tensor<2x32xf32>
  %r = ml_program.global_load_const @rough : tensor<4x6xf32>
  %c = ml_program.global_load_const @coarse : tensor<4x6xf32>
  %e = tensor.empty() : tensor<4x64xf32>
  %e2 = tensor.empty() : tensor<4x2xf32>
  %e4 = tensor.empty() : tensor<4x4xf32>
  %0 = diffattn.gemm ins(%x, %w : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  %1 = diffattn.gemm ins(%x, %o : tensor<4x32xf32>, tensor<2x32xf32>) outs(%e2 : tensor<4x2xf32>) {transpose_b} -> tensor<4x2xf32>
  %2 = diffattn.gemm ins(%y, %r : tensor<4x6xf32>, tensor<4x6xf32>) outs(%e4 : tensor<4x4xf32>) {transpose_b} -> tensor<4x4xf32>
  %3 = diffattn.gemm ins(%y, %c : tensor<4x6xf32>, tensor<4x6xf32>) outs(%e4 : tensor<4x4xf32>) {transpose_b} -> tensor<4x4xf32>
  return %0, %1, %2, %3 : tensor<4x64xf32>, tensor<4x2xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}

// Elements of another type.
// CHECK-LABEL: func.func @other_types(
// CHECK: diffattn.gemm {{.+}} tensor<64x32xf32>)
// CHECK: diffattn.gemm {{.+}} tensor<64x32xbf16>)
func.func @other_types(%x: tensor<4x32xf32>) -> (tensor<4x64xf32>, tensor<4x64xf32>) {
  %w = ml_program.global_load_const @w : tensor<64x32xf32>
  %h = ml_program.global_load_const @half : tensor<64x32xbf16>
  %e = tensor.empty() : tensor<4x64xf32>
  %0 = diffattn.gemm ins(%x, %w : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  %1 = diffattn.gemm ins(%x, %h : tensor<4x32xf32>, tensor<64x32xbf16>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  return %0, %1 : tensor<4x64xf32>, tensor<4x64xf32>
}

// Other layers, and a layer beside a weight without.
// CHECK-LABEL: func.func @other_layers(
// CHECK-COUNT-3: diffattn.gemm {{.+}} tensor<64x32xf32>)
func.func @other_layers(%x: tensor<4x32xf32>, %i: index, %j: index) -> (tensor<4x64xf32>, tensor<4x64xf32>, tensor<4x64xf32>) {
  %w = diffattn.layer_weight @"l.{}.w"[%i] : tensor<64x32xf32>
  %u = diffattn.layer_weight @"l.{}.u"[%j] : tensor<64x32xf32>
  %n = ml_program.global_load_const @w : tensor<64x32xf32>
  %e = tensor.empty() : tensor<4x64xf32>
  %0 = diffattn.gemm ins(%x, %w : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  %1 = diffattn.gemm ins(%x, %u : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  %2 = diffattn.gemm ins(%x, %n : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  return %0, %1, %2 : tensor<4x64xf32>, tensor<4x64xf32>, tensor<4x64xf32>
}

// Another block, which may not run.
// CHECK-LABEL: func.func @other_block(
// CHECK-COUNT-2: diffattn.gemm {{.+}} tensor<64x32xf32>)
func.func @other_block(%x: tensor<4x32xf32>, %c: i1) -> (tensor<4x64xf32>, tensor<4x64xf32>) {
  %w = ml_program.global_load_const @w : tensor<64x32xf32>
  %u = ml_program.global_load_const @u : tensor<64x32xf32>
  %e = tensor.empty() : tensor<4x64xf32>
  %0 = diffattn.gemm ins(%x, %w : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  %1 = scf.if %c -> tensor<4x64xf32> {
    %2 = diffattn.gemm ins(%x, %u : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
    scf.yield %2 : tensor<4x64xf32>
  } else {
    scf.yield %0 : tensor<4x64xf32>
  }
  return %0, %1 : tensor<4x64xf32>, tensor<4x64xf32>
}

// Integers with scales.
// CHECK-LABEL: func.func @quantized(
// CHECK: diffattn.gemm {{.+}} tensor<64x32xf32>)
// CHECK: diffattn.quantized_gemm
func.func @quantized(%x: tensor<4x32xf32>) -> (tensor<4x64xf32>, tensor<4x64xf32>) {
  %w = ml_program.global_load_const @w : tensor<64x32xf32>
  %b = ml_program.global_load_const @bytes : tensor<64x32xi8>
  %s = ml_program.global_load_const @scales : tensor<64x4xf32>
  %e = tensor.empty() : tensor<4x64xf32>
  %0 = diffattn.gemm ins(%x, %w : tensor<4x32xf32>, tensor<64x32xf32>) outs(%e : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
  %1 = diffattn.quantized_gemm ins(%x, %b, %s : tensor<4x32xf32>, tensor<64x32xi8>, tensor<64x4xf32>) outs(%e : tensor<4x64xf32>) {bits = 8 : i64} -> tensor<4x64xf32>
  return %0, %1 : tensor<4x64xf32>, tensor<4x64xf32>
}

// On buffers, where ops between may write.
// CHECK-LABEL: func.func @buffers(
// CHECK-COUNT-2: diffattn.gemm {{.+}} memref<64x32xf32>)
func.func @buffers(%x: memref<4x32xf32>, %w: memref<64x32xf32>, %u: memref<64x32xf32>, %c: memref<4x64xf32>, %d: memref<4x64xf32>) {
  diffattn.gemm ins(%x, %w : memref<4x32xf32>, memref<64x32xf32>) outs(%c : memref<4x64xf32>) {transpose_b}
  diffattn.gemm ins(%x, %u : memref<4x32xf32>, memref<64x32xf32>) outs(%d : memref<4x64xf32>) {transpose_b}
  return
}
