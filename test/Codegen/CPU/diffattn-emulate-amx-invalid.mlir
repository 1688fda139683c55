// RUN: diffattn-opt %s --diffattn-emulate-amx --split-input-file --verify-diagnostics

func.func @half(%a: memref<16x32xf16>, %c: memref<16x16xf32>) {
  %c0 = arith.constant 0 : index
  %x = amx.tile_load %a[%c0, %c0] : memref<16x32xf16> into !amx.tile<16x32xf16>
  %zero = amx.tile_zero : !amx.tile<16x16xf32>
  // expected-error @below {{'amx.tile_mulf' op expected tiles of bf16, but got 'f16'}}
  %r = amx.tile_mulf %x, %x, %zero : !amx.tile<16x32xf16>, !amx.tile<16x32xf16>, !amx.tile<16x16xf32>
  amx.tile_store %c[%c0, %c0], %r : memref<16x16xf32>, !amx.tile<16x16xf32>
  return
}

// -----

func.func private @use(!amx.tile<16x16xf32>)
func.func @handed_on() {
  %zero = amx.tile_zero : !amx.tile<16x16xf32>
  // expected-error @below {{'func.call' op expected tiles to be handed on by scf.for, scf.if and scf.while alone}}
  func.call @use(%zero) : (!amx.tile<16x16xf32>) -> ()
  return
}

// -----

// expected-error @below {{'func.func' op expected tiles to be handed on by scf.for, scf.if and scf.while alone}}
func.func @given(%tile: !amx.tile<16x16xf32>) {
  return
}
