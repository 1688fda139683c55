// Of two modules under one pass manager, each becomes what it becomes alone: in one thread, where the same pass visits both, and in several.
// DEFINE: %{pass} = convert-diffattn-assert-to-runtime
// RUN: rm -rf %t && split-file %s %t
// RUN: diffattn-opt %t/first.mlir --mlir-print-local-scope --pass-pipeline="builtin.module(%{pass})" > %t/alone
// RUN: diffattn-opt %t/second.mlir --mlir-print-local-scope --pass-pipeline="builtin.module(%{pass})" >> %t/alone
// RUN: cat %t/first.mlir %t/second.mlir > %t/both.mlir
// RUN: diffattn-opt %t/both.mlir --mlir-print-local-scope --mlir-disable-threading --pass-pipeline="builtin.module(builtin.module(%{pass}))" > %t/one
// RUN: diffattn-opt %t/both.mlir --mlir-print-local-scope --pass-pipeline="builtin.module(builtin.module(%{pass}))" > %t/several
// RUN: grep -v "^$" %t/alone > %t/wanted
// RUN: grep -v "^$" %t/one | sed -e "1d" -e "$d" -e "s/^  //" | diff %t/wanted -
// RUN: grep -v "^$" %t/several | sed -e "1d" -e "$d" -e "s/^  //" | diff %t/wanted -
// RUN: FileCheck %s --input-file=%t/one
// A pass over the module around them changes neither.
// RUN: diffattn-opt %t/both.mlir --mlir-print-local-scope > %t/unchanged
// RUN: diffattn-opt %t/both.mlir --mlir-print-local-scope --pass-pipeline="builtin.module(%{pass})" | diff %t/unchanged -

// CHECK-LABEL: module @second
// CHECK-NOT:   "alpha
// CHECK:       llvm.mlir.global internal constant @diffattn_message_0("beta\00")
// CHECK:       llvm.mlir.addressof @diffattn_message_0

//--- first.mlir
module @first {
  func.func @f(%a: i1, %b: i1) {
    cf.assert %a, "alpha"
    cf.assert %b, "beta"
    return
  }
}
//--- second.mlir
module @second {
  func.func @f(%b: i1) {
    cf.assert %b, "beta"
    return
  }
}
