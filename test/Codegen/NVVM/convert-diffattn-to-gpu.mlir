// RUN: diffattn-opt %s --diffattn-select-gpu-schedule --convert-diffattn-to-gpu --canonicalize | FileCheck %s
// RUN: diffattn-opt %s --diffattn-select-gpu-schedule --convert-diffattn-to-gpu | FileCheck %s --check-prefix=ONCE
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_90},convert-diffattn-to-gpu{chip=sm_90})" -o %t.mlir
// RUN: FileCheck %s --check-prefix=EARLY --input-file=%t.mlir
// RUN: diffattn-opt %t.mlir --pass-pipeline="builtin.module(convert-gpu-launch-to-runtime)" | FileCheck %s --check-prefix=LIST

// Two ops of the same kernel share it; both ways to copy are there.
// ONCE-COUNT-2: llvm.func @diffattn_forward
// ONCE-NOT:     llvm.func @diffattn_forward

// CHECK:       llvm.mlir.global external @diffattn_shared() {addr_space = 3 : i32, alignment = 1024 : i64}
// CHECK-LABEL: llvm.func @diffattn_forward_64x128_bf16_both4x1_k32s2q_weightbf16(
// CHECK-SAME:  diffattn.shared_bytes = 32768
// CHECK-SAME:  nvvm.reqntid = array<i32: 128, 1, 1>
// Queries of both maps, then the first tile: K1, K2, V.
// CHECK-COUNT-8: nvvm.cp.async.shared.global
// CHECK:       nvvm.cp.async.commit.group
// CHECK-COUNT-8: nvvm.cp.async.shared.global
// CHECK:       nvvm.cp.async.commit.group
// The queries are waited for, not the tile; a warp reads those of both maps into 2 x 4 fragments.
// CHECK:       nvvm.cp.async.wait.group 1
// CHECK-NEXT:  nvvm.barrier0
// CHECK-COUNT-8: nvvm.ldmatrix
// CHECK-NOT:   nvvm.barrier0
// The loop: wait, barrier, next tile, then both maps, with a rescale that a warp takes as one.
// CHECK:       nvvm.cp.async.wait.group 0
// CHECK-NEXT:  nvvm.barrier0
// CHECK-COUNT-8: nvvm.cp.async.shared.global
// CHECK:       nvvm.cp.async.commit.group
// CHECK-COUNT-32: nvvm.mma.sync
// CHECK:       nvvm.vote.sync any
// V is read once for both maps: 16 loads for 64 products.
// CHECK-COUNT-16: nvvm.ldmatrix
// CHECK-NOT:   nvvm.ldmatrix
// CHECK:       nvvm.mma.sync
// CHECK-NOT:   __nv_
// CHECK-LABEL: llvm.func @diffattn_forward_64x128_bf16_{{.+}}_anystride_weightbf16(
// CHECK-NOT:   nvvm.cp.async.shared.global
// CHECK-LABEL: llvm.func @diffattn_decode_64x128_bf16_both4x1_k64s2q(

!q = memref<?x8x?x64xbf16, strided<[?, ?, ?, 1], offset: ?>>
!v = memref<?x8x?x128xbf16, strided<[?, ?, ?, 1], offset: ?>>
!w = memref<128xbf16>

// From sm_90 on a kernel may start while those ahead run: first of all it lets the next one do so, and then it waits, before it touches
// memory; sm_80 has no such launches.
// EARLY-LABEL: llvm.func @diffattn_forward_64x128_bf16
// EARLY-NEXT:  llvm.call_intrinsic "llvm.nvvm.griddepcontrol.launch.dependents"
// EARLY-NEXT:  llvm.inline_asm has_side_effects asm_dialect = att "griddepcontrol.wait;", "=l,
// EARLY-LABEL: llvm.func @diffattn_decode_64x128_bf16
// EARLY-NEXT:  llvm.call_intrinsic "llvm.nvvm.griddepcontrol.launch.dependents"
// EARLY-NEXT:  llvm.inline_asm has_side_effects asm_dialect = att "griddepcontrol.wait;", "=l,
// EARLY-LABEL: llvm.func @diffattn_merge_128_bf16_weightbf16(
// EARLY-NEXT:  llvm.call_intrinsic "llvm.nvvm.griddepcontrol.launch.dependents"
// EARLY-NEXT:  llvm.inline_asm has_side_effects asm_dialect = att "griddepcontrol.wait;", "=l,
// LIST:        name = "diffattn_forward_64x128_bf16{{[^}]*}}starts_early
// LIST-SAME:   name = "diffattn_decode_64x128_bf16{{[^}]*}}starts_early
// LIST-SAME:   name = "diffattn_merge_128_bf16_weightbf16"{{[^}]*}}starts_early
// CHECK-NOT:   griddepcontrol

