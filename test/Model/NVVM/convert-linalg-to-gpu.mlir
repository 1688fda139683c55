// RUN: diffattn-opt %s -split-input-file --pass-pipeline="builtin.module(convert-linalg-to-gpu{chip=sm_80},func.func(canonicalize,cse))" | FileCheck %s
// RUN: diffattn-opt %s -split-input-file --pass-pipeline="builtin.module(convert-linalg-to-gpu{chip=sm_80})" \
// RUN:   --remarks-filter=diffattn-gpu --remark-format=emitRemark 2>&1 >/dev/null | FileCheck %s --check-prefix=REMARK

// Flat: fresh buffers are known to be aligned, so one kernel that reads 16 bytes at a time is enough.
// CHECK-LABEL: llvm.func @diffattn_elementwise_0
// CHECK: llvm.load {{.*}} {alignment = 16 : i64} : !llvm.ptr<1> -> vector<4xf32>
// CHECK: llvm.load {{.*}} {alignment = 16 : i64} : !llvm.ptr<1> -> vector<4xf32>
// CHECK-COUNT-8: llvm.fptrunc {{.*}} : f32 to bf16
// CHECK: llvm.store {{.*}} {alignment = 16 : i64} : vector<8xbf16>, !llvm.ptr<1>
// CHECK-NOT: llvm.func
// CHECK-LABEL: func.func @cast
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_elementwise_0
// CHECK-NOT: linalg
func.func @cast(%n: index) -> memref<?x8xbf16> {
  %x = memref.alloc(%n) {alignment = 64 : i64} : memref<?x8xf32>
  %y = memref.alloc(%n) {alignment = 64 : i64} : memref<?x8xbf16>
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} ins(%x : memref<?x8xf32>) outs(%y : memref<?x8xbf16>) {
  ^bb0(%a: f32, %o: bf16):
    %b = arith.truncf %a : f32 to bf16
    linalg.yield %b : bf16
  }
  return %y : memref<?x8xbf16>
}

// -----

// An address that is not known is tested when the code runs. Copies and fills are kernels too.
// CHECK-LABEL: llvm.func @diffattn_elementwise_0
// CHECK: vector<4xf32>
// CHECK-LABEL: llvm.func @diffattn_elementwise_1
// CHECK-NOT: vector<4xf32>
// CHECK-LABEL: func.func @copy
// CHECK: memref.extract_aligned_pointer_as_index
// CHECK: %[[FINE:.*]] = arith.cmpi eq
// CHECK: scf.if %[[FINE]]
// CHECK: @diffattn_elementwise_0
// CHECK: else
// CHECK: @diffattn_elementwise_1
// CHECK-NOT: memref.copy
func.func @copy(%x: memref<?x?xf32, strided<[?, 1], offset: ?>>, %y: memref<?x?xf32>) {
  memref.copy %x, %y : memref<?x?xf32, strided<[?, 1], offset: ?>> to memref<?x?xf32>
  return
}

// -----

// Row: what comes before and after a reduction over the same row is one kernel, and the row's number is never in memory.
// CHECK-LABEL: llvm.func @diffattn_row_reduction_0
// CHECK-COUNT-5: nvvm.shfl.sync bfly
// CHECK: llvm.intr.sqrt
// CHECK: llvm.store {{.*}} : vector<4xf32>
// CHECK-LABEL: func.func @norm
// CHECK: memref.alloc({{.*}}) {{.*}} : memref<?x64xf32>
// CHECK-NOT: memref.alloc
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_row_reduction_0
// CHECK-NOT: linalg
func.func @norm(%x: memref<?x64xf32>) -> memref<?x64xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %n = memref.dim %x, %c0 : memref<?x64xf32>
  %y = memref.alloc(%n) {alignment = 64 : i64} : memref<?x64xf32>
  %s = memref.alloc(%n) {alignment = 64 : i64} : memref<?xf32>
  %r = memref.alloc(%n) {alignment = 64 : i64} : memref<?xf32>
  linalg.fill ins(%zero : f32) outs(%s : memref<?xf32>)
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]} ins(%x : memref<?x64xf32>) outs(%s : memref<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.mulf %a, %a : f32
    %c = arith.addf %o, %b : f32
    linalg.yield %c : f32
  }
  linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%s : memref<?xf32>) outs(%r : memref<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = math.sqrt %a : f32
    linalg.yield %b : f32
  }
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} ins(%x, %r : memref<?x64xf32>, memref<?xf32>) outs(%y : memref<?x64xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %c = arith.divf %a, %b : f32
    linalg.yield %c : f32
  }
  return %y : memref<?x64xf32>
}

