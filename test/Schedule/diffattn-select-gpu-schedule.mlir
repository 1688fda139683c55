// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_80})" | FileCheck %s --check-prefixes=CHECK,SM80
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_86})" | FileCheck %s --check-prefixes=CHECK,SM86
// RUN: not diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_75})" 2>&1 | FileCheck %s --check-prefix=OLD
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_120})" --remark-format=emitRemark --remarks-filter=diffattn-gpu 2>&1 | FileCheck %s --check-prefix=NEW

// OLD: error: expected a chip of sm_80, sm_86, sm_87, sm_88, sm_89, sm_90, sm_90a, sm_100, sm_101, sm_103, sm_110, sm_120, sm_121, but got "sm_75"
// NEW: untuned: sm_120 gets the code and the schedules of sm_80

!q = memref<?x8x?x64xbf16>
!v = memref<?x8x?x128xbf16>

// The number of queries is dynamic: up to 8 are decoded, in blocks of keys by the number of keys.
// CHECK-LABEL: func.func @v1
// SM80: schedules = [#diffattn.when<max_queries = 8, min_keys = 16385 : #diffattn.gpu_split_kv<warps = 4, q_in_registers = true, kv_split_size = 2048>>,
// SM80-SAME: #diffattn.when<max_queries = 8, min_keys = 2049 : #diffattn.gpu_split_kv<warps = 4, q_in_registers = true, kv_split_size = 512>>,
// SM80-SAME: #diffattn.when<max_queries = 8 : #diffattn.gpu_split_kv<warps = 4, q_in_registers = true, kv_split_size = 128>>,
// SM86: schedules = [#diffattn.when<max_queries = 8, min_keys = 16385 : #diffattn.gpu_split_kv<warps = 2, q_in_registers = true, kv_split_size = 2048>>,
// SM86-SAME: #diffattn.when<max_queries = 8, min_keys = 2049 : #diffattn.gpu_split_kv<warps = 2, q_in_registers = true, kv_split_size = 512>>,
// SM86-SAME: #diffattn.when<max_queries = 8 : #diffattn.gpu_split_kv<warps = 2, q_in_registers = true, kv_split_size = 128>>,
// CHECK-SAME: #diffattn.when<unaligned = true : #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32>>,
// CHECK-SAME: #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32, q_in_registers = true>]
func.func @v1(%q: !q, %v: !v, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>) outs(%o : !v) {scale = 0.125 : f32}
  return
}

!w128 = memref<?x8x64x128xbf16>

// Blocks of few warps hide one another's waits, where shared memory holds two of them.
// CHECK-LABEL: func.func @two_keys_of_128
// SM80: #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32>]
// SM86: #diffattn.gpu_forward<placement = pair, warps = 8, kv_block_size = 32>]
func.func @two_keys_of_128(%q: !w128, %k: !w128, %l: memref<f32>, %o: !w128) {
  diffattn.attention ins(%q, %q, %q, %k, %q : !w128, !w128, !w128, !w128, !w128) lambda(%l : memref<f32>) outs(%o : !w128) {scale = 0.125 : f32}
  return
}

// A bias needs registers beside the tiles: Q stays in shared memory. Another schedule for what cannot be copied by 16 bytes.
// CHECK-LABEL: func.func @bias
// CHECK: >>, #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32>]
func.func @bias(%q: !q, %v: !v, %l: memref<f32>, %b: memref<?x1x?x?xbf16>, %o: !v) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>) bias(%b : memref<?x1x?x?xbf16>)
    outs(%o : !v) {scale = 0.125 : f32}
  return
}

// Segments need them too; beside copies of elements, only the general schedule has enough.
// CHECK-LABEL: func.func @segments
// CHECK: unaligned = true : #diffattn.gpu_forward<placement = pair, warps = 8, kv_block_size = 32>>,
// CHECK-SAME: #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32>]
func.func @segments(%q: !q, %v: !v, %l: memref<f32>, %s: memref<?x?xi64>, %o: !v) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>) q_segments(%s : memref<?x?xi64>)
    kv_segments(%s : memref<?x?xi64>) outs(%o : !v) {scale = 0.125 : f32}
  return
}

