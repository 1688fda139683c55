// RUN: diffattn-opt %s --pass-pipeline="builtin.module(convert-diffattn-assert-to-runtime)" | FileCheck %s

// CHECK-DAG: llvm.mlir.global internal constant @[[$TEXT:.+]]("expected more\00")
// CHECK-DAG: llvm.func @diffattn_rt_fail(!llvm.ptr)

// CHECK-LABEL: func.func @assert(
func.func @assert(%ok: i1) {
  // CHECK:     cf.cond_br %{{.+}}, ^[[GOOD:.+]], ^[[BAD:.+]]
  cf.assert %ok, "expected more"
  // CHECK:     ^[[GOOD]]:
  // CHECK:     return
  // CHECK:     ^[[BAD]]:
  // CHECK:     %[[M:.+]] = llvm.mlir.addressof @[[$TEXT]]
  // CHECK:     llvm.call @diffattn_rt_fail(%[[M]])
  // CHECK:     llvm.unreachable
  return
}
