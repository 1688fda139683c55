// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-export-functions)" --split-input-file --verify-diagnostics

// expected-error @+1 {{expected another name: the C library's 'cos' is what math.cos may call}}
func.func @cos(%x: f64) -> f64 {
  %y = arith.negf %x : f64
  return %y : f64
}
func.func @main(%x: f64) -> f64 {
  %y = math.cos %x : f64
  return %y : f64
}

// -----

// expected-error @+1 {{expected another name: the C library's 'powf' is what math.powf may call}}
func.func private @powf(%x: f32) -> f32 {
  %y = math.powf %x, %x : f32
  return %y : f32
}

// -----

func.func @sin(%x: f64) -> f64 {
  %y = math.cos %x : f64
  return %y : f64
}

// -----

// expected-error @+1 {{expected another name: the C library's 'fmodf' is what arith.remf may call}}
func.func @fmodf(%x: f32, %y: f32) -> f32 {
  %z = arith.remf %x, %y : f32
  return %z : f32
}

// -----

// expected-error @+1 {{expected another name: the C library's 'memcpy' is what any code may call}}
func.func private @memcpy(%x: memref<?xf32>, %y: memref<?xf32>) {
  memref.copy %x, %y : memref<?xf32> to memref<?xf32>
  return
}

// -----

// expected-error @+1 {{expected another name: 'diffattn_release_constants' is the runtime's}}
func.func @diffattn_release_constants(%x: f32) {
  return
}

// -----

// expected-error @+1 {{expected another name: 'diffattn_rt_alloc' is the runtime's}}
func.func @diffattn_rt_alloc(%x: f32) {
  return
}

// -----

// A declaration is of the function that is there.
func.func private @memcpy(%x: i64)