// So does a gate: blocks of fewer rows.
// CHECK-LABEL: func.func @gate
// CHECK: #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32{{(, q_in_registers = true)?}}>]
func.func @gate(%q: !q, %v: !v, %l: memref<f32>, %g: !v, %o: !v) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>) gate(%g : !v)
    outs(%o : !v) {scale = 0.125 : f32}
  return
}

!q1 = memref<?x8x1x64xbf16>
!o1 = memref<?x8x1x128xbf16>

// One query: keys are split.
// CHECK-LABEL: func.func @decode
// SM80: schedules = [#diffattn.when<min_keys = 16385 : #diffattn.gpu_split_kv<warps = 4, q_in_registers = true, kv_split_size = 2048>>,
// SM80-SAME: #diffattn.when<min_keys = 2049 : #diffattn.gpu_split_kv<warps = 4, q_in_registers = true, kv_split_size = 512>>,
// SM80-SAME: #diffattn.gpu_split_kv<warps = 4, q_in_registers = true, kv_split_size = 128>]
// SM86: schedules = [#diffattn.when<min_keys = 16385 : #diffattn.gpu_split_kv<warps = 2, q_in_registers = true, kv_split_size = 2048>>,
// SM86-SAME: #diffattn.when<min_keys = 2049 : #diffattn.gpu_split_kv<warps = 2, q_in_registers = true, kv_split_size = 512>>,
// SM86-SAME: #diffattn.gpu_split_kv<warps = 2, q_in_registers = true, kv_split_size = 128>]
func.func @decode(%q: !q1, %k: !q, %v: !v, %l: memref<f32>, %o: !o1) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !q1, !q, !q1, !q, !v) lambda(%l : memref<f32>) outs(%o : !o1) {scale = 0.125 : f32}
  return
}

!k4 = memref<?x8x4096x64xbf16>
!v4 = memref<?x8x4096x128xbf16>

// With the number of keys known, one schedule is enough.
// CHECK-LABEL: func.func @decode_4096
// SM80: schedules = [#diffattn.gpu_split_kv<warps = 4, q_in_registers = true, kv_split_size = 512>]
func.func @decode_4096(%q: !q1, %k: !k4, %v: !v4, %l: memref<f32>, %o: !o1) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !q1, !k4, !q1, !k4, !v4) lambda(%l : memref<f32>) outs(%o : !o1) {scale = 0.125 : f32}
  return
}

!f = memref<?x8x?x64xf32>

// CHECK-LABEL: func.func @plain
// CHECK: schedules = [#diffattn.gpu_plain<warps = 4>]
func.func @plain(%q: !f, %l: memref<f32>, %o: !f) {
  diffattn.attention ins(%q, %q, %q, %q, %q : !f, !f, !f, !f, !f) lambda(%l : memref<f32>) outs(%o : !f) {scale = 0.125 : f32}
  return
}

!g = memref<?x8x?x256xbf16>

// Widths without a row of their own; fewer rows where shared memory is small.
// CHECK-LABEL: func.func @general
// SM80: #diffattn.gpu_forward<placement = pair, warps = 8, kv_block_size = 16>
// SM86: #diffattn.gpu_forward<placement = pair, warps = 4, kv_block_size = 16>
func.func @general(%q: !g, %k: !g, %k2: !g, %l: memref<f32>, %o: !g) {
  diffattn.attention ins(%q, %k, %q, %k2, %q : !g, !g, !g, !g, !g) lambda(%l : memref<f32>) outs(%o : !g) {scale = 0.125 : f32}
  return
}

!w = memref<?x8x?x320xbf16>

// Too wide: left to another lowering.
// CHECK-LABEL: func.func @wide
// CHECK-NOT: schedules
func.func @wide(%q: !w, %l: memref<f32>, %o: !w) {
  diffattn.attention ins(%q, %q, %q, %q, %q : !w, !w, !w, !w, !w) lambda(%l : memref<f32>) outs(%o : !w) {scale = 0.125 : f32}
  return
}

!u = memref<?x8x?x?xf32>
!uk = memref<?x8x?x64xbf16>

