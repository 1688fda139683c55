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
