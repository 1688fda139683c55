// How each instruction of sm_90a is spelled, as the table of Target/PtxAsm.h says, through LLVM and ptxas.
// RUN: mlir-translate --mlir-to-llvmir %s | llc -march=nvptx64 -mcpu=sm_90a -mattr=+ptx80 -o %t.ptx
// RUN: FileCheck %s --input-file=%t.ptx
// RUN: ptxas -arch=sm_90a %t.ptx -o %t.cubin 2>&1 | FileCheck %s --check-prefix=LOG --allow-empty
// RUN: test -s %t.cubin

// No remark that wgmma was serialized.
// LOG-NOT: C75

!d = !llvm.struct<(f32, f32, f32, f32)>

// CHECK-LABEL: .entry hopper(
// CHECK-NOT: .local
llvm.func @hopper(%map: !llvm.ptr {llvm.byval = !llvm.array<128 x i8>, llvm.align = 64 : i64, nvvm.grid_constant},
                  %global: !llvm.ptr<1>, %x: i32, %y: i32, %parity: i32, %a: i64, %b: i64)
    attributes {nvvm.kernel, nvvm.reqntid = array<i32: 384, 1, 1>, nvvm.minctasm = 1 : i32} {
  %i0 = llvm.mlir.constant(0 : i32) : i32
  %i1 = llvm.mlir.constant(1 : i32) : i32
  %i2 = llvm.mlir.constant(2 : i32) : i32
  %i256 = llvm.mlir.constant(256 : i32) : i32
  %bytes = llvm.mlir.constant(1024 : i32) : i32
  %at = llvm.mlir.constant(64 : i32) : i32
  %all = llvm.mlir.constant(-1 : i32) : i32
  %short = llvm.mlir.constant(0 : i16) : i16
  %both = llvm.mlir.constant(3 : i16) : i16
  %long = llvm.mlir.constant(0 : i64) : i64
  %false = llvm.mlir.constant(false) : i1
  %true = llvm.mlir.constant(true) : i1
  %zero = llvm.mlir.constant(0.0 : f32) : f32
  %bar = llvm.inttoptr %at : i32 to !llvm.ptr<3>
  %tile = llvm.inttoptr %bytes : i32 to !llvm.ptr<3>
  %to = llvm.addrspacecast %tile : !llvm.ptr<3> to !llvm.ptr<7>

  // CHECK: mbarrier.init.shared.b64
  llvm.call_intrinsic "llvm.nvvm.mbarrier.init.shared"(%bar, %i1) : (!llvm.ptr<3>, i32) -> ()
  // CHECK: fence.mbarrier_init.release.cluster
  llvm.call_intrinsic "llvm.nvvm.fence.mbarrier_init.release.cluster"() : () -> ()
  // CHECK: barrier.cluster.arrive.aligned
  llvm.call_intrinsic "llvm.nvvm.barrier.cluster.arrive.aligned"() : () -> ()
  // CHECK: barrier.cluster.wait.aligned
  llvm.call_intrinsic "llvm.nvvm.barrier.cluster.wait.aligned"() : () -> ()
  // CHECK: prefetch.{{(param\.)?}}tensormap
  llvm.call_intrinsic "llvm.nvvm.prefetch.tensormap.p0"(%map) : (!llvm.ptr) -> ()
  // CHECK: griddepcontrol.wait
  llvm.call_intrinsic "llvm.nvvm.griddepcontrol.wait"() : () -> ()
  // CHECK: griddepcontrol.launch_dependents
  llvm.call_intrinsic "llvm.nvvm.griddepcontrol.launch.dependents"() : () -> ()
  // CHECK: elect.sync
  %e = llvm.call_intrinsic "llvm.nvvm.elect.sync"(%all) : (i32) -> !llvm.struct<(i32, i1)>
  %elected = llvm.extractvalue %e[1] : !llvm.struct<(i32, i1)>
  llvm.cond_br %elected, ^load, ^multiply

^load:
  // CHECK: mbarrier.arrive.expect_tx.shared.b64
  %t0 = llvm.call_intrinsic "llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta"(%bar, %bytes) : (!llvm.ptr<3>, i32) -> i64
  // CHECK: cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
  llvm.call_intrinsic "llvm.nvvm.cp.async.bulk.tensor.g2s.tile.4d"(%to, %bar, %map, %x, %y, %i0, %i0, %short, %long, %false, %false, %i0)
    : (!llvm.ptr<7>, !llvm.ptr<3>, !llvm.ptr, i32, i32, i32, i32, i16, i64, i1, i1, i32) -> ()
  // CHECK: cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
  llvm.call_intrinsic "llvm.nvvm.cp.async.bulk.tensor.g2s.tile.5d"(%to, %bar, %map, %x, %y, %i0, %i0, %i0, %both, %long, %true, %false, %i0)
    : (!llvm.ptr<7>, !llvm.ptr<3>, !llvm.ptr, i32, i32, i32, i32, i32, i16, i64, i1, i1, i32) -> ()
  // CHECK: cp.async.bulk.prefetch.tensor.4d.L2.global.tile
  llvm.call_intrinsic "llvm.nvvm.cp.async.bulk.tensor.prefetch.tile.4d"(%map, %x, %y, %i0, %i0, %long, %false)
    : (!llvm.ptr, i32, i32, i32, i32, i64, i1) -> ()
  // CHECK: cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
  llvm.call_intrinsic "llvm.nvvm.cp.async.bulk.global.to.shared.cluster"(%to, %bar, %global, %bytes, %short, %long, %false, %false)
    : (!llvm.ptr<7>, !llvm.ptr<3>, !llvm.ptr<1>, i32, i16, i64, i1, i1) -> ()
  // CHECK: mapa.shared::cluster
  %remote = llvm.call_intrinsic "llvm.nvvm.mapa.shared.cluster"(%bar, %i1) : (!llvm.ptr<3>, i32) -> !llvm.ptr<7>
  // CHECK: mbarrier.arrive.release.cluster.shared::cluster.b64
  llvm.call_intrinsic "llvm.nvvm.mbarrier.arrive.scope.cluster.space.cluster"(%remote, %i1) : (!llvm.ptr<7>, i32) -> ()
  llvm.br ^multiply

^multiply:
  // CHECK: mbarrier.try_wait.parity.shared.b64
  %done = llvm.call_intrinsic "llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta"(%bar, %parity) : (!llvm.ptr<3>, i32) -> i1
  llvm.cond_br %done, ^clusterwide, ^multiply
^clusterwide:
  // CHECK: mbarrier.try_wait.parity.acquire.cluster.shared.b64
  %arrived = llvm.call_intrinsic "llvm.nvvm.mbarrier.try.wait.parity.scope.cluster.space.cta"(%bar, %parity) : (!llvm.ptr<3>, i32) -> i1
  llvm.cond_br %arrived, ^arrived, ^clusterwide

^arrived:
  // CHECK: wgmma.fence.sync.aligned
  llvm.call_intrinsic "llvm.nvvm.wgmma.fence.sync.aligned"() : () -> ()
  // CHECK: wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{.*}}, p, 1, 1, 0, 0; }
  %s = llvm.inline_asm has_side_effects asm_dialect = att
    "{ .reg .pred p; setp.ne.b32 p, $10, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {$0, $1, $2, $3}, $8, $9, p, 1, 1, 0, 0; }",
    "=f,=f,=f,=f,0,1,2,3,l,l,r,~{memory}" %zero, %zero, %zero, %zero, %a, %b, %i0 : (f32, f32, f32, f32, i64, i64, i32) -> !d
  // CHECK: wgmma.commit_group.sync.aligned
  llvm.call_intrinsic "llvm.nvvm.wgmma.commit_group.sync.aligned"() : () -> ()
  %s0 = llvm.extractvalue %s[0] : !d
  %s1 = llvm.extractvalue %s[1] : !d
  %s2 = llvm.extractvalue %s[2] : !d
  %s3 = llvm.extractvalue %s[3] : !d
  // CHECK: wgmma.wait_group.sync.aligned 0
  %w = llvm.inline_asm has_side_effects asm_dialect = att "wgmma.wait_group.sync.aligned 0;",
    "=f,=f,=f,=f,0,1,2,3,~{memory}" %s0, %s1, %s2, %s3 : (f32, f32, f32, f32) -> !d
  %w0 = llvm.extractvalue %w[0] : !d
  %w1 = llvm.extractvalue %w[1] : !d
  %w2 = llvm.extractvalue %w[2] : !d
  %w3 = llvm.extractvalue %w[3] : !d
  // CHECK: // registers end here
  %p = llvm.inline_asm has_side_effects asm_dialect = att "// registers end here", "=r,0,~{memory}" %x : (i32) -> i32
  llvm.call_intrinsic "llvm.nvvm.wgmma.fence.sync.aligned"() : () -> ()
  // CHECK: wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{.*}}, p, 1, 1, 1; }
  %o = llvm.inline_asm has_side_effects asm_dialect = att
    "{ .reg .pred p; setp.ne.b32 p, $13, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {$0, $1, $2, $3}, {$8, $9, $10, $11}, $12, p, 1, 1, 1; }",
    "=f,=f,=f,=f,0,1,2,3,r,r,r,r,l,r,~{memory}" %w0, %w1, %w2, %w3, %p, %p, %p, %p, %b, %i1
    : (f32, f32, f32, f32, i32, i32, i32, i32, i64, i32) -> !d
  llvm.call_intrinsic "llvm.nvvm.wgmma.commit_group.sync.aligned"() : () -> ()
  %o0 = llvm.extractvalue %o[0] : !d
  %o1 = llvm.extractvalue %o[1] : !d
  %o2 = llvm.extractvalue %o[2] : !d
  %o3 = llvm.extractvalue %o[3] : !d
  %q = llvm.inline_asm has_side_effects asm_dialect = att "wgmma.wait_group.sync.aligned 0;",
    "=f,=f,=f,=f,0,1,2,3,~{memory}" %o0, %o1, %o2, %o3 : (f32, f32, f32, f32) -> !d
  %q0 = llvm.extractvalue %q[0] : !d
  %word = llvm.bitcast %q0 : f32 to i32
  // CHECK: stmatrix.sync.aligned.m8n8.x4.shared.b16
  llvm.call_intrinsic "llvm.nvvm.stmatrix.sync.aligned.m8n8.x4.b16.p3"(%tile, %word, %word, %word, %word)
    : (!llvm.ptr<3>, i32, i32, i32, i32) -> ()
  // CHECK: fence.proxy.async.shared::cta
  llvm.call_intrinsic "llvm.nvvm.fence.proxy.async.shared_cta"() : () -> ()
  // CHECK: bar.arrive {{.*}}2, 256
  llvm.call_intrinsic "llvm.nvvm.barrier.cta.arrive.aligned.count"(%i2, %i256) : (i32, i32) -> ()
  // CHECK: bar.sync {{.*}}2, 256
  llvm.call_intrinsic "llvm.nvvm.barrier.cta.sync.aligned.count"(%i2, %i256) : (i32, i32) -> ()
  // CHECK: cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group
  llvm.call_intrinsic "llvm.nvvm.cp.async.bulk.tensor.s2g.tile.4d"(%tile, %map, %x, %y, %i0, %i0, %long, %false)
    : (!llvm.ptr<3>, !llvm.ptr, i32, i32, i32, i32, i64, i1) -> ()
  // CHECK: cp.async.bulk.commit_group
  llvm.call_intrinsic "llvm.nvvm.cp.async.bulk.commit.group"() : () -> ()
  // CHECK: cp.async.bulk.wait_group.read
  llvm.call_intrinsic "llvm.nvvm.cp.async.bulk.wait.group.read"(%i0) : (i32) -> ()
  // CHECK: cp.async.bulk.wait_group
  llvm.call_intrinsic "llvm.nvvm.cp.async.bulk.wait.group"(%i0) : (i32) -> ()
  // CHECK: %cluster_ctarank
  %rank = llvm.call_intrinsic "llvm.nvvm.read.ptx.sreg.cluster.ctarank"() : () -> i32
  // CHECK: %cluster_nctarank
  %ranks = llvm.call_intrinsic "llvm.nvvm.read.ptx.sreg.cluster.nctarank"() : () -> i32
  %sum = llvm.add %rank, %ranks : i32
  llvm.store %sum, %global : i32, !llvm.ptr<1>
  // CHECK: mbarrier.inval.shared.b64
  llvm.call_intrinsic "llvm.nvvm.mbarrier.inval.shared"(%bar) : (!llvm.ptr<3>) -> ()
  llvm.return
}

// Apart from the matrix instructions, which ptxas would not pipeline behind so few registers.
// CHECK-LABEL: .entry registers(
llvm.func @registers() attributes {nvvm.kernel, nvvm.reqntid = array<i32: 384, 1, 1>, nvvm.minctasm = 1 : i32} {
  // CHECK: setmaxnreg.dec.sync.aligned.u32 24
  %r24 = llvm.mlir.constant(24 : i32) : i32
  llvm.call_intrinsic "llvm.nvvm.setmaxnreg.dec.sync.aligned.u32"(%r24) : (i32) -> ()
  // CHECK: setmaxnreg.inc.sync.aligned.u32 240
  %r240 = llvm.mlir.constant(240 : i32) : i32
  llvm.call_intrinsic "llvm.nvvm.setmaxnreg.inc.sync.aligned.u32"(%r240) : (i32) -> ()
  llvm.return
}
