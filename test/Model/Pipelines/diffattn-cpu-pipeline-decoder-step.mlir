// One layer of a decoder with a KV cache, called in a loop, as the models' builders write it. What the promises of
// the lowering are is checked at the stage where it can be seen.
// RUN: diffattn-opt %s --diffattn-cpu-pipeline="until=bufferized" > %t.buffers.mlir
// RUN: FileCheck %s --check-prefix=BUFFER --input-file=%t.buffers.mlir
// RUN: FileCheck %s --check-prefix=NOCOPY --input-file=%t.buffers.mlir
// RUN: diffattn-opt %s --diffattn-cpu-pipeline="until=loops batch-invariant=false" > %t.loops.mlir
// RUN: FileCheck %s --check-prefix=LOOPS --input-file=%t.loops.mlir
// RUN: grep -c "llvm.call @diffattn_rt_parallel_for" %t.loops.mlir | FileCheck %s --check-prefix=KERNELS
// RUN: grep -c "llvm.call @diffattn_gemv_f32_f32_f32" %t.loops.mlir | FileCheck %s --check-prefix=PRODUCTS
// RUN: grep -c "llvm.call @diffattn_rt_gemm" %t.loops.mlir | FileCheck %s --check-prefix=PRODUCTS
// RUN: diffattn-opt %s --diffattn-cpu-pipeline -o /dev/null
// RUN: diffattn-opt %s --diffattn-cpu-pipeline="until=loops batch-invariant=true" > %t.order.mlir
// RUN: grep -c "llvm.call @diffattn_rt_parallel_for" %t.order.mlir | FileCheck %s --check-prefix=ATTENTION
// RUN: grep -c "llvm.call @diffattn_rt_gemm" %t.order.mlir | FileCheck %s --check-prefix=PRODUCTS

// One fused kernel in four loops, over blocks of keys and over rows in turn as the queries are few; the other two are in the
// kernels for products with few rows, with and without addition. One product for each of q, k, v, o, gate, up and
// down, by such a kernel or by the library.
// KERNELS: {{^}}6{{$}}
// PRODUCTS: {{^}}7{{$}}
// Where rows must not depend on one another, every product is the runtime's.
// ATTENTION: {{^}}4{{$}}

// The layer returns nothing: the stream and the caches are updated in place.
// BUFFER-LABEL: func.func private @layer(
// BUFFER-SAME:    %[[H:[^:]+]]: memref<?x64xf32>, %[[LAYER:[^:]+]]: index, %[[POS:[^:]+]]: memref<?xi64>, %[[ENDS:[^:]+]]: memref<?xi64>, %[[KC:[^:]+]]: memref<2x?x?x4x16xf32>, %[[VC:[^:]+]]: memref<2x?x?x2x32xf32>) attributes {no_inline} {
// A row of each cache is stored, nothing else of it is moved.
// BUFFER:         scf.for
// BUFFER:           %[[KROW:.+]] = memref.subview %[[KC]]
// BUFFER:           memref.copy %{{.+}}, %[[KROW]]
// BUFFER:           %[[VROW:.+]] = memref.subview %[[VC]]
// BUFFER:           memref.copy %{{.+}}, %[[VROW]]
// The op reads views of the caches and of the projected queries.
// BUFFER:         diffattn.attention
// The residual is the destination of its product.
// BUFFER:         diffattn.gemm {{.*}} outs(%[[H]] : {{.*}}) {accumulate, transpose_b}
// BUFFER:         diffattn.gemm {{.*}} outs(%[[H]] : {{.*}}) {accumulate, transpose_b}
// BUFFER:         return{{$}}
// BUFFER-LABEL: func.func @decode(
// BUFFER-SAME:    %{{.+}}: memref<?x64xf32>, %{{.+}}: memref<?xi64>, %[[K:[^:]+]]: memref<2x?x?x4x16xf32>, %[[V:[^:]+]]: memref<2x?x?x2x32xf32>)
// BUFFER:         return %{{.+}}, %[[K]], %[[V]]

// Two copies in all, and no buffer that holds anything rearranged.
// NOCOPY-COUNT-2: memref.copy
// NOCOPY-NOT:     memref.copy
// NOCOPY-NOT:     linalg.transpose

