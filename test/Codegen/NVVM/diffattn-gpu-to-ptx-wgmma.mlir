// A product whose sums are read before a wait for it: ptxas puts a wait there itself, and says so.
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-gpu-to-ptx{chip=sm_90a})" | FileCheck %s
// RUN: not diffattn-opt %s --pass-pipeline="builtin.module(diffattn-gpu-to-ptx{chip=sm_90a no-spills=true})" 2>&1 | FileCheck %s --check-prefix=ERROR

// CHECK: diffattn.ptxas_warnings = ["(C75{{.*}}GMMA
// ERROR: error: expected ptxas to leave products by warpgroups as they are, but got (C75

!d = !llvm.struct<(f32, f32, f32, f32)>

gpu.module @kernels {
  llvm.func @early(%out: !llvm.ptr<1>, %a: i64, %b: i64) attributes {gpu.kernel, nvvm.kernel, nvvm.reqntid = array<i32: 128, 1, 1>} {
    %one = llvm.mlir.constant(1 : i32) : i32
    %zero = llvm.mlir.constant(0.0 : f32) : f32
    llvm.call_intrinsic "llvm.nvvm.wgmma.fence.sync.aligned"() : () -> ()
    %d = llvm.inline_asm has_side_effects asm_dialect = att
      "{ .reg .pred p; setp.ne.b32 p, $10, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {$0, $1, $2, $3}, $8, $9, p, 1, 1, 0, 0; }",
      "=f,=f,=f,=f,0,1,2,3,l,l,r,~{memory}" %zero, %zero, %zero, %zero, %a, %b, %one : (f32, f32, f32, f32, i64, i64, i32) -> !d
    %x = llvm.extractvalue %d[0] : !d
    %y = llvm.fmul %x, %x : f32
    llvm.store %y, %out : f32, !llvm.ptr<1>
    llvm.call_intrinsic "llvm.nvvm.wgmma.commit_group.sync.aligned"() : () -> ()
    %zero64 = llvm.mlir.constant(0 : i64) : i64
    llvm.call_intrinsic "llvm.nvvm.wgmma.wait_group.sync.aligned"(%zero64) : (i64) -> ()
    llvm.return
  }
}
