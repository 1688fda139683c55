// RUN: diffattn-opt %s --convert-diffattn-to-gpu --split-input-file --verify-diagnostics

!q = tensor<1x1x8x64xbf16>
func.func @tensors(%q: !q, %l: tensor<f32>, %o: !q) -> !q {
  // expected-error @below {{'diffattn.attention' op expected memrefs, but got tensors: bufferize first}}
  %0 = diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : tensor<f32>) outs(%o : !q)
    {scale = 1.0 : f32, schedules = [#diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32>]} -> !q
  return %0 : !q
}

// -----

!q = memref<1x1x64x64xf32>
func.func @placement(%q: !q, %l: memref<f32>, %o: !q) {
  // expected-error @below {{'diffattn.attention' op expected gpu_plain for f32 and for nothing else, but got gpu_forward}}
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 1.0 : f32, schedules = [#diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32>]}
  return
}

// -----

!q = memref<1x1x64x256xbf16>
func.func @shared_memory(%q: !q, %l: memref<f32>, %o: !q) {
  // expected-error @below {{'diffattn.attention' op expected a schedule with at most 166912 bytes of shared memory for sm_80, but got 589824}}
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 1.0 : f32, schedules = [#diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 128, stages = 4>]}
  return
}

// -----

!q = memref<1x1x64x64xbf16>
func.func @split(%q: !q, %l: memref<f32>, %o: !q) {
  // expected-error @below {{'diffattn.attention' op expected at most 8 queries for gpu_split_kv, but got 64}}
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 1.0 : f32, schedules = [#diffattn.gpu_split_kv<warps = 4, kv_split_size = 512>]}
  return
}

// -----

!q = memref<1x1x9x64xbf16>
func.func @large_softcap(%q: !q, %l: memref<f32>, %o: !q) {
  // expected-error @below {{'diffattn.attention' op expected a softcap of at most 1024 for 16-bit operands, but got 5000}}
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 1.0 : f32, softcap = 5.0e3 : f32, schedules = [#diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 64>]}
  return
}

// -----

!q = memref<1x1x?x64xbf16>
func.func @any_number(%q: !q, %l: memref<f32>, %o: !q) {
  // expected-error @below {{'diffattn.attention' op expected at most 8 queries for gpu_split_kv, but got any number}}
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 1.0 : f32, schedules = [#diffattn.gpu_split_kv<warps = 4, kv_split_size = 512>]}
  return
}

// -----

!q = memref<1x1x?x64xbf16>
func.func @nine(%q: !q, %l: memref<f32>, %o: !q) {
  // expected-error @below {{'diffattn.attention' op expected at most 8 queries for gpu_split_kv, but got 9}}
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 1.0 : f32, schedules = [#diffattn.when<max_queries = 9 : #diffattn.gpu_split_kv<warps = 4, kv_split_size = 512>>, #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 64>]}
  return
}

// -----

!q = memref<1x1x?x64xbf16>
func.func @some_calls(%q: !q, %l: memref<f32>, %o: !q) {
  // expected-error @below {{'diffattn.attention' op expected schedules for every call, but got [#diffattn.when<max_queries = 8}}
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 1.0 : f32, schedules = [#diffattn.when<max_queries = 8 : #diffattn.gpu_split_kv<warps = 4, kv_split_size = 512>>]}
  return
}

// -----

!q = memref<1x1x?x64xbf16>
func.func @linalg_for_some(%q: !q, %l: memref<f32>, %o: !q) {
  // expected-error @below {{'diffattn.attention' op expected a kernel for every call, but got linalg for some}}
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 1.0 : f32, schedules = [#diffattn.when<max_queries = 8 : #diffattn.gpu_split_kv<warps = 4, kv_split_size = 512>>, #diffattn.linalg]}
  return
}

// -----

!q = memref<1x1x?x64xbf16>
func.func @plain(%q: !q, %l: memref<f32>, %o: !q) {
  // expected-error @below {{'diffattn.attention' op expected gpu_plain for f32 and for nothing else, but got gpu_plain}}
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 1.0 : f32, schedules = [#diffattn.when<max_queries = 8 : #diffattn.gpu_plain<warps = 4>>, #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 64>]}
  return
}

// -----

// States of ranges are contiguous: kernels have no strides for them.
!q = memref<1x1x1x64xbf16>
!m = memref<2x1x1x1xf32, strided<[2, 1, 1, 1]>>
!a = memref<2x1x1x1x64xf32>
!k = memref<1x1x1024x64xbf16>
func.func @strides(%q: !q, %k: !k, %m: !m, %a: !a) {
  // expected-error @below {{'diffattn.online_attention' op expected states that are memrefs without strides, but got 'memref<2x1x1x1xf32, strided<[2, 1, 1, 1]>>'}}
  diffattn.online_attention ins(%q, %k, %q, %k, %k : !q, !k, !q, !k, !k)
    outs(%m, %m, %a, %m, %m, %a : !m, !m, !a, !m, !m, !a)
    {scale = 1.0 : f32, kv_split_size = 512, schedule = #diffattn.gpu_split_kv<warps = 4, kv_split_size = 512>}
  return
}

// -----

// One kernel merges and ends: what is joined between is nowhere in memory.
!m = memref<2x1x1x1xf32>
!a = memref<2x1x1x1x64xf32>
!m1 = memref<1x1x1xf32>
!a1 = memref<1x1x1x64xf32>
func.func @kept(%m: !m, %a: !a, %m1: !m1, %a1: !a1, %l: memref<f32>, %o: !a1) {
  diffattn.merge ins(%m, %m, %a : !m, !m, !a) outs(%m1, %m1, %a1 : !m1, !m1, !a1)
  // expected-error @below {{'diffattn.finalize' op expected states of two merges over ranges of keys, in buffers that nothing else uses, but got others}}
  diffattn.finalize ins(%m1, %a1, %m1, %a1 : !m1, !a1, !m1, !a1) lambda(%l : memref<f32>) outs(%o : !a1)
  return
}

// -----

!q = memref<1x1x9x64xbf16>
func.func @largest_softcap(%q: !q, %l: memref<f32>, %o: !q) {
  // expected-error @below {{'diffattn.attention' op expected a softcap of at most 1024 for 16-bit operands, but got 1e+38}}
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 1.0 : f32, softcap = 1.0e38 : f32, schedules = [#diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 64>]}
  return
}

// -----

func.func @unknown_width(%q: memref<1x1x4x?xf32>, %l: memref<f32>) {
  // expected-error @below {{'diffattn.attention' op expected widths of heads that are known when compiling for gpu_plain, but got ?}}
  diffattn.attention ins(%q, %q, %q, %q, %q : memref<1x1x4x?xf32>, memref<1x1x4x?xf32>, memref<1x1x4x?xf32>, memref<1x1x4x?xf32>, memref<1x1x4x?xf32>)
    lambda(%l : memref<f32>) outs(%q : memref<1x1x4x?xf32>) {scale = 0.125 : f32, schedules = [#diffattn.gpu_plain<warps = 4>]}
  return
}

// -----

func.func @unknown_heads(%q: memref<1x?x4x16xbf16>, %l: memref<f32>) {
  // expected-error @below {{'diffattn.attention' op expected numbers of heads that are known when compiling for gpu_split_kv, but got ?}}
  diffattn.attention ins(%q, %q, %q, %q, %q : memref<1x?x4x16xbf16>, memref<1x?x4x16xbf16>, memref<1x?x4x16xbf16>, memref<1x?x4x16xbf16>, memref<1x?x4x16xbf16>)
    lambda(%l : memref<f32>) outs(%q : memref<1x?x4x16xbf16>) {scale = 0.125 : f32, schedules = [#diffattn.gpu_split_kv<warps = 1, kv_split_size = 128>]}
  return
}

// -----

func.func @gradients_without_kernels(%q: memref<1x1x4x264xf32>, %v: memref<1x1x4x8xf32>, %lse: memref<1x1x4xf32>) {
  // expected-error @below {{expected a width of heads up to 256, but got 264}}
  diffattn.attention_backward ins(%q, %q, %v : memref<1x1x4x264xf32>, memref<1x1x4x264xf32>, memref<1x1x4x8xf32>) d_out(%v : memref<1x1x4x8xf32>)
    lse1(%lse : memref<1x1x4xf32>) x(%v : memref<1x1x4x8xf32>) outs(d_v(%v : memref<1x1x4x8xf32>))
    {scale = 1.0 : f32, schedules = [#diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 32>]}
  return
}

// -----

func.func @gradients_in_too_much_memory(%q: memref<1x1x4x128xf16>, %lse: memref<1x1x4xf32>) {
  // expected-error @below {{expected a schedule with at most 166912 bytes of shared memory for sm_80, but got 198656}}
  diffattn.attention_backward ins(%q, %q, %q : memref<1x1x4x128xf16>, memref<1x1x4x128xf16>, memref<1x1x4x128xf16>) d_out(%q : memref<1x1x4x128xf16>)
    lse1(%lse : memref<1x1x4xf32>) x(%q : memref<1x1x4x128xf16>) outs(d_v(%q : memref<1x1x4x128xf16>))
    {scale = 1.0 : f32, schedules = [#diffattn.gpu_backward<key_warps = 8, q_block_size = 64, query_warps = 4, kv_block_size = 32, stages = 4>]}
  return
}

// -----

func.func @gradients_by_warpgroups_on_sm_80(%q: memref<1x1x4x64xf16>, %lse: memref<1x1x4xf32>) {
  // expected-error @below {{expected chip sm_90a, which has wgmma, but got sm_80}}
  diffattn.attention_backward ins(%q, %q, %q : memref<1x1x4x64xf16>, memref<1x1x4x64xf16>, memref<1x1x4x64xf16>) d_out(%q : memref<1x1x4x64xf16>)
    lse1(%lse : memref<1x1x4xf32>) x(%q : memref<1x1x4x64xf16>) outs(d_v(%q : memref<1x1x4x64xf16>))
    {scale = 1.0 : f32, schedules = [#diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 32, wgmma_q_block_size = 64, wgmma_q_stages = 2>]}
  return
}
