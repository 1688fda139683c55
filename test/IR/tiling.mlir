// Attention in tiles of one batch, one group of heads and two queries, and the
// online op in tiles of keys, in order and in parallel: the results are those of
// the whole ops.
//
// DEFINE: %{lower} = --diffattn-decompose --one-shot-bufferize="bufferize-function-boundaries allow-return-allocs-from-loops" \
// DEFINE:   --convert-linalg-to-loops --scf-forall-to-for --expand-strided-metadata --lower-affine \
// DEFINE:   --convert-scf-to-cf --convert-math-to-libm --convert-to-llvm \
// DEFINE:   --reconcile-unrealized-casts
// DEFINE: %{run} = mlir-runner -e main --entry-point-result=void \
// DEFINE:   --shared-libs=%mlir_lib_dir/libmlir_runner_utils.so,%mlir_lib_dir/libmlir_c_runner_utils.so
// DEFINE: %{plan} = transform-preload-library{transform-library-paths=%S/Inputs/tile.mlir}
// DEFINE: %{tiles} = --pass-pipeline="builtin.module(%{plan},transform-interpreter{entry-point=tile_attention},canonicalize)"
// DEFINE: %{keys} = --pass-pipeline="builtin.module(func.func(diffattn-to-online),%{plan},transform-interpreter{entry-point=tile_keys},canonicalize)"
// DEFINE: %{split} = --pass-pipeline="builtin.module(func.func(diffattn-to-online),%{plan},transform-interpreter{entry-point=split_keys},canonicalize)"
//
// RUN: diffattn-opt %s %{tiles} -o %t.tiles.mlir
// RUN: diffattn-opt %s %{keys} -o %t.keys.mlir
// RUN: diffattn-opt %s %{split} -o %t.split.mlir
// RUN: FileCheck %s --check-prefix=SPLIT --input-file=%t.split.mlir
// RUN: FileCheck %s --check-prefix=TILES --input-file=%t.tiles.mlir
// RUN: FileCheck %s --check-prefix=KEYS --input-file=%t.keys.mlir
// RUN: diffattn-opt %s %{lower} | %{run} > %t.whole
// RUN: diffattn-opt %t.tiles.mlir %{lower} | %{run} > %t.tiles
// RUN: diffattn-opt %t.keys.mlir %{lower} | %{run} > %t.keys
// RUN: FileCheck %s --check-prefix=VALUES < %t.whole
// RUN: diff %t.whole %t.tiles
// RUN: diffattn-opt %t.split.mlir %{lower} | %{run} > %t.split
// RUN: diff %t.whole %t.keys
// RUN: diff %t.whole %t.split

!q = tensor<?x4x?x3xf32>
!n = tensor<?x2x?x3xf32>
!k = tensor<?x2x?x3xf32>
!v = tensor<?x2x?x5xf32>
!o = tensor<?x4x?x5xf32>

