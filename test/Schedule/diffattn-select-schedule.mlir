// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx512})" | FileCheck %s --check-prefixes=CHECK,AVX512
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx512bf16})" | FileCheck %s --check-prefixes=CHECK,BF16
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=amx})" | FileCheck %s --check-prefixes=CHECK,AMX
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx2})" | FileCheck %s --check-prefixes=CHECK,AVX2
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=generic})" | FileCheck %s --check-prefixes=CHECK,GENERIC
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx2 linalg=true})" --remark-format=emitRemark --remarks-filter=diffattn-schedule 2>&1 | FileCheck %s --check-prefix=LINALG
// RUN: not diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx1024})" 2>&1 | FileCheck %s --check-prefix=UNKNOWN

// UNKNOWN: error: expected isa to be one of native, amx, avx512bf16, avx512, avx2, generic, amx-emulated, but got avx1024

!q = tensor<?x2x?x64xf32>
!v = tensor<?x2x?x128xf32>
!h = tensor<1x2x512x64xbf16>

// CHECK-LABEL: func.func @f32(
// AVX512:      schedules = [#diffattn.when<max_queries = 8, min_keys = 9 : #diffattn.cpu_split_kv<isa = "avx512", lanes = 16, kv_split_size = 512, qk_rows = 4, q_vectors = 16, pv_rows = 2, pv_keys = 8, o_vectors = 16, o_row_vectors = 8, prefetch_bytes = 4096>>,
// AVX512-SAME: #diffattn.cpu_prefill<isa = "avx512", lanes = 16, q_block_size = 48, qk_tile = [8, 3, 4], pv_tile = [6, 4, 2], kv_block_size = 256, two_pass_keys = 16384>]
// BF16:        isa = "avx512bf16", lanes = 16
// BF16-NOT:    bf16_pairs
// AMX:         isa = "amx", lanes = 16
// AMX:         #diffattn.cpu_prefill<isa = "amx", lanes = 16, q_block_size = 48, qk_tile = [8, 3, 4], pv_tile = [6, 4, 2], kv_block_size = 64, two_pass_keys = 16384>]
// AVX2:        #diffattn.cpu_split_kv<isa = "avx2", lanes = 8, kv_split_size = 512, qk_rows = 2, q_vectors = 8, pv_rows = 1, pv_keys = 8, o_vectors = 16, o_row_vectors = 16>
// AVX2-SAME:   #diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 48
// AVX2-SAME:   qk_tile = [4, 3, 4], pv_tile = [6, 2, 4]
// GENERIC:     isa = "generic", lanes = 4
// LINALG:      remark: [Missed] SelectSchedule {{.*}}the linalg path was asked for
// LINALG:      schedules = [#diffattn.linalg]
func.func @f32(%q: !q, %k: !q, %v: !v, %l: tensor<f32>, %o: !v) -> !v {
  %0 = diffattn.attention ins(%q, %k, %q, %k, %v : !q, !q, !q, !q, !v) lambda(%l : tensor<f32>)
      outs(%o : !v) {scale = 0.125 : f32} -> !v
  return %0 : !v
}

// CHECK-LABEL: func.func @bf16(
// BF16:        schedules = [#diffattn.cpu_prefill<{{.*}}product = bf16_pairs>]
// AMX:         schedules = [#diffattn.cpu_prefill<isa = "amx", lanes = 16, q_block_size = 64, qk_tile = [16, 4, 1], pv_tile = [64, 1, 1], kv_block_size = 128, two_pass_keys = 16384, product = bf16_tiles>]
// AVX512-NOT:  bf16_pairs
// AVX2-NOT:    bf16_pairs
func.func @bf16(%q: !h, %l: tensor<f32>, %o: !h) -> !h {
  %0 = diffattn.attention ins(%q, %q, %q, %q, %q : !h, !h, !h, !h, !h) lambda(%l : tensor<f32>)
      outs(%o : !h) {scale = 0.125 : f32} -> !h
  return %0 : !h
}