// -----

// A long row is a block's: warps meet in shared memory.
// CHECK-LABEL: llvm.func @diffattn_row_reduction_0
// CHECK-SAME: nvvm.reqntid = array<i32: 512, 1, 1>
// CHECK-COUNT-5: nvvm.shfl.sync bfly
// CHECK: nvvm.barrier
// CHECK: llvm.store {{.*}}!llvm.ptr<3>
// CHECK: nvvm.barrier
// CHECK-COUNT-16: llvm.load {{.*}} : !llvm.ptr<3> -> f32
func.func @long(%x: memref<?x4096xf32>, %s: memref<?xf32>) {
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]} ins(%x : memref<?x4096xf32>) outs(%s : memref<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %c = arith.maximumf %o, %a : f32
    linalg.yield %c : f32
  }
  return
}

// -----

// Everything else: a thread for each output, and a remark.
// REMARK: linalg.generic gets one thread per output element
// CHECK-LABEL: llvm.func @diffattn_generic_0
// CHECK-LABEL: func.func @columns
func.func @columns(%x: memref<?x64xf32>, %s: memref<64xf32>) {
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (j, i)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]} ins(%x : memref<?x64xf32>) outs(%s : memref<64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %c = arith.addf %o, %a : f32
    linalg.yield %c : f32
  }
  return
}

// -----

// Scalars in memory stay there: they are computed where they are used. A constant lies in the kernels' module.
// CHECK: llvm.mlir.global internal constant @table(dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>) {addr_space = 1 : i32
// CHECK-LABEL: llvm.func @diffattn_elementwise_0
// CHECK: llvm.mlir.addressof @table
// CHECK-LABEL: func.func @scalars
// CHECK-NOT: memref.load
// CHECK-NOT: memref.get_global
memref.global "private" constant @table : memref<2xf32> = dense<[1.0, 2.0]>
func.func @scalars(%x: memref<?xf32>, %k: memref<i64>) {
  %t = memref.get_global @table : memref<2xf32>
  %i = memref.load %k[] : memref<i64>
  %j = arith.index_cast %i : i64 to index
  %v = memref.load %t[%j] : memref<2xf32>
  %w = arith.negf %v : f32
  linalg.fill ins(%w : f32) outs(%x : memref<?xf32>)
  return
}

// -----

// What is overwritten between being read and being used is kept.
// CHECK-LABEL: func.func @swapped
// CHECK: memref.alloc() {{.*}} : memref<f32>
// CHECK-COUNT-3: gpu.launch_func
func.func @swapped(%x: memref<f32>, %y: memref<4xf32>) {
  %zero = arith.constant 0.0 : f32
  %v = memref.load %x[] : memref<f32>
  linalg.fill ins(%zero : f32) outs(%x : memref<f32>)
  call @other(%x) : (memref<f32>) -> ()
  linalg.fill ins(%v : f32) outs(%y : memref<4xf32>)
  return
}
func.func private @other(memref<f32>)

// -----

