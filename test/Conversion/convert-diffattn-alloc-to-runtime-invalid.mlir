// RUN: diffattn-opt %s --split-input-file --verify-diagnostics --pass-pipeline="builtin.module(convert-diffattn-alloc-to-runtime)"

func.func @alignment() -> memref<4xf32> {
  // expected-error @+2 {{expected an alignment of at most 64 bytes, but got 128}}
  // expected-error @+1 {{failed to legalize operation 'memref.alloc'}}
  %0 = memref.alloc() {alignment = 128 : i64} : memref<4xf32>
  return %0 : memref<4xf32>
}