// Nothing is launched without queries. Up to 8 of them decode, a group of heads in as large parts as fit, with as many
// keys a block as their number asks for; how keys are copied is asked for each of the two.
// CHECK-LABEL: func.func @v1(
// CHECK:       %[[BATCH:.+]] = memref.dim %{{.+}}, %c0
// CHECK:       %[[QUERIES:.+]] = memref.dim %{{.+}}, %c2
// CHECK:       %[[ROWS:.+]] = arith.muli %[[BATCH]], %[[QUERIES]]
// CHECK:       %[[SOME:.+]] = arith.cmpi ne, %[[ROWS]], %c0
// CHECK:       scf.if %[[SOME]] {
// CHECK:         %[[FEW:.+]] = arith.cmpi ule, %[[QUERIES]], %c8
// CHECK:         %[[MANY:.+]] = arith.cmpi uge, %{{.+}}, %c16385
// CHECK:         %[[BOTH:.+]] = arith.andi %[[FEW]], %[[MANY]]
// CHECK:         scf.if %[[BOTH]] {
// CHECK:           gpu.launch_func @diffattn_kernels::@diffattn_decode_64x128_bf16_both4x1_k64s2q blocks
// CHECK-SAME:      %c2048_i32
// CHECK:         } else {
// CHECK:         arith.cmpi uge, %{{.+}}, %c2049
// CHECK:           gpu.launch_func @diffattn_kernels::@diffattn_decode_64x128_bf16_both4x1_k64s2q blocks
// CHECK-SAME:      %c512_i32
// CHECK:         %[[FEW:.+]] = arith.cmpi ule, %[[QUERIES]], %c8
// CHECK:         scf.if %[[FEW]] {
// CHECK:           %[[STATES:.+]] = gpu.alloc
// CHECK:           %[[OK:.+]] = arith.cmpi eq
// CHECK:           scf.if %[[OK]] {
// CHECK:             gpu.launch_func @diffattn_kernels::@diffattn_decode_64x128_bf16_both4x1_k64s2q blocks
// CHECK-SAME:        %c128_i32
// CHECK:           } else {
// CHECK:             gpu.launch_func @diffattn_kernels::@diffattn_decode_64x128_bf16_both4x1_k64s2q_anystride
// CHECK:           }
// CHECK:           gpu.launch_func @diffattn_kernels::@diffattn_merge_128_bf16_weightbf16
// CHECK:           gpu.dealloc %[[STATES]]
// CHECK-NEXT:    } else {
// CHECK:           %[[OK:.+]] = arith.cmpi eq
// CHECK:           scf.if %[[OK]] {
// CHECK:             gpu.launch_func @diffattn_kernels::@diffattn_forward_64x128_bf16_both4x1_k32s2q_weightbf16
// CHECK-SAME:        threads in
// CHECK:           } else {
// CHECK:             gpu.launch_func @diffattn_kernels::@diffattn_forward_64x128_bf16_{{.+}}_anystride_weightbf16
func.func @v1(%q: !q, %k: !q, %k2: !q, %v: !v, %l: memref<f32>, %w: !w, %o: !v) {
  diffattn.attention ins(%q, %k, %q, %k2, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>) norm_weight(%w : !w)
    outs(%o : !v) {scale = 0.125 : f32, is_causal, norm = #diffattn.norm<rms>, out_scale = 0.8 : f32}
  return
}

// Another scale, no mask: arguments of the same kernel.
// CHECK-LABEL: func.func @other_numbers(
// CHECK:       gpu.launch_func @diffattn_kernels::@diffattn_forward_64x128_bf16_both4x1_k32s2q_weightbf16
func.func @other_numbers(%q: !q, %k: !q, %k2: !q, %v: !v, %l: memref<f32>, %w: !w, %o: !v) {
  diffattn.attention ins(%q, %k, %q, %k2, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>) norm_weight(%w : !w)
    outs(%o : !v) {scale = 0.25 : f32, norm = #diffattn.norm<rms>}
  return
}

// With sizes that the types tell, nothing is asked but where things lie; heads that share keys decode together.
// CHECK-LABEL: func.func @one_query(
// CHECK-NOT:   arith.cmpi ne
// CHECK-NOT:   arith.cmpi ule
// CHECK:       scf.if
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_decode_64x128_bf16_both4x1_k64s2q blocks in (%c1, %c2, %c3)
!q1 = memref<3x8x1x64xbf16>
!k1 = memref<3x2x40x64xbf16>
!v1 = memref<3x2x40x128xbf16>
!o1 = memref<3x8x1x128xbf16>
func.func @one_query(%q: !q1, %k: !k1, %k2: !k1, %v: !v1, %l: memref<f32>, %o: !o1) {
  diffattn.attention ins(%q, %k, %q, %k2, %v : !q1, !k1, !q1, !k1, !v1) lambda(%l : memref<f32>)
    outs(%o : !o1) {scale = 0.25 : f32}
  return
}
