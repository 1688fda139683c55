// RUN: diffattn-opt %s --pass-pipeline="builtin.module(convert-diffattn-assert-to-runtime)" --split-input-file | FileCheck %s

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

// -----

// A message of an earlier run, or of somebody else, keeps its name.
// CHECK:     llvm.mlir.global internal constant @diffattn_message_1("expected less\00")
// CHECK:     llvm.mlir.global internal constant @diffattn_message_0("taken\00")
llvm.mlir.global internal constant @diffattn_message_0("taken\00")
// CHECK-LABEL: func.func @taken(
func.func @taken(%ok: i1) {
  // CHECK:   llvm.mlir.addressof @diffattn_message_1 :
  cf.assert %ok, "expected less"
  return
}
