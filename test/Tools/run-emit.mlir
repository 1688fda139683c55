// RUN: diffattn-run %s --emit=input | FileCheck %s --check-prefix=INPUT
// RUN: diffattn-run %s --emit=bufferized -o %t && FileCheck %s --check-prefix=BUFFERS --input-file=%t
// RUN: diffattn-run %s --emit=llvm | FileCheck %s --check-prefix=LLVM
// RUN: diffattn-run %s --emit=llvm-ir | FileCheck %s --check-prefix=IR
// RUN: diffattn-run %s --emit=assembly --target=cpu:avx2 | FileCheck %s --check-prefix=ASM --implicit-check-not=zmm
// RUN: diffattn-run %s --emit=scheduled | diffattn-opt | FileCheck %s --check-prefix=INPUT

// INPUT: tensor.insert
// BUFFERS-NOT: tensor.insert
// BUFFERS: memref.store
// LLVM: llvm.func
// IR: define {{.*}}void @diffattn_entry_put(
// ASM: diffattn_entry_put:
func.func @put(%x: tensor<4xf32> {bufferization.writable = true}, %v: f32, %i: index) -> tensor<4xf32> {
  %r = tensor.insert %v into %x[%i] : tensor<4xf32>
  return %r : tensor<4xf32>
}