// Kernels are emitted for widths, so those must be known.
// CHECK-LABEL: func.func @unknown_width
// CHECK-NOT: schedules
// CHECK-LABEL: func.func @unknown_width_of_values
// CHECK-NOT: schedules
func.func @unknown_width(%q: !u, %v: memref<?x8x?x64xf32>, %l: memref<f32>) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !u, !u, !u, !u, memref<?x8x?x64xf32>) lambda(%l : memref<f32>) outs(%v : memref<?x8x?x64xf32>)
    {scale = 0.125 : f32}
  return
}
func.func @unknown_width_of_values(%q: !uk, %v: memref<?x8x?x?xbf16>, %l: memref<f32>) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !uk, !uk, !uk, !uk, memref<?x8x?x?xbf16>) lambda(%l : memref<f32>) outs(%v : memref<?x8x?x?xbf16>)
    {scale = 0.125 : f32}
  return
}

!h1 = memref<?x?x1x64xbf16>
!hk = memref<?x?x?x64xbf16>
!one = memref<?x1x?x64xbf16>

// States of ranges of keys are allocated for known numbers of heads: without, keys are not split.
// CHECK-LABEL: func.func @unknown_heads
// CHECK-NOT: gpu_split_kv
// CHECK: #diffattn.gpu_forward<
// CHECK-LABEL: func.func @unknown_query_heads
// CHECK-NOT: gpu_split_kv
// CHECK: #diffattn.gpu_forward<
// NEW: Reason="expected numbers of heads that are known when compiling, but got ?", Summary="keys are not split between blocks"
func.func @unknown_heads(%q: !h1, %k: !hk, %l: memref<f32>) {
  diffattn.attention ins(%q, %k, %q, %k, %k : !h1, !hk, !h1, !hk, !hk) lambda(%l : memref<f32>) outs(%q : !h1) {scale = 0.125 : f32}
  return
}
func.func @unknown_query_heads(%q: !hk, %k: !one, %l: memref<f32>) {
  diffattn.attention ins(%q, %k, %q, %k, %k : !hk, !one, !hk, !one, !one) lambda(%l : memref<f32>) outs(%q : !hk) {scale = 0.125 : f32}
  return
}

!many = memref<1x1099511627776x1x64xbf16>
!few = memref<1x1x1x64xbf16>

// A group of heads of any size is cut for blocks at once.
// CHECK-LABEL: func.func @many_heads
// CHECK: #diffattn.gpu_split_kv<
func.func @many_heads(%q: !many, %k: !few, %l: memref<f32>) {
  diffattn.attention ins(%q, %k, %q, %k, %k : !many, !few, !many, !few, !few) lambda(%l : memref<f32>) outs(%q : !many) {scale = 0.125 : f32}
  return
}