// A loop whose turns write parts of their own is a loop of the kernel: a cache is updated at once for all rows.
// CHECK-LABEL: func.func @update
// CHECK-NOT: scf.for
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_elementwise_0
// CHECK-NOT: scf.for
func.func @update(%cache: memref<?x?x64xf16>, %new: memref<?x64xf16>, %at: memref<?xi64>, %batch: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %own = memref.alloc(%batch) {alignment = 64 : i64} : memref<?x64xf16>
  memref.copy %new, %own : memref<?x64xf16> to memref<?x64xf16>
  scf.for %b = %c0 to %batch step %c1 {
    %p = memref.load %at[%b] : memref<?xi64>
    %i = arith.index_cast %p : i64 to index
    %row = memref.subview %own[%b, 0] [1, 64] [1, 1] : memref<?x64xf16> to memref<64xf16, strided<[1], offset: ?>>
    %place = memref.subview %cache[%b, %i, 0] [1, 1, 64] [1, 1, 1] : memref<?x?x64xf16> to memref<64xf16, strided<[1], offset: ?>>
    memref.copy %row, %place : memref<64xf16, strided<[1], offset: ?>> to memref<64xf16, strided<[1], offset: ?>>
  }
  return
}

// -----

// So it is of two caches, which no caller lets overlap, and with assertions: of the host, which stays a loop of these alone, and of
// data, which one kernel checks for all rows before one is written.
// CHECK-LABEL: func.func private @checked_updates
// CHECK: scf.for
// CHECK-NEXT: %[[INSIDE:.*]] = arith.cmpi ult
// CHECK-NEXT: cf.assert %[[INSIDE]], "expected a row of the cache"
// CHECK-NEXT: }
// CHECK-NOT: scf.for
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_row_reduction_{{[0-9]+}} blocks in
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_elementwise
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_elementwise
// CHECK-LABEL: func.func @update_both
func.func private @checked_updates(%k: memref<?x?x64xf16>, %v: memref<?x?x64xf16>, %new: memref<?x64xf16>, %at: memref<?xi64>, %batch: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %own = memref.alloc(%batch) {alignment = 64 : i64} : memref<?x64xf16>
  memref.copy %new, %own : memref<?x64xf16> to memref<?x64xf16>
  scf.for %b = %c0 to %batch step %c1 {
    %rows = memref.dim %k, %c0 : memref<?x?x64xf16>
    %inside = arith.cmpi ult, %b, %rows : index
    cf.assert %inside, "expected a row of the cache"
    %p = memref.load %at[%b] : memref<?xi64>
    %i = arith.index_cast %p : i64 to index
    %capacity = memref.dim %k, %c1 : memref<?x?x64xf16>
    %fits = arith.cmpi ult, %i, %capacity : index
    cf.assert %fits, "expected a place in the cache"
    %row = memref.subview %own[%b, 0] [1, 64] [1, 1] : memref<?x64xf16> to memref<64xf16, strided<[1], offset: ?>>
    %inK = memref.subview %k[%b, %i, 0] [1, 1, 64] [1, 1, 1] : memref<?x?x64xf16> to memref<64xf16, strided<[1], offset: ?>>
    memref.copy %row, %inK : memref<64xf16, strided<[1], offset: ?>> to memref<64xf16, strided<[1], offset: ?>>
    %inV = memref.subview %v[%b, %i, 0] [1, 1, 64] [1, 1, 1] : memref<?x?x64xf16> to memref<64xf16, strided<[1], offset: ?>>
    memref.copy %row, %inV : memref<64xf16, strided<[1], offset: ?>> to memref<64xf16, strided<[1], offset: ?>>
  }
  return
}
func.func @update_both(%k: memref<?x?x64xf16>, %v: memref<?x?x64xf16>, %new: memref<?x64xf16>, %at: memref<?xi64>, %batch: index) {
  call @checked_updates(%k, %v, %new, %at, %batch) : (memref<?x?x64xf16>, memref<?x?x64xf16>, memref<?x64xf16>, memref<?xi64>, index) -> ()
  return
}

// -----

