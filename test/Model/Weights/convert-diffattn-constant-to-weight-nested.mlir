// Of two modules under one pass manager, each becomes what it becomes alone: in one thread, where the same pass visits both, and in several.
// DEFINE: %{pass} = convert-diffattn-constant-to-weight
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
// CHECK-SAME:  diffattn.constants = [dense<2.000000e+00> : tensor<4xf32>]
// CHECK:       %[[SLOT:.+]] = arith.constant 0 : index
// CHECK:       diffattn.weight %[[SLOT]]

//--- first.mlir
module @first {
  memref.global "private" constant @a : memref<3xf32> = dense<1.0>
  memref.global "private" constant @b : memref<4xf32> = dense<3.0>
  func.func @f() -> (memref<3xf32>, memref<4xf32>) {
    %a = memref.get_global @a : memref<3xf32>
    %b = memref.get_global @b : memref<4xf32>
    return %a, %b : memref<3xf32>, memref<4xf32>
  }
}
//--- second.mlir
module @second {
  memref.global "private" constant @b : memref<4xf32> = dense<2.0>
  func.func @f() -> memref<4xf32> {
    %b = memref.get_global @b : memref<4xf32>
    return %b : memref<4xf32>
  }
}
