// RUN: diffattn-opt %s --pass-pipeline="builtin.module(convert-diffattn-weight-to-runtime,convert-diffattn-alloc-to-runtime,convert-diffattn-assert-to-runtime)" | FileCheck %s

module attributes {diffattn.weights = [{index = 0 : i64, name = "a"}, {index = 1 : i64, layers = 3 : i64, name = "b"}]} {
// CHECK-DAG: llvm.mlir.global internal constant @[[$TEXT:.+]]("expected more\00")
// CHECK-DAG: llvm.mlir.global external @diffattn_weights() {{.*}} : !llvm.array<4 x struct<(ptr, ptr, i64, i64, i32, i32)>>
// CHECK-DAG: llvm.func @diffattn_rt_alloc(i64) -> (!llvm.ptr {llvm.noalias})
// CHECK-DAG: llvm.func @diffattn_rt_fail(!llvm.ptr)

// CHECK-LABEL: func.func @all(
func.func @all(%slot: index, %n: index, %ok: i1) -> (memref<4x2xf32>, memref<?x2xf32>) {
  // CHECK:     %[[TABLE:.+]] = llvm.mlir.addressof @diffattn_weights
  // CHECK:     %[[SLOT:.+]] = llvm.getelementptr %[[TABLE]]
  // CHECK:     llvm.load %[[SLOT]]
  %w = diffattn.weight %slot : memref<4x2xf32>
  // CHECK:     llvm.call @diffattn_rt_alloc
  %a = memref.alloc(%n) {alignment = 64 : i64} : memref<?x2xf32>
  // CHECK-NOT: dealloc
  memref.dealloc %a : memref<?x2xf32>
  // CHECK:     cf.cond_br %{{.+}}, ^[[GOOD:.+]], ^[[BAD:.+]]
  cf.assert %ok, "expected more"
  // CHECK:     ^[[GOOD]]:
  // CHECK:     return
  // CHECK:     ^[[BAD]]:
  // CHECK:     %[[M:.+]] = llvm.mlir.addressof @[[$TEXT]]
  // CHECK:     llvm.call @diffattn_rt_fail(%[[M]])
  // CHECK:     llvm.unreachable
  return %w, %a : memref<4x2xf32>, memref<?x2xf32>
}
}