// A caller's caller that passes one cache twice: the order of the turns is what they say.
// CHECK-LABEL: func.func private @updates
// CHECK: scf.for
// CHECK: gpu.launch_func
// CHECK: gpu.launch_func
// CHECK-LABEL: func.func @update_one_twice
func.func private @updates(%k: memref<?x?x64xf16>, %v: memref<?x?x64xf16>, %new: memref<64xf16>, %at: index, %batch: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %own = memref.alloc() {alignment = 64 : i64} : memref<64xf16>
  memref.copy %new, %own : memref<64xf16> to memref<64xf16>
  scf.for %b = %c0 to %batch step %c1 {
    %inK = memref.subview %k[%b, %at, 0] [1, 1, 64] [1, 1, 1] : memref<?x?x64xf16> to memref<64xf16, strided<[1], offset: ?>>
    memref.copy %own, %inK : memref<64xf16> to memref<64xf16, strided<[1], offset: ?>>
    %inV = memref.subview %v[%b, %at, 0] [1, 1, 64] [1, 1, 1] : memref<?x?x64xf16> to memref<64xf16, strided<[1], offset: ?>>
    memref.copy %own, %inV : memref<64xf16> to memref<64xf16, strided<[1], offset: ?>>
  }
  return
}
func.func @update_one_twice(%k: memref<?x?x64xf16>, %v: memref<?x?x64xf16>, %new: memref<64xf16>, %at: index, %batch: index) {
  call @between(%k, %v, %k, %new, %at, %batch) : (memref<?x?x64xf16>, memref<?x?x64xf16>, memref<?x?x64xf16>, memref<64xf16>, index, index) -> ()
  return
}
func.func private @between(%a: memref<?x?x64xf16>, %b: memref<?x?x64xf16>, %c: memref<?x?x64xf16>, %new: memref<64xf16>, %at: index, %batch: index) {
  call @updates(%a, %b, %new, %at, %batch) : (memref<?x?x64xf16>, memref<?x?x64xf16>, memref<64xf16>, index, index) -> ()
  call @updates(%a, %c, %new, %at, %batch) : (memref<?x?x64xf16>, memref<?x?x64xf16>, memref<64xf16>, index, index) -> ()
  return
}

// -----

// An assertion about data sets a word that the end of the function has read; a kernel that writes an argument tests it. What the
// host decides by the assertion it decides as if it held.
// CHECK: llvm.mlir.global private constant @diffattn_gpu_messages("expected more than nothing\00")
// CHECK-LABEL: func.func private @inner
// CHECK-SAME: memref<i32>
// CHECK-LABEL: func.func @checked
// CHECK: %[[C4:.*]] = arith.constant 4 : index
// CHECK: %[[WORD:.*]] = memref.alloc() {alignment = 64 : i64} : memref<i32>
// CHECK: scf.for %{{.*}} = %{{.*}} to %[[C4]]
// CHECK: func.call @inner({{.*}}, %[[WORD]])
// CHECK: llvm.call @diffattn_rt_device_check
// CHECK-NEXT: return
func.func private @inner(%y: memref<?xf32>) attributes {no_inline} {
  %one = arith.constant 1.0 : f32
  linalg.fill ins(%one : f32) outs(%y : memref<?xf32>)
  return
}
func.func @checked(%x: memref<i64>, %y: memref<?xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %zero = arith.constant 0 : i64
  %v = memref.load %x[] : memref<i64>
  %fine = arith.cmpi sgt, %v, %zero : i64
  cf.assert %fine, "expected more than nothing"
  %turns = arith.select %fine, %c4, %c0 : index
  scf.for %i = %c0 to %turns step %c1 {
    func.call @inner(%y) : (memref<?xf32>) -> ()
  }
  return
}

// -----