// What a layer allocates is released at its end.
// LOOPS-LABEL:  func.func private @layer(
// LOOPS:          %[[MARK:.+]] = llvm.call @diffattn_rt_mark
// LOOPS:          llvm.call @diffattn_rt_release(%[[MARK]])
// LOOPS-NEXT:     return

!q = tensor<?x64xf32>
!kc = tensor<2x?x?x4x16xf32>
!vc = tensor<2x?x?x2x32xf32>
#row = affine_map<(m, n) -> (m, n)>
#lhs = affine_map<(m, n, k) -> (m, k)>
#rhs = affine_map<(m, n, k) -> (n, k)>
#out = affine_map<(m, n, k) -> (m, n)>
ml_program.global private @"l.{}.norm"(#ml_program.extern<tensor<64xf32>>) : tensor<64xf32> {diffattn.layers = 2 : i64}
ml_program.global private @"l.{}.q"(#ml_program.extern<tensor<64x64xf32>>) : tensor<64x64xf32> {diffattn.layers = 2 : i64}
ml_program.global private @"l.{}.k"(#ml_program.extern<tensor<64x64xf32>>) : tensor<64x64xf32> {diffattn.layers = 2 : i64}
ml_program.global private @"l.{}.v"(#ml_program.extern<tensor<64x64xf32>>) : tensor<64x64xf32> {diffattn.layers = 2 : i64}
ml_program.global private @"l.{}.o"(#ml_program.extern<tensor<64x64xf32>>) : tensor<64x64xf32> {diffattn.layers = 2 : i64}
ml_program.global private @"l.{}.gate"(#ml_program.extern<tensor<128x64xf32>>) : tensor<128x64xf32> {diffattn.layers = 2 : i64}
ml_program.global private @"l.{}.up"(#ml_program.extern<tensor<128x64xf32>>) : tensor<128x64xf32> {diffattn.layers = 2 : i64}
ml_program.global private @"l.{}.down"(#ml_program.extern<tensor<64x128xf32>>) : tensor<64x128xf32> {diffattn.layers = 2 : i64}
ml_program.global private @"l.{}.lambda"(#ml_program.extern<tensor<f32>>) : tensor<f32> {diffattn.layers = 2 : i64}

func.func private @layer(%h: !q {bufferization.writable = true}, %layer: index, %pos: tensor<?xi64> {bufferization.writable = false},
    %ends: tensor<?xi64> {bufferization.writable = false}, %kc: !kc {bufferization.writable = true},
    %vc: !vc {bufferization.writable = true}) -> (!q, !kc, !vc) attributes {no_inline} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %width = arith.constant 64.0 : f32
  %batch = tensor.dim %h, %c0 : !q
  %capacity = tensor.dim %kc, %c2 : !kc

  // Root mean square norm.
  %norm = diffattn.layer_weight @"l.{}.norm"[%layer] : tensor<64xf32>
  %e0 = tensor.empty(%batch) : tensor<?xf32>
  %f0 = linalg.fill ins(%zero : f32) outs(%e0 : tensor<?xf32>) -> tensor<?xf32>
  %sum = linalg.generic {indexing_maps = [#row, affine_map<(m, n) -> (m)>], iterator_types = ["parallel", "reduction"]}
      ins(%h : !q) outs(%f0 : tensor<?xf32>) {
  ^bb0(%x: f32, %s: f32):
    %p = arith.mulf %x, %x : f32
    %r = arith.addf %s, %p : f32
    linalg.yield %r : f32
  } -> tensor<?xf32>
  %e1 = tensor.empty(%batch) : !q
  %normed = linalg.generic {indexing_maps = [#row, affine_map<(m, n) -> (m)>, affine_map<(m, n) -> (n)>, #row],
                            iterator_types = ["parallel", "parallel"]}
      ins(%h, %sum, %norm : !q, tensor<?xf32>, tensor<64xf32>) outs(%e1 : !q) {
  ^bb0(%x: f32, %s: f32, %w: f32, %o: f32):
    %mean = arith.divf %s, %width : f32
    %root = math.rsqrt %mean : f32
    %a = arith.mulf %x, %root : f32
    %b = arith.mulf %a, %w : f32
    linalg.yield %b : f32
  } -> !q

  %f1 = linalg.fill ins(%zero : f32) outs(%e1 : !q) -> !q
  %wq = diffattn.layer_weight @"l.{}.q"[%layer] : tensor<64x64xf32>
  %wk = diffattn.layer_weight @"l.{}.k"[%layer] : tensor<64x64xf32>
  %wv = diffattn.layer_weight @"l.{}.v"[%layer] : tensor<64x64xf32>
  %q = linalg.matmul indexing_maps = [#lhs, #rhs, #out] ins(%normed, %wq : !q, tensor<64x64xf32>) outs(%f1 : !q) -> !q
  %k = linalg.matmul indexing_maps = [#lhs, #rhs, #out] ins(%normed, %wk : !q, tensor<64x64xf32>) outs(%f1 : !q) -> !q
  %v = linalg.matmul indexing_maps = [#lhs, #rhs, #out] ins(%normed, %wv : !q, tensor<64x64xf32>) outs(%f1 : !q) -> !q
  %krows = tensor.expand_shape %k [[0], [1, 2]] output_shape [%batch, 4, 16] : !q into tensor<?x4x16xf32>
  %vrows = tensor.expand_shape %v [[0], [1, 2]] output_shape [%batch, 2, 32] : !q into tensor<?x2x32xf32>
  %kn, %vn = scf.for %b = %c0 to %batch step %c1 iter_args(%ki = %kc, %vi = %vc) -> (!kc, !vc) {
    %at64 = tensor.extract %pos[%b] : tensor<?xi64>
    %at = arith.index_cast %at64 : i64 to index
    %krow = tensor.extract_slice %krows[%b, 0, 0] [1, 4, 16] [1, 1, 1] : tensor<?x4x16xf32> to tensor<4x16xf32>
    %k2 = tensor.insert_slice %krow into %ki[%layer, %b, %at, 0, 0] [1, 1, 1, 4, 16] [1, 1, 1, 1, 1] : tensor<4x16xf32> into !kc
    %vrow = tensor.extract_slice %vrows[%b, 0, 0] [1, 2, 32] [1, 1, 1] : tensor<?x2x32xf32> to tensor<2x32xf32>
    %v2 = tensor.insert_slice %vrow into %vi[%layer, %b, %at, 0, 0] [1, 1, 1, 2, 32] [1, 1, 1, 1, 1] : tensor<2x32xf32> into !vc
    scf.yield %k2, %v2 : !kc, !vc
  }

  // Adjacent rows of heads are a pair.
  %qh = tensor.expand_shape %q [[0, 1], [2, 3, 4]] output_shape [%batch, 1, 2, 2, 16] : !q into tensor<?x1x2x2x16xf32>
  %q1 = tensor.extract_slice %qh[0, 0, 0, 0, 0] [%batch, 1, 2, 1, 16] [1, 1, 1, 1, 1] : tensor<?x1x2x2x16xf32> to tensor<?x1x2x16xf32>
  %q2 = tensor.extract_slice %qh[0, 0, 0, 1, 0] [%batch, 1, 2, 1, 16] [1, 1, 1, 1, 1] : tensor<?x1x2x2x16xf32> to tensor<?x1x2x16xf32>
  %kh = tensor.expand_shape %kn [[0], [1], [2], [3, 4], [5]] output_shape [2, %batch, %capacity, 2, 2, 16] : !kc into tensor<2x?x?x2x2x16xf32>
  %k1 = tensor.extract_slice %kh[%layer, 0, 0, 0, 0, 0] [1, %batch, %capacity, 2, 1, 16] [1, 1, 1, 1, 1, 1] : tensor<2x?x?x2x2x16xf32> to tensor<?x?x2x16xf32>
  %k2 = tensor.extract_slice %kh[%layer, 0, 0, 0, 1, 0] [1, %batch, %capacity, 2, 1, 16] [1, 1, 1, 1, 1, 1] : tensor<2x?x?x2x2x16xf32> to tensor<?x?x2x16xf32>
  %vh = tensor.extract_slice %vn[%layer, 0, 0, 0, 0] [1, %batch, %capacity, 2, 32] [1, 1, 1, 1, 1] : !vc to tensor<?x?x2x32xf32>
  %l = diffattn.layer_weight @"l.{}.lambda"[%layer] : tensor<f32>
  %e2 = tensor.empty(%batch) : tensor<?x1x2x32xf32>
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %vh : tensor<?x1x2x16xf32>, tensor<?x?x2x16xf32>, tensor<?x1x2x16xf32>, tensor<?x?x2x16xf32>, tensor<?x?x2x32xf32>)
      lambda(%l : tensor<f32>) kv_len(%ends : tensor<?xi64>) outs(%e2 : tensor<?x1x2x32xf32>)
      {scale = 0.25 : f32, norm = #diffattn.norm<rms>, q_layout = #diffattn.layout<bthd>, k_layout = #diffattn.layout<bthd>,
       v_layout = #diffattn.layout<bthd>, o_layout = #diffattn.layout<bthd>} -> tensor<?x1x2x32xf32>
  %rows = tensor.collapse_shape %o [[0, 1], [2, 3]] : tensor<?x1x2x32xf32> into !q
  %wo = diffattn.layer_weight @"l.{}.o"[%layer] : tensor<64x64xf32>
  %h1 = linalg.matmul indexing_maps = [#lhs, #rhs, #out] ins(%rows, %wo : !q, tensor<64x64xf32>) outs(%h : !q) -> !q

  // Gated feed-forward.
  %wg = diffattn.layer_weight @"l.{}.gate"[%layer] : tensor<128x64xf32>
  %wu = diffattn.layer_weight @"l.{}.up"[%layer] : tensor<128x64xf32>
  %wd = diffattn.layer_weight @"l.{}.down"[%layer] : tensor<64x128xf32>
  %e3 = tensor.empty(%batch) : tensor<?x128xf32>
  %f3 = linalg.fill ins(%zero : f32) outs(%e3 : tensor<?x128xf32>) -> tensor<?x128xf32>
  %g = linalg.matmul indexing_maps = [#lhs, #rhs, #out] ins(%h1, %wg : !q, tensor<128x64xf32>) outs(%f3 : tensor<?x128xf32>) -> tensor<?x128xf32>
  %u = linalg.matmul indexing_maps = [#lhs, #rhs, #out] ins(%h1, %wu : !q, tensor<128x64xf32>) outs(%f3 : tensor<?x128xf32>) -> tensor<?x128xf32>
  %act = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<?x128xf32>, tensor<?x128xf32>) outs(%e3 : tensor<?x128xf32>) {
  ^bb0(%x: f32, %y: f32, %z: f32):
    %n = arith.negf %x : f32
    %ex = math.exp %n : f32
    %d = arith.addf %ex, %one : f32
    %s = arith.divf %x, %d : f32
    %r = arith.mulf %s, %y : f32
    linalg.yield %r : f32
  } -> tensor<?x128xf32>
  %h2 = linalg.matmul indexing_maps = [#lhs, #rhs, #out] ins(%act, %wd : tensor<?x128xf32>, tensor<64x128xf32>) outs(%h1 : !q) -> !q
  return %h2, %kn, %vn : !q, !kc, !vc
}

func.func @decode(%x: !q, %pos: tensor<?xi64>, %kc: !kc {bufferization.writable = true}, %vc: !vc {bufferization.writable = true})
    -> (!q, !kc, !vc) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %one = arith.constant 1 : i64
  %batch = tensor.dim %x, %c0 : !q
  %e = tensor.empty(%batch) : tensor<?xi64>
  %ends = linalg.map ins(%pos : tensor<?xi64>) outs(%e : tensor<?xi64>) (%p: i64, %o: i64) {
    %n = arith.addi %p, %one : i64
    linalg.yield %n : i64
  }
  %e1 = tensor.empty(%batch) : !q
  %h = linalg.map ins(%x : !q) outs(%e1 : !q) (%p: f32, %o: f32) {
    %n = arith.addf %p, %p : f32
    linalg.yield %n : f32
  }
  %o, %k, %v = scf.for %i = %c0 to %c2 step %c1 iter_args(%hi = %h, %ki = %kc, %vi = %vc) -> (!q, !kc, !vc) {
    %a, %b, %c = func.call @layer(%hi, %i, %pos, %ends, %ki, %vi) : (!q, index, tensor<?xi64>, tensor<?xi64>, !kc, !vc) -> (!q, !kc, !vc)
    scf.yield %a, %b, %c : !q, !kc, !vc
  }
  return %o, %k, %v : !q, !kc, !vc
}
