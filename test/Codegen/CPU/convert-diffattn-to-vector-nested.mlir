// Of two modules under one pass manager, each becomes what it becomes alone: in one thread, where the same pass visits both, and in several.
// DEFINE: %{pass} = convert-diffattn-to-vector
// RUN: rm -rf %t && split-file %s %t
// RUN: diffattn-opt %t/decode.mlir --mlir-print-local-scope --diffattn-select-schedule=isa=avx512 -o %t/first.mlir
// RUN: diffattn-opt %t/prefill.mlir --mlir-print-local-scope --diffattn-select-schedule=isa=avx512 -o %t/second.mlir
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
// CHECK-NOT:   @diffattn_attention_1
// CHECK:       llvm.mlir.addressof @diffattn_attention_0 :
// CHECK-NOT:   @diffattn_attention_1
// CHECK:       llvm.func private @diffattn_attention_0(
// CHECK-NOT:   @diffattn_attention_1

//--- decode.mlir
module @first {
  func.func @decode(%q: memref<1x8x1x64xf32>, %k: memref<1x8x4096x64xf32>, %l: memref<f32>, %o: memref<1x8x1x64xf32>) {
    diffattn.attention ins(%q, %k, %q, %k, %k : memref<1x8x1x64xf32>, memref<1x8x4096x64xf32>, memref<1x8x1x64xf32>, memref<1x8x4096x64xf32>, memref<1x8x4096x64xf32>)
        lambda(%l : memref<f32>) outs(%o : memref<1x8x1x64xf32>) {scale = 0.125 : f32}
    return
  }
}
//--- prefill.mlir
module @second {
  func.func @prefill(%q: memref<1x8x256x64xf32>, %k: memref<1x8x256x64xf32>, %l: memref<f32>, %o: memref<1x8x256x64xf32>) {
    diffattn.attention ins(%q, %k, %q, %k, %k : memref<1x8x256x64xf32>, memref<1x8x256x64xf32>, memref<1x8x256x64xf32>, memref<1x8x256x64xf32>, memref<1x8x256x64xf32>)
        lambda(%l : memref<f32>) outs(%o : memref<1x8x256x64xf32>) {scale = 0.125 : f32}
    return
  }
}