// A list that is written by hand stays.
// CHECK-LABEL: func.func @by_hand(
// CHECK:       schedules = [#diffattn.linalg]
func.func @by_hand(%q: !h, %l: tensor<f32>, %o: !h) -> !h {
  %0 = diffattn.attention ins(%q, %q, %q, %q, %q : !h, !h, !h, !h, !h) lambda(%l : tensor<f32>)
      outs(%o : !h) {scale = 0.125 : f32, schedules = [#diffattn.linalg]} -> !h
  return %0 : !h
}

// One query, and values wider than the registers.
// CHECK-LABEL: func.func @decode(
// AVX2:        schedules = [#diffattn.cpu_split_kv<isa = "avx2", {{.*}}pv_keys = 8, o_vectors = 16, o_row_vectors = 16>]
!d = tensor<1x2x1x128xf32>
!c = tensor<1x2x?x128xf32>
func.func @decode(%q: !d, %k: !c, %l: tensor<f32>, %o: !d) -> !d {
  %0 = diffattn.attention ins(%q, %k, %q, %k, %k : !d, !c, !d, !c, !c) lambda(%l : tensor<f32>) outs(%o : !d) {scale = 0.125 : f32} -> !d
  return %0 : !d
}

// What a list by hand does not take is chosen.
// CHECK-LABEL: func.func @rest(
// CHECK:       schedules = [#diffattn.when<max_queries = 2 : #diffattn.linalg>, #diffattn.gpu_plain<warps = 4>, #diffattn.when<max_queries = 8, min_keys = 9 : #diffattn.cpu_split_kv<{{.*}}>>, #diffattn.cpu_prefill<{{.*}}>]
func.func @rest(%q: !q, %l: tensor<f32>, %o: !q) -> !q {
  %0 = diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : tensor<f32>) outs(%o : !q)
      {scale = 0.125 : f32, schedules = [#diffattn.when<max_queries = 2 : #diffattn.linalg>, #diffattn.gpu_plain<warps = 4>]} -> !q
  return %0 : !q
}

// The code of a kernel grows with the head: a very large one goes by linalg.
// CHECK-LABEL: func.func @large_head(
// CHECK:       schedules = [#diffattn.linalg]
func.func @large_head(%q: tensor<1x2x8x1025xf32>, %l: tensor<f32>, %o: tensor<1x2x8x1025xf32>) -> tensor<1x2x8x1025xf32> {
  %0 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x1025xf32>, tensor<1x2x8x1025xf32>, tensor<1x2x8x1025xf32>,
      tensor<1x2x8x1025xf32>, tensor<1x2x8x1025xf32>) lambda(%l : tensor<f32>)
      outs(%o : tensor<1x2x8x1025xf32>) {scale = 0.125 : f32} -> tensor<1x2x8x1025xf32>
  return %0 : tensor<1x2x8x1025xf32>
}

// Scores of few queries in bf16 are made by tiles too; those with a scale that turns their order around are not, and f16 has
// none.
// CHECK-LABEL: func.func @few(
// AMX:         schedules = [#diffattn.cpu_split_kv<isa = "amx", lanes = 16, kv_split_size = 512, qk_rows = 4, q_vectors = 16, pv_rows = 2, pv_keys = 16, o_vectors = 16, o_row_vectors = 8, product = bf16_tiles, prefetch_bytes = 4096>]
// AMX:         schedules = [#diffattn.cpu_split_kv<isa = "amx", {{.*}}o_row_vectors = 8, prefetch_bytes = 4096>]
// AMX:         schedules = [#diffattn.cpu_split_kv<isa = "amx", {{.*}}o_row_vectors = 8, prefetch_bytes = 4096>]
!few = tensor<1x2x8x64xbf16>
!few16 = tensor<1x2x8x64xf16>
!h16 = tensor<1x2x512x64xf16>
func.func @few(%q: !few, %k: !h, %q16: !few16, %k16: !h16, %l: tensor<f32>) -> (!few, !few, !few16) {
  %0 = diffattn.attention ins(%q, %k, %q, %k, %k : !few, !h, !few, !h, !h) lambda(%l : tensor<f32>)
      outs(%q : !few) {scale = 0.125 : f32} -> !few
  %1 = diffattn.attention ins(%q, %k, %q, %k, %k : !few, !h, !few, !h, !h) lambda(%l : tensor<f32>)
      outs(%q : !few) {scale = -0.125 : f32} -> !few
  %2 = diffattn.attention ins(%q16, %k16, %q16, %k16, %k16 : !few16, !h16, !few16, !h16, !h16) lambda(%l : tensor<f32>)
      outs(%q16 : !few16) {scale = 0.125 : f32} -> !few16
  return %0, %1, %2 : !few, !few, !few16
}

// One map has the tiles of two. Its blocks of keys are merged as they come, because no difference is to be multiplied once.
// CHECK-LABEL: func.func @one_map(
// AVX512:      schedules = [#diffattn.when<max_queries = 8, min_keys = 9 : #diffattn.cpu_split_kv<isa = "avx512", {{.*}}>>,
// AVX512-SAME: #diffattn.cpu_prefill<isa = "avx512", lanes = 16, q_block_size = 48, qk_tile = [8, 3, 4], pv_tile = [6, 4, 2], kv_block_size = 256, two_pass_keys = 0>]
// LINALG:      schedules = [#diffattn.linalg]
func.func @one_map(%q: !q, %k: !q, %v: !v, %o: !v) -> !v {
  %0 = diffattn.attention ins(%q, %k, %v : !q, !q, !v) outs(%o : !v) {scale = 0.125 : f32} -> !v
  return %0 : !v
}
