// RUN: diffattn-opt %s --diffattn-select-gpu-schedule --convert-diffattn-to-gpu | FileCheck %s

// The assembler is told how many blocks an SM is to hold: fewer for wider sums of a lane, and where the width of a head leaves a rest of
// the products that a second loop takes.
// CHECK: llvm.func @diffattn_forward_64x64_f32_plain{{.*}}(
// CHECK-SAME: nvvm.minctasm = 12 : i32, nvvm.reqntid = array<i32: 128, 1, 1>
// CHECK: llvm.func @diffattn_forward_64x256_f32_plain{{.*}}(
// CHECK-SAME: nvvm.minctasm = 4 : i32, nvvm.reqntid = array<i32: 128, 1, 1>
// CHECK: llvm.func @diffattn_forward_23x64_f32_plain{{.*}}(
// CHECK-SAME: nvvm.minctasm = 10 : i32, nvvm.reqntid = array<i32: 128, 1, 1>
// Segments: the least and the greatest number of a query and of each 32 keys, and room for them. Half a number of 64 bits at a time.
// CHECK: llvm.func @diffattn_forward_64x64_f32_plain4_{{.*}}segmentmaski64_anystride(
// CHECK-SAME: nvvm.minctasm = 8 : i32, nvvm.reqntid = array<i32: 128, 1, 1>
// CHECK: nvvm.redux.sync {{ *}}min
// CHECK: nvvm.redux.sync {{ *}}umin
// CHECK: nvvm.redux.sync {{ *}}max
// CHECK: nvvm.redux.sync {{ *}}umax
!q = memref<2x?x4x64xf32>
!v = memref<2x?x4x64xf32>
!wide = memref<2x?x4x256xf32>
!odd = memref<2x?x4x23xf32>
func.func @even(%q: !q, %k: !q, %v: !v, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>)
    outs(%o : !v) {scale = 0.125 : f32}
  return
}
func.func @wide(%q: !q, %k: !q, %v: !wide, %l: memref<f32>, %o: !wide) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !q, !q, !q, !q, !wide) lambda(%l : memref<f32>)
    outs(%o : !wide) {scale = 0.125 : f32}
  return
}
func.func @odd(%q: !odd, %k: !odd, %v: !v, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !odd, !odd, !odd, !odd, !v) lambda(%l : memref<f32>)
    outs(%o : !v) {scale = 0.125 : f32}
  return
}
func.func @segments(%q: !q, %k: !q, %v: !v, %l: memref<f32>, %s: memref<2x?xi64>, %o: !v) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>) q_segments(%s : memref<2x?xi64>)
    kv_segments(%s : memref<2x?xi64>) outs(%o : !v) {scale = 0.125 : f32}
  return
}