// TILES-LABEL: func.func @attention(
// TILES:       scf.for
// TILES:         scf.for
// TILES:           scf.for
// TILES:             tensor.generate
// TILES:             %[[T:.+]] = diffattn.attention {{.*}}tensor<1x2x?x3xf32>
// TILES-SAME:          q_offset(
// TILES:             tensor.insert_slice %[[T]]
// KEYS-LABEL:  func.func @attention(
// KEYS:        scf.for
// KEYS:          scf.for %[[J:.+]] = {{.*}} iter_args
// KEYS:            diffattn.online_attention
// KEYS-SAME:         k_offset(%[[J]])
// KEYS:        diffattn.finalize
// SPLIT-LABEL: func.func @attention(
// SPLIT:       %[[PARTS:.+]]:6 = scf.forall (%[[J:.+]]) in (3)
// SPLIT:         diffattn.online_attention
// SPLIT:           tensor.parallel_insert_slice {{.*}}[%[[J]], 0, 0, 0]
// SPLIT:       scf.for
// SPLIT:         tensor.extract_slice %[[PARTS]]#0
// SPLIT-COUNT-2: diffattn.merge
// SPLIT:       diffattn.finalize
func.func @attention(%q1: !q, %q2: !n, %k: !k, %v: !v, %l: tensor<?x?x2xf32>, %g: !o,
                     %bias: tensor<1x2x?x?xf32>, %n: tensor<?xi64>, %init: !o) -> !o {
  %o = diffattn.attention ins(%q1, %k, %q2, %k, %v : !q, !k, !n, !k, !v)
         lambda(%l : tensor<?x?x2xf32>) bias(%bias : tensor<1x2x?x?xf32>) gate(%g : !o)
         kv_len(%n : tensor<?xi64>) outs(%init : !o)
         {scale = 0.5 : f32, is_causal, window = array<i64: 4, -1>, norm = #diffattn.norm<rms>}
         -> !o
  return %o : !o
}

// One value may be two operands of which a tile changes one. What is promised of all queries does not hold for those of a tile.
// TILES-LABEL: func.func @one_value_twice(
// TILES:       %[[P:.+]] = tensor.generate
// TILES:       %[[N:.+]] = tensor.extract_slice %[[ALL:.+]][{{.*}}] [1] [1] : tensor<?xi64> to tensor<1xi64>
// TILES:       diffattn.attention {{.*}} kv_len(%[[N]] : tensor<1xi64>) q_offset(%[[P]] : tensor<1xi64>)
// TILES-NOT:   size_bounds
func.func @one_value_twice(%q: !q, %k: !k, %v: !v, %l: tensor<f32>, %n: tensor<?xi64>, %init: !o) -> !o {
  %o = diffattn.attention ins(%q, %k, %q, %k, %v : !q, !k, !q, !k, !v) lambda(%l : tensor<f32>)
         kv_len(%n : tensor<?xi64>) q_offset(%n : tensor<?xi64>) outs(%init : !o)
         {scale = 0.5 : f32, is_causal, size_bounds = #diffattn.size_bounds<min_queries = 3>} -> !o
  return %o : !o
}

// Each tile reads the numbers of its own queries and keys.
// TILES-LABEL: func.func @segments(
// TILES-DAG:   %[[QS:.+]] = tensor.extract_slice %{{.+}}[%{{.+}}, %{{.+}}] [1, %{{.+}}] [1, 1] : tensor<?x?xi32> to tensor<1x?xi32>
// TILES-DAG:   %[[KS:.+]] = tensor.extract_slice %{{.+}}[%{{.+}}, 0] [1, %{{.+}}] [1, 1] : tensor<?x?xi32> to tensor<1x?xi32>
// TILES:       diffattn.attention {{.*}} q_segments(%[[QS]] : tensor<1x?xi32>) kv_segments(%[[KS]] : tensor<1x?xi32>)
// KEYS-LABEL:  func.func @segments(
// KEYS:        scf.for
// KEYS:          scf.for %[[J:.+]] = {{.*}} iter_args
// KEYS:            %[[KS:.+]] = tensor.extract_slice %{{.+}}[0, %[[J]]] [%{{.+}}, %{{.+}}] [1, 1] : tensor<?x?xi32> to tensor<?x?xi32>
// KEYS:            diffattn.online_attention {{.*}} kv_segments(%[[KS]] : tensor<?x?xi32>)
func.func @segments(%q1: !q, %q2: !n, %k: !k, %v: !v, %qs: tensor<?x?xi32>, %ks: tensor<?x?xi32>, %init: !o) -> !o {
  %half = arith.constant dense<0.5> : tensor<f32>
  %o = diffattn.attention ins(%q1, %k, %q2, %k, %v : !q, !k, !n, !k, !v) lambda(%half : tensor<f32>)
         q_segments(%qs : tensor<?x?xi32>) kv_segments(%ks : tensor<?x?xi32>) outs(%init : !o)
         {scale = 0.5 : f32, is_causal, window = array<i64: 4, -1>} -> !o
  return %o : !o
}

func.func private @printF32(f32)
func.func private @printNewline()

// Element i of an input of `size` is a fixed function of i, so that no two agree.
func.func @fill4(%b: index, %h: index, %t: index, %w: index, %seed: i64) -> tensor<?x?x?x?xf32> {
  %e = tensor.generate %b, %h, %t, %w {
  ^bb0(%i0: index, %i1: index, %i2: index, %i3: index):
    %x0 = arith.muli %i0, %h : index
    %x1 = arith.addi %x0, %i1 : index
    %x2 = arith.muli %x1, %t : index
    %x3 = arith.addi %x2, %i2 : index
    %x4 = arith.muli %x3, %w : index
    %x5 = arith.addi %x4, %i3 : index
    %i = arith.index_cast %x5 : index to i64
    %s = arith.addi %i, %seed : i64
    %c = arith.constant 37 : i64
    %m = arith.constant 101 : i64
    %p = arith.muli %s, %c : i64
    %r = arith.remsi %p, %m : i64
    %f = arith.sitofp %r : i64 to f32
    %d = arith.constant 50.0 : f32
    %y = arith.divf %f, %d : f32
    %one = arith.constant 1.0 : f32
    %z = arith.subf %y, %one : f32
    tensor.yield %z : f32
  } : tensor<?x?x?x?xf32>
  return %e : tensor<?x?x?x?xf32>
}

func.func @print_rows(%o: !o) {
  %b = arith.constant 2 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c5 = arith.constant 5 : index
  %tq = arith.constant 5 : index
  %c0 = arith.constant 0 : index
  scf.for %i0 = %c0 to %b step %c1 {
    scf.for %i1 = %c0 to %c4 step %c1 {
      scf.for %i2 = %c0 to %tq step %c1 {
        %zero = arith.constant 0.0 : f32
        %sum = scf.for %i3 = %c0 to %c5 step %c1 iter_args(%acc = %zero) -> f32 {
          %x = tensor.extract %o[%i0, %i1, %i2, %i3] : !o
          %w0 = arith.addi %i3, %c1 : index
          %w1 = arith.index_cast %w0 : index to i64
          %w = arith.sitofp %w1 : i64 to f32
          %t = arith.mulf %x, %w : f32
          %next = arith.addf %acc, %t : f32
          scf.yield %next : f32
        }
        // To three decimals: the forms differ by the rounding of f32.
        %scale = arith.constant 1000.0 : f32
        %scaled = arith.mulf %sum, %scale : f32
        %rounded = math.round %scaled : f32
        func.call @printF32(%rounded) : (f32) -> ()
        func.call @printNewline() : () -> ()
      }
    }
  }
  return
}

func.func @main() {
  %b = arith.constant 2 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %c4 = arith.constant 4 : index
  %c5 = arith.constant 5 : index
  %tq = arith.constant 5 : index
  %tk = arith.constant 7 : index
  %s1 = arith.constant 11 : i64
  %s2 = arith.constant 23 : i64
  %s3 = arith.constant 31 : i64
  %s4 = arith.constant 47 : i64
  %s5 = arith.constant 59 : i64
  %s6 = arith.constant 71 : i64
  %s7 = arith.constant 83 : i64
  %q1d = call @fill4(%b, %c4, %tq, %c3, %s1) : (index, index, index, index, i64) -> tensor<?x?x?x?xf32>
  %q2d = call @fill4(%b, %c2, %tq, %c3, %s2) : (index, index, index, index, i64) -> tensor<?x?x?x?xf32>
  %kd = call @fill4(%b, %c2, %tk, %c3, %s3) : (index, index, index, index, i64) -> tensor<?x?x?x?xf32>
  %vd = call @fill4(%b, %c2, %tk, %c5, %s4) : (index, index, index, index, i64) -> tensor<?x?x?x?xf32>
  %ld = call @fill4(%c1, %b, %tq, %c2, %s5) : (index, index, index, index, i64) -> tensor<?x?x?x?xf32>
  %gd = call @fill4(%b, %c4, %tq, %c5, %s6) : (index, index, index, index, i64) -> tensor<?x?x?x?xf32>
  %bd = call @fill4(%c1, %c2, %tq, %tk, %s7) : (index, index, index, index, i64) -> tensor<?x?x?x?xf32>
  %q1 = tensor.cast %q1d : tensor<?x?x?x?xf32> to !q
  %q2 = tensor.cast %q2d : tensor<?x?x?x?xf32> to !n
  %k = tensor.cast %kd : tensor<?x?x?x?xf32> to !k
  %v = tensor.cast %vd : tensor<?x?x?x?xf32> to !v
  %g = tensor.cast %gd : tensor<?x?x?x?xf32> to !o
  %bias = tensor.cast %bd : tensor<?x?x?x?xf32> to tensor<1x2x?x?xf32>
  %lc = tensor.collapse_shape %ld [[0, 1], [2], [3]] : tensor<?x?x?x?xf32> into tensor<?x?x?xf32>
  %l = tensor.cast %lc : tensor<?x?x?xf32> to tensor<?x?x2xf32>
  %ns = arith.constant dense<[7, 4]> : tensor<2xi64>
  %n = tensor.cast %ns : tensor<2xi64> to tensor<?xi64>
  %init = tensor.empty(%b, %tq) : !o
  %o = call @attention(%q1, %q2, %k, %v, %l, %g, %bias, %n, %init)
      : (!q, !n, !k, !v, tensor<?x?x2xf32>, !o, tensor<1x2x?x?xf32>, tensor<?xi64>, !o) -> !o
  // Sums of each row and of each row with weights 1 to 5: any row that changes shows.
  // The first head of the first batch, as an independent program gives them.
  // VALUES:      {{^}}1681
  // VALUES-NEXT: {{^}}3730
  // VALUES-NEXT: {{^}}-806
  // VALUES-NEXT: {{^}}333
  // VALUES-NEXT: {{^}}1278
  call @print_rows(%o) : (!o) -> ()
  %qss = arith.constant dense<[[0, 0, -3, 9, 0], [1, 1, 2, 2, 2]]> : tensor<2x5xi32>
  %kss = arith.constant dense<[[9, 0, 0, -3, 0, 5, 5], [1, 1, 1, 2, 2, 2, 2]]> : tensor<2x7xi32>
  %qs = tensor.cast %qss : tensor<2x5xi32> to tensor<?x?xi32>
  %ks = tensor.cast %kss : tensor<2x7xi32> to tensor<?x?xi32>
  %p = call @segments(%q1, %q2, %k, %v, %qs, %ks, %init) : (!q, !n, !k, !v, tensor<?x?xi32>, tensor<?x?xi32>, !o) -> !o
  // VALUES:      {{^}}149
  // VALUES-NEXT: {{^}}186
  // VALUES-NEXT: {{^}}-1090
  // VALUES-NEXT: {{^}}0
  // VALUES-NEXT: {{^}}1376
  call @print_rows(%p) : (!o) -> ()
  return
}
