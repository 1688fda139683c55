// RUN: diffattn-opt %s --convert-diffattn-to-gpu --split-input-file --verify-diagnostics

!q = tensor<1x1x8x64xbf16>
func.func @tensors(%q: !q, %l: tensor<f32>, %o: !q) -> !q {
  // expected-error @below {{'diffattn.attention' op expected memrefs, but got tensors: bufferize first}}
  %0 = diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : tensor<f32>) outs(%o : !q)
    {scale = 1.0 : f32, diffattn.gpu_schedule = #diffattn.gpu_schedule<placement = both, warps = 4, keys = 32>} -> !q
  return %0 : !q
}

// -----

!q = memref<1x1x64x64xf32>
func.func @placement(%q: !q, %l: memref<f32>, %o: !q) {
  // expected-error @below {{'diffattn.attention' op expected placement plain for f32 and for nothing else, but got both}}
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 1.0 : f32, diffattn.gpu_schedule = #diffattn.gpu_schedule<placement = both, warps = 4, keys = 32>}
  return
}

// -----

!q = memref<1x1x64x256xbf16>
func.func @shared_memory(%q: !q, %l: memref<f32>, %o: !q) {
  // expected-error @below {{'diffattn.attention' op expected a schedule with at most 166912 bytes of shared memory for sm_80, but got 589824}}
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 1.0 : f32, diffattn.gpu_schedule = #diffattn.gpu_schedule<placement = both, warps = 4, keys = 128, stages = 4>}
  return
}

// -----

!q = memref<1x1x64x64xbf16>
func.func @split(%q: !q, %l: memref<f32>, %o: !q) {
  // expected-error @below {{'diffattn.attention' op expected at most 8 rows of queries with split_keys}}
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 1.0 : f32, diffattn.gpu_schedule = #diffattn.gpu_schedule<placement = both, warps = 4, keys = 64, split_keys = 512>}
  return
}

// -----

!q = memref<1x1x?x64xbf16>
func.func @decode(%q: !q, %l: memref<f32>, %o: !q) {
  // expected-error @below {{'diffattn.attention' op expected diffattn.gpu_decode_schedule to have split_keys}}
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 1.0 : f32, diffattn.gpu_schedule = #diffattn.gpu_schedule<placement = both, warps = 4, keys = 64>,
     diffattn.gpu_decode_schedule = #diffattn.gpu_schedule<placement = both, warps = 4, keys = 64>}
  return
}

// -----

!q = memref<1x1x1x64xbf16>
func.func @element(%q: !q, %l: memref<f32>, %o: !q) {
  // expected-error @below {{'diffattn.attention' op expected the split_keys of diffattn.gpu_schedule in diffattn.gpu_element_schedule, but got 0}}
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 1.0 : f32, diffattn.gpu_schedule = #diffattn.gpu_schedule<placement = both, warps = 4, keys = 64, split_keys = 512>,
     diffattn.gpu_element_schedule = #diffattn.gpu_schedule<placement = both, warps = 4, keys = 64>}
  return
}

// -----

!q = memref<1x1x9x64xbf16>
func.func @not_a_schedule(%q: !q, %l: memref<f32>, %o: !q) {
  // expected-error @below {{'diffattn.attention' op expected diffattn.gpu_element_schedule to be a #diffattn.gpu_schedule}}
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 1.0 : f32, diffattn.gpu_schedule = #diffattn.gpu_schedule<placement = both, warps = 4, keys = 64>,
     diffattn.gpu_element_schedule = 1 : i64}
  return
}

// -----

// expected-error @below {{expected an even number of warps for placement pair, but got 3}}
#gpu_schedule_c5 = #diffattn.gpu_schedule<placement = pair, warps = 3, keys = 32>

// -----

// expected-error @below {{expected keys to be a multiple of 16 up to 128, but got 24}}
#gpu_schedule_c2 = #diffattn.gpu_schedule<placement = both, warps = 4, keys = 24>

// -----

// expected-error @below {{expected split_keys to be a multiple of keys, but got 100}}
#gpu_schedule_c7 = #diffattn.gpu_schedule<placement = both, warps = 4, keys = 64, split_keys = 100>

// -----

// expected-error @below {{expected split_keys of at most 1048576, but got 1099511627776}}
#gpu_schedule_c9 = #diffattn.gpu_schedule<placement = both, warps = 4, keys = 64, split_keys = 1099511627776>

// -----

!q = memref<1x1x9x64xbf16>
func.func @large_softcap(%q: !q, %l: memref<f32>, %o: !q) {
  // expected-error @below {{'diffattn.attention' op expected a softcap of at most 1024 for 16-bit operands, but got 5000}}
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 1.0 : f32, softcap = 5.0e3 : f32, diffattn.gpu_schedule = #diffattn.gpu_schedule<placement = both, warps = 4, keys = 64>}
  return
}

// -----

// expected-error @below {{expected warps to be a power of two, but got 3}}
#gpu_schedule_c10 = #diffattn.gpu_schedule<placement = both, warps = 3, keys = 32>

// -----

// expected-error @below {{expected keys to be a power of two, but got 48}}
#gpu_schedule_c10 = #diffattn.gpu_schedule<placement = both, warps = 4, keys = 48>