// A number of a row that is read in the body of an op that another kernel becomes is written.
// CHECK-LABEL: func.func @scaled
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_row_reduction_{{.*}} args(%[[SUM:.*]] : !llvm.ptr<1>, %{{.*}} : !llvm.ptr<1>)
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_elementwise_{{.*}} args(
func.func @scaled(%x: memref<256xf32>, %y: memref<?xf32>) {
  %zero = arith.constant 0.0 : f32
  %two = arith.constant 2.0 : f32
  %sum = memref.alloc() {alignment = 64 : i64} : memref<f32>
  linalg.fill ins(%zero : f32) outs(%sum : memref<f32>)
  linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> ()>], iterator_types = ["reduction"]}
      ins(%x : memref<256xf32>) outs(%sum : memref<f32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  }
  %s = memref.load %sum[] : memref<f32>
  %t = arith.mulf %s, %two : f32
  linalg.generic {indexing_maps = [affine_map<(i) -> (i)>], iterator_types = ["parallel"]} outs(%y : memref<?xf32>) {
  ^bb0(%o: f32):
    %p = arith.mulf %o, %t : f32
    linalg.yield %p : f32
  }
  return
}

// -----

// A size that a body asks for is asked by the host.
// CHECK-LABEL: func.func @stretched
// CHECK: %[[SIZE:.*]] = memref.dim %{{.*}}, %{{.*}} : memref<?xf32>
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_elementwise_
func.func @stretched(%x: memref<?xf32>, %y: memref<8xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  linalg.generic {indexing_maps = [affine_map<(i) -> (i)>], iterator_types = ["parallel"]} outs(%y : memref<8xf32>) {
  ^bb0(%o: f32):
    %i = linalg.index 0 : index
    %n = memref.dim %x, %c0 : memref<?xf32>
    %one = arith.cmpi eq, %n, %c1 : index
    %at = arith.select %one, %c0, %i : index
    %v = memref.load %x[%at] : memref<?xf32>
    linalg.yield %v : f32
  }
  return
}

// -----

// A constant whose value is a resource is memory of the program's, not of the kernels' module.
// CHECK-LABEL: func.func @resource
// CHECK: %[[TABLE:.*]] = memref.get_global @table
// CHECK: memref.extract_aligned_pointer_as_index %[[TABLE]]
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_elementwise_
memref.global "private" constant @table : memref<4xf32> = dense_resource<table>
func.func @resource(%y: memref<?x4xf32>) {
  %table = memref.get_global @table : memref<4xf32>
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%table : memref<4xf32>) outs(%y : memref<?x4xf32>) {
  ^bb0(%a: f32, %o: f32):
    linalg.yield %a : f32
  }
  return
}
{-#
  dialect_resources: {
    builtin: {
      table: "0x040000000000803F000000400000404000008040"
    }
  }
#-}

// -----

// An assertion in a body becomes one about all elements, which is read at the end.
// CHECK-LABEL: func.func @nonzero
// CHECK-COUNT-2: gpu.launch_func @diffattn_kernels::@diffattn_row_reduction_
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_elementwise_
// CHECK: llvm.call @diffattn_rt_device_check
func.func @nonzero(%x: memref<64x64xf32>, %y: memref<64x64xf32>) {
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%x : memref<64x64xf32>) outs(%y : memref<64x64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %fine = arith.cmpf one, %a, %zero : f32
    cf.assert %fine, "expected no zeros"
    %r = arith.divf %one, %a : f32
    linalg.yield %r : f32
  }
  return
}

// -----

// A product of a matrix whose elements are apart reads a copy, which a kernel makes.
// CHECK-LABEL: func.func @apart
// CHECK: %[[PLAIN:.*]] = memref.alloc
// CHECK: gpu.launch_func
// CHECK: diffattn.gemm ins(%[[PLAIN]], %{{.*}} : memref<?x8xf32>, memref<16x8xf32, strided<[1, 16]>>)
func.func @apart(%a: memref<?x8xf32, strided<[16, 2]>>, %b: memref<16x8xf32, strided<[1, 16]>>, %c: memref<?x16xf32>) {
  diffattn.gemm ins(%a, %b : memref<?x8xf32, strided<[16, 2]>>, memref<16x8xf32, strided<[1, 16]>>)
    outs(%c : memref<?x16xf32>) {transpose_b}
  return
}