// What was written by hand stays, and what it does not take is chosen.
// CHECK-LABEL: func.func @by_hand
// CHECK: schedules = [#diffattn.linalg]
// CHECK-LABEL: func.func @rest
// CHECK: schedules = [#diffattn.when<min_keys = 1000 : #diffattn.gpu_plain<warps = 8>>, #diffattn.gpu_plain<warps = 4>]
func.func @by_hand(%q: !f, %l: memref<f32>, %o: !f) {
  diffattn.attention ins(%q, %q, %q, %q, %q : !f, !f, !f, !f, !f) lambda(%l : memref<f32>) outs(%o : !f)
    {scale = 0.125 : f32, schedules = [#diffattn.linalg]}
  return
}
func.func @rest(%q: !f, %l: memref<f32>, %o: !f) {
  diffattn.attention ins(%q, %q, %q, %q, %q : !f, !f, !f, !f, !f) lambda(%l : memref<f32>) outs(%o : !f)
    {scale = 0.125 : f32, schedules = [#diffattn.when<min_keys = 1000 : #diffattn.gpu_plain<warps = 8>>]}
  return
}

// Kernels of few queries do not write what comes before a norm.
// CHECK-LABEL: func.func @saved
// CHECK: schedules = [#diffattn.gpu_plain<warps = 4>]
func.func @saved(%q: !f, %l: memref<f32>, %o: !f, %x: !f) {
  diffattn.attention ins(%q, %q, %q, %q, %q : !f, !f, !f, !f, !f) lambda(%l : memref<f32>) outs(%o : !f) x(%x : !f)
    {scale = 0.125 : f32, norm = #diffattn.norm<rms>}
  return
}
// CHECK-LABEL: func.func @saved_of_one_map
// CHECK: schedules = [#diffattn.gpu_forward<
// NEW: Reason="expected no destination of x or o2, but got one", Summary="keys are not split between blocks"
func.func @saved_of_one_map(%q: memref<?x8x4x64xbf16>, %o: memref<?x8x4x64xbf16>) {
  diffattn.attention ins(%q, %q, %q : memref<?x8x4x64xbf16>, memref<?x8x4x64xbf16>, memref<?x8x4x64xbf16>)
    outs(%o : memref<?x8x4x64xbf16>) x(%o : memref<?x8x4x64xbf16>) {scale = 0.125 : f32, norm = #diffattn.norm<rms>}
  return
}

// With what is added to sums, and where their logarithms go, kernels of two maps are those that have registers for a gate.
// CHECK-LABEL: func.func @wide_sums
// CHECK: #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32, q_in_registers = true>]
// CHECK: lse1({{.*}} #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32>]
func.func @wide_sums(%q: memref<?x8x?x64xbf16>, %v: memref<?x8x?x128xbf16>, %l: memref<f32>, %m: memref<?x8x?xf32>) {
  diffattn.attention ins(%q, %q, %q, %q, %v : memref<?x8x?x64xbf16>, memref<?x8x?x64xbf16>, memref<?x8x?x64xbf16>, memref<?x8x?x64xbf16>, memref<?x8x?x128xbf16>)
    lambda(%l : memref<f32>) outs(%v : memref<?x8x?x128xbf16>) {scale = 0.125 : f32}
  diffattn.attention ins(%q, %q, %q, %q, %v : memref<?x8x?x64xbf16>, memref<?x8x?x64xbf16>, memref<?x8x?x64xbf16>, memref<?x8x?x64xbf16>, memref<?x8x?x128xbf16>)
    lambda(%l : memref<f32>) outs(%v : memref<?x8x?x128xbf16>) lse1(%m : memref<?x8x?xf32>) {scale = 0.125 : f32}
  return
}
// CHECK-LABEL: func.func @sums
// CHECK: sink2(%{{.+}} : memref<8xf32>) {{.*}} schedules = [#diffattn.gpu_plain<warps = 4>]
// CHECK: lse1(%{{.+}} : memref<?x8x?xf32>) {{.*}} schedules = [#diffattn.gpu_plain<warps = 4>]
func.func @sums(%q: !f, %l: memref<f32>, %s: memref<8xf32>, %m: memref<?x8x?xf32>, %o: !f) {
  diffattn.attention ins(%q, %q, %q, %q, %q : !f, !f, !f, !f, !f) lambda(%l : memref<f32>) sink2(%s : memref<8xf32>)
    outs(%o : !f) {scale = 0.125 : f32}
  diffattn.attention ins(%q, %q, %q, %q, %q : !f, !f, !f, !f, !f) lambda(%l : memref<f32>)
    outs(%o : !f) lse1(%m : memref<?x8x?xf32>) {scale = 0.125 : f32}
  return
}

// One map has rows of its own: two tiles of rows a warp, or one where more registers are needed.
// CHECK-LABEL: func.func @one_map(
// CHECK: schedules = [#diffattn.when<max_queries = 8, min_keys = 16385 : #diffattn.gpu_split_kv<warps = 4, q_in_registers = true, kv_split_size = 2048>>,
// CHECK-SAME: #diffattn.gpu_forward<placement = both, warps = 4, row_tiles = 2, kv_block_size = 64, q_in_registers = true>]
!s = memref<?x8x?x64xbf16>
func.func @one_map(%q: !s, %o: !s) {
  diffattn.attention ins(%q, %q, %q : !s, !s, !s) outs(%o : !s) {scale = 0.125 : f32}
  return
}

// CHECK-LABEL: func.func @one_map_f32(
// CHECK: schedules = [#diffattn.gpu_plain<warps = 4>]
func.func @one_map_f32(%q: !f, %o: !f) {
  diffattn.attention ins(%q, %q, %q : !f, !f, !f) outs(%o : !f) {scale = 0.125 : f32}
  return
}
