// RUN: diffattn-opt %s --convert-scf-to-cf --convert-diffattn-amx-to-llvm --split-input-file --allow-unregistered-dialect | FileCheck %s

// A tile that a loop carries is an argument of a block.
// CHECK-LABEL: llvm.func @carried(
// CHECK:       %[[ZERO:.*]] = llvm.call_intrinsic "llvm.x86.tilezero.internal"
// CHECK:       llvm.br ^bb1({{.*}}, %[[ZERO]] : i64, !llvm.x86_amx)
// CHECK:       ^bb1(%{{.*}}: i64, %[[SUM:.*]]: !llvm.x86_amx):
// CHECK:       "llvm.x86.tdpbf16ps.internal"({{.*}}, %[[SUM]], %{{.*}}, %{{.*}})
// CHECK-NOT:   amx.
// CHECK-NOT:   cf.
llvm.func @carried(%n: i64) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %zero = amx.tile_zero : !amx.tile<16x16xf32>
  %factor = amx.tile_zero : !amx.tile<16x32xbf16>
  %sum = scf.for %i = %c0 to %n step %c1 iter_args(%s = %zero) -> (!amx.tile<16x16xf32>) : i64 {
    %next = amx.tile_mulf %factor, %factor, %s : !amx.tile<16x32xbf16>, !amx.tile<16x32xbf16>, !amx.tile<16x16xf32>
    scf.yield %next : !amx.tile<16x16xf32>
  }
  llvm.return
}

// -----

// Without tiles nothing changes.
// CHECK-LABEL: func.func @plain(
// CHECK:       cf.cond_br
func.func @plain(%c: i1) {
  scf.if %c {
    "test.op"() : () -> ()
  }
  return
}
