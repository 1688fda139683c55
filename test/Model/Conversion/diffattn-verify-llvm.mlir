// RUN: diffattn-opt %s --split-input-file --verify-diagnostics --pass-pipeline="builtin.module(diffattn-verify-llvm)"
// RUN: diffattn-opt %s --split-input-file --verify-diagnostics --diffattn-cpu-pipeline

// What has no lowering is named where it stands, not the casts around it.
llvm.func @cast(%x: f32) -> f32 {
  %i = builtin.unrealized_conversion_cast %x : f32 to complex<f32>
  // expected-error @below {{'complex.abs' op expected an op that lowers to the LLVM dialect, but got one that does not}}
  %y = complex.abs %i : complex<f32>
  llvm.return %y : f32
}

// -----

llvm.func @cast_alone(%x: f32) -> i32 {
  // expected-error @below {{'builtin.unrealized_conversion_cast' op expected an op that lowers to the LLVM dialect}}
  %i = builtin.unrealized_conversion_cast %x : f32 to i32
  llvm.return %i : i32
}

// -----

llvm.func @lowered(%x: f32) -> f32 {
  llvm.return %x : f32
}
module @nested {
  func.func private @other()
}
