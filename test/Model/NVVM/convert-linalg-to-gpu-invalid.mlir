// RUN: diffattn-opt %s -split-input-file -verify-diagnostics --pass-pipeline="builtin.module(convert-linalg-to-gpu{chip=sm_80})"

func.func @size(%x: memref<i64>) -> memref<?xf32> {
  // expected-note@+1 {{it is read here}}
  %v = memref.load %x[] : memref<i64>
  %n = arith.index_cast %v : i64 to index
  // expected-error@+1 {{'memref.alloc' op expected what the host knows, but got a value that depends on data in device memory}}
  %y = memref.alloc(%n) : memref<?xf32>
  return %y : memref<?xf32>
}

// -----

func.func @turns(%x: memref<i64>, %y: memref<4xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  // expected-note@+1 {{it is read here}}
  %v = memref.load %x[] : memref<i64>
  %n = arith.index_cast %v : i64 to index
  // expected-error@+1 {{'scf.for' op expected what the host knows, but got a value that depends on data in device memory}}
  scf.for %i = %c0 to %n step %c1 {
    func.call @other(%y) : (memref<4xf32>) -> ()
  }
  return
}
func.func private @other(memref<4xf32>)

// -----

func.func @result(%x: memref<f32>) -> f32 {
  // expected-note@+1 {{it is read here}}
  %v = memref.load %x[] : memref<f32>
  // expected-error@+1 {{'func.return' op expected what the host knows, but got a value that depends on data in device memory}}
  return %v : f32
}

// -----

func.func @tensors(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = arith.constant 0.0 : f32
  // expected-error@+1 {{'linalg.fill' op expected memrefs, but got tensors: bufferize first}}
  %r = linalg.fill ins(%zero : f32) outs(%x : tensor<4xf32>) -> tensor<4xf32>
  return %r : tensor<4xf32>
}

// -----

func.func @elements(%x: memref<4xcomplex<f32>>, %y: memref<4xcomplex<f32>>) {
  // expected-error@+1 {{expected elements of type f16, bf16, f32, f64, index, i1, i8, i16, i32 or i64, but got complex<f32>}}
  memref.copy %x, %y : memref<4xcomplex<f32>> to memref<4xcomplex<f32>>
  return
}

// -----

func.func @carried(%x: memref<f32>, %y: memref<4xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %v = memref.load %x[] : memref<f32>
  %s = scf.for %i = %c0 to %c4 step %c1 iter_args(%a = %v) -> f32 {
    %b = arith.addf %a, %a : f32
    scf.yield %b : f32
  }
  // expected-error@+1 {{expected scalars that a kernel can compute from elements, but one depends on control flow that the host runs}}
  linalg.fill ins(%s : f32) outs(%y : memref<4xf32>)
  return
}

// -----

func.func @library(%x: memref<4xf64>, %y: memref<4xf64>) {
  linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%x : memref<4xf64>) outs(%y : memref<4xf64>) {
  ^bb0(%a: f64, %o: f64):
    // expected-error@+1 {{expected a function that a kernel can compute without a library, but got math.exp on 'f64'}}
    %b = math.exp %a : f64
    linalg.yield %b : f64
  }
  return
}

// -----

func.func @stored(%x: memref<4xf32>, %y: memref<4xf32>) {
  // expected-error@+1 {{expected a body that writes no memory}}
  linalg.generic {indexing_maps = [affine_map<(i) -> (i)>], iterator_types = ["parallel"]} outs(%y : memref<4xf32>) {
  ^bb0(%o: f32):
    %i = linalg.index 0 : index
    memref.store %o, %x[%i] : memref<4xf32>
    linalg.yield %o : f32
  }
  return
}
