// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-expand-math))" | FileCheck %s
// RUN: diffattn-opt %s --diffattn-cpu-pipeline | mlir-runner -e main --entry-point-result=void \
// RUN:   --shared-libs=%runtime,%mlir_lib_dir/libmlir_c_runner_utils.so | FileCheck %s --check-prefix=VALUES

// CHECK-LABEL: func.func @f32(
// CHECK-NOT:     math.exp
// CHECK-NOT:     math.erf
// CHECK-NOT:     math.fpowi
func.func @f32(%x: f32) -> (f32, f32, f32) {
  %three = arith.constant 3 : i32
  %a = math.exp %x : f32
  %b = math.erf %x : f32
  %c = math.fpowi %x, %three : f32, i32
  return %a, %b, %c : f32, f32, f32
}

// Constants are made for scalars and vectors: ops on tensors stay.
// CHECK-LABEL: func.func @tensors(
// CHECK-NEXT:    math.exp %{{.+}} : tensor<4xf32>
// CHECK-NEXT:    math.log %{{.+}} : tensor<4xf32>
// CHECK-NEXT:    math.tanh %{{.+}} : tensor<?xf16>
// CHECK-NEXT:    arith.maxnumf %{{.+}} : tensor<4xf32>
// CHECK-NEXT:    return
func.func @tensors(%x: tensor<4xf32>, %y: tensor<?xf16>) -> (tensor<4xf32>, tensor<?xf16>) {
  %a = math.exp %x : tensor<4xf32>
  %b = math.log %a : tensor<4xf32>
  %c = math.tanh %y : tensor<?xf16>
  %d = arith.maxnumf %a, %b : tensor<4xf32>
  return %d, %c : tensor<4xf32>, tensor<?xf16>
}

// Half precision goes through single precision.
// CHECK-LABEL: func.func @half(
// CHECK:         arith.extf
// CHECK-NOT:     math.tanh
// CHECK:         arith.truncf
func.func @half(%x: bf16) -> bf16 {
  %a = math.tanh %x : bf16
  return %a : bf16
}

// CHECK-LABEL: func.func @library(
// CHECK:         math.exp %{{.+}} : f64
// CHECK:         math.sin %{{.+}} : f64
// CHECK:         math.powf
// CHECK:         math.log10
func.func @library(%x: f64, %y: f32) -> (f64, f64, f32, f32) {
  %a = math.exp %x : f64
  %b = math.sin %x : f64
  %c = math.powf %y, %y : f32
  %d = math.log10 %y : f32
  return %a, %b, %c, %d : f64, f64, f32, f32
}

// Angles are reduced by f64, and large ones by integers.
// CHECK-LABEL: func.func @angles(
// CHECK-NOT:     math.{{sin|cos|tan|cosh|atan2|atan}} %
// CHECK:         math.roundeven %{{.+}} : f64
// CHECK:         scf.if
// CHECK-NOT:     math.{{sin|cos|tan|cosh|atan2|atan}} %
// CHECK:         return
func.func @angles(%x: f32, %h: f16) -> (f32, f32, f32, f16, f32) {
  %a = math.sin %x : f32
  %b = math.tan %x : f32
  %c = math.cosh %x : f32
  %d = math.cos %h : f16
  %e = math.atan2 %x, %a : f32
  return %a, %b, %c, %d, %e : f32, f32, f32, f16, f32
}

func.func private @show(%x: f32) {
  %y = math.exp %x : f32
  vector.print %y : f32
  return
}

// Values at the ends of the range: none is cut off, and what is no number stays none.
func.func @main() {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant -200.0 : f32
  %high = arith.constant 200.0 : f32
  %minus_inf = arith.constant 0xFF800000 : f32
  %plus_inf = arith.constant 0x7F800000 : f32
  %nan = arith.constant 0x7FC00000 : f32
  // VALUES:      1
  call @show(%zero) : (f32) -> ()
  // VALUES-NEXT: 0
  call @show(%low) : (f32) -> ()
  // VALUES-NEXT: inf
  call @show(%high) : (f32) -> ()
  // VALUES-NEXT: 0
  call @show(%minus_inf) : (f32) -> ()
  // VALUES-NEXT: inf
  call @show(%plus_inf) : (f32) -> ()
  // VALUES-NEXT: nan
  call @show(%nan) : (f32) -> ()
  return
}
