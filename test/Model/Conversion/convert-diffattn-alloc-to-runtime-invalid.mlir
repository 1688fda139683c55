// RUN: diffattn-opt %s --split-input-file --verify-diagnostics --pass-pipeline="builtin.module(convert-diffattn-alloc-to-runtime)"

func.func @alignment() -> memref<4xf32> {
  // expected-error @+2 {{expected an alignment of at most 64 bytes, but got 128}}
  // expected-error @+1 {{failed to legalize operation 'memref.alloc'}}
  %0 = memref.alloc() {alignment = 128 : i64} : memref<4xf32>
  return %0 : memref<4xf32>
}

// -----

func.func @number_space() -> memref<4xf32, 3> {
  // expected-error @+2 {{'memref.alloc' op expected memory space 0, which the runtime has, but got 'memref<4xf32, 3>'}}
  // expected-error @+1 {{failed to legalize operation 'memref.alloc'}}
  %a = memref.alloc() : memref<4xf32, 3>
  return %a : memref<4xf32, 3>
}

// -----

func.func @named_space() -> memref<4xf32, "x"> {
  // expected-error @+2 {{'memref.alloc' op expected memory space 0, which the runtime has, but got 'memref<4xf32, "x">'}}
  // expected-error @+1 {{failed to legalize operation 'memref.alloc'}}
  %a = memref.alloc() : memref<4xf32, "x">
  return %a : memref<4xf32, "x">
}

// -----

func.func @no_llvm_type() -> memref<4xtf32> {
  // expected-error @+2 {{'memref.alloc' op expected elements of a type that LLVM has, but got 'memref<4xtf32>'}}
  // expected-error @+1 {{failed to legalize operation 'memref.alloc'}}
  %a = memref.alloc() : memref<4xtf32>
  return %a : memref<4xtf32>
}

// -----

func.func @strided() -> memref<4x4xf32, strided<[8, 1]>> {
  // expected-error @+2 {{'memref.alloc' op expected the identity layout, but got 'memref<4x4xf32, strided<[8, 1]>>'}}
  // expected-error @+1 {{failed to legalize operation 'memref.alloc'}}
  %a = memref.alloc() : memref<4x4xf32, strided<[8, 1]>>
  return %a : memref<4x4xf32, strided<[8, 1]>>
}
