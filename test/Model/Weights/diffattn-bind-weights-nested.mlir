// Of two modules under one pass manager, each becomes what it becomes alone: in one thread, where the same pass visits both, and in several.
// DEFINE: %{pass} = diffattn-bind-weights
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
// CHECK-SAME:  diffattn.weights = [#diffattn.weight<name = "b", type = tensor<3xf32>>]
// CHECK:       %[[SLOT:.+]] = arith.constant 0 : index
// CHECK:       diffattn.weight %[[SLOT]] : memref<3xf32>
// CHECK:       arith.constant dense<1.000000e+00> : tensor<4xf32>

//--- first.mlir
module @first {
  ml_program.global private @a(#ml_program.extern<tensor<4xf32>>) : tensor<4xf32>
  ml_program.global private @b(#ml_program.extern<tensor<3xf32>>) : tensor<3xf32>
  func.func @f() -> (tensor<3xf32>, tensor<4xf32>) {
    %b = ml_program.global_load_const @b : tensor<3xf32>
    %a = ml_program.global_load_const @a : tensor<4xf32>
    return %b, %a : tensor<3xf32>, tensor<4xf32>
  }
}
//--- second.mlir
// What is a weight of the first module is a constant here.
module @second {
  ml_program.global private @b(#ml_program.extern<tensor<3xf32>>) : tensor<3xf32>
  ml_program.global private @a(dense<1.0> : tensor<4xf32>) : tensor<4xf32>
  func.func @f() -> (tensor<3xf32>, tensor<4xf32>) {
    %b = ml_program.global_load_const @b : tensor<3xf32>
    %a = ml_program.global_load_const @a : tensor<4xf32>
    return %b, %a : tensor<3xf32>, tensor<4xf32>
  }
}
