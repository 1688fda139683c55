// RUN: diffattn-opt %s --split-input-file --verify-diagnostics

// cpu_prefill_c1
// expected-error @below {{expected lanes to be 4, 8 or 16, but got 5}}
func.func private @cpu_prefill_c1_lanes() attributes {s = #diffattn.cpu_prefill<isa = "avx2", lanes = 5, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 128, two_pass_keys = 16384>}

// -----
// cpu_prefill_c2
// expected-error @below {{expected 16 lanes with product bf16_pairs, but got 8}}
func.func private @cpu_prefill_c2_pairs() attributes {s = #diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 128, two_pass_keys = 16384, product = bf16_pairs>}

// -----
// cpu_prefill_c3
// expected-error @below {{expected q_block_size of at most 1024, but got 1072}}
func.func private @cpu_prefill_c3_many_rows() attributes {s = #diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 1072, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 128, two_pass_keys = 16384>}

// -----
// cpu_prefill_c3
// expected-error @below {{expected kv_block_size of at most 65536, but got 65552}}
func.func private @cpu_prefill_c3_long_kv_block() attributes {s = #diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 65552, two_pass_keys = 16384>}

// -----
// cpu_prefill_c4
// expected-error @below {{expected q_block_size to be a positive multiple of lanes, but got 30}}
func.func private @cpu_prefill_c4_rows() attributes {s = #diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 30, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 128, two_pass_keys = 16384>}

// -----
// cpu_prefill_c4
// expected-error @below {{expected q_block_size to be a positive multiple of lanes, but got 0}}
func.func private @cpu_prefill_c4_no_rows() attributes {s = #diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 0, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 128, two_pass_keys = 16384>}

// -----
// cpu_prefill_c5
// expected-error @below {{expected pv_tile to hold 3 numbers, but got 2}}
func.func private @cpu_prefill_c5_tile() attributes {s = #diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2], kv_block_size = 128, two_pass_keys = 16384>}

// -----
// cpu_prefill_c6
// expected-error @below {{expected the numbers of qk_tile to be between 1 and 64, but got 0}}
func.func private @cpu_prefill_c6_tile_size() attributes {s = #diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 0], pv_tile = [6, 2, 4], kv_block_size = 128, two_pass_keys = 16384>}

// -----
// cpu_prefill_c7
// expected-error @below {{expected a product of the numbers of qk_tile of at most 512, but got 768}}
func.func private @cpu_prefill_c7_long_code() attributes {s = #diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 64], pv_tile = [6, 2, 4], kv_block_size = 128, two_pass_keys = 16384>}

// -----
// cpu_prefill_c8
// expected-error @below {{expected the vectors of pv_tile to be a power of two, but got 3}}
func.func private @cpu_prefill_c8_product_vectors() attributes {s = #diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 3, 4], kv_block_size = 128, two_pass_keys = 16384>}

// -----
// cpu_prefill_c9
// expected-error @below {{expected q_block_size to be a multiple of the qk_tile's 40, but got 48}}
func.func private @cpu_prefill_c9_score_rows() attributes {s = #diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 5, 4], pv_tile = [6, 2, 4], kv_block_size = 128, two_pass_keys = 16384>}

// -----
// cpu_prefill_c10
// expected-error @below {{expected q_block_size to be a multiple of the pv_tile's 5, but got 48}}
func.func private @cpu_prefill_c10_product_rows() attributes {s = #diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [5, 2, 4], kv_block_size = 128, two_pass_keys = 16384>}

// -----
// cpu_prefill_c11
// expected-error @below {{expected kv_block_size to be a multiple of lanes and of the qk_tile's 4, but got 100}}
func.func private @cpu_prefill_c11_kv_block_size() attributes {s = #diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 100, two_pass_keys = 16384>}

// -----
// cpu_prefill_c12
// expected-error @below {{expected two_pass_keys not to be negative, but got -2}}
func.func private @cpu_prefill_c12_two_pass_keys() attributes {s = #diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 128, two_pass_keys = -2>}

// -----
// cpu_prefill_c13
// expected-error @below {{expected 16 lanes with product bf16_tiles, but got 8}}
func.func private @cpu_prefill_c13_tile_lanes() attributes {s = #diffattn.cpu_prefill<isa = "amx", lanes = 8, q_block_size = 64, qk_tile = [16, 4, 1], pv_tile = [64, 1, 1], kv_block_size = 256, two_pass_keys = 16384, product = bf16_tiles>}

// -----
// cpu_prefill_c14
// expected-error @below {{expected the qk_tile of product bf16_tiles to be [16, up to 6, 1], but got [8, 4, 1]}}
func.func private @cpu_prefill_c14_score_tiles() attributes {s = #diffattn.cpu_prefill<isa = "amx", lanes = 16, q_block_size = 64, qk_tile = [8, 4, 1], pv_tile = [64, 1, 1], kv_block_size = 256, two_pass_keys = 16384, product = bf16_tiles>}

// -----
// cpu_prefill_c15
// expected-error @below {{expected the pv_tile of product bf16_tiles to be [a multiple of 16 up to 96, 1, 1], but got [64, 2, 1]}}
func.func private @cpu_prefill_c15_product_tiles() attributes {s = #diffattn.cpu_prefill<isa = "amx", lanes = 16, q_block_size = 64, qk_tile = [16, 4, 1], pv_tile = [64, 2, 1], kv_block_size = 256, two_pass_keys = 16384, product = bf16_tiles>}

// -----
// cpu_prefill_c16
// expected-error @below {{expected kv_block_size to be a multiple of 32 with product bf16_tiles, but got 48}}
func.func private @cpu_prefill_c16_tile_keys() attributes {s = #diffattn.cpu_prefill<isa = "amx", lanes = 16, q_block_size = 64, qk_tile = [16, 4, 1], pv_tile = [64, 1, 1], kv_block_size = 48, two_pass_keys = 16384, product = bf16_tiles>}

// -----
// cpu_backward_c1
// expected-error @below {{expected kv_block_size to be a multiple of lanes and of the qk_tile's 4, but got 100}}
func.func private @cpu_backward_c1_tiles() attributes {s = #diffattn.cpu_backward<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 100, two_pass_keys = 16384, q_slice_size = 960>}

// -----
// cpu_backward_c2
// expected-error @below {{expected q_slice_size to be a positive multiple of q_block_size, but got 50}}
func.func private @cpu_backward_c2_slice() attributes {s = #diffattn.cpu_backward<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 96, two_pass_keys = 16384, q_slice_size = 50>}

// -----
// cpu_backward_c2
// expected-error @below {{expected q_slice_size to be a positive multiple of q_block_size, but got 0}}
func.func private @cpu_backward_c2_no_slice() attributes {s = #diffattn.cpu_backward<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 96, two_pass_keys = 16384, q_slice_size = 0>}

// -----
// cpu_backward_c3
// expected-error @below {{expected q_block_size to be a multiple of 32 with product bf16_tiles, but got 48}}
func.func private @cpu_backward_c3_tile_queries() attributes {s = #diffattn.cpu_backward<isa = "amx", lanes = 16, q_block_size = 48, qk_tile = [16, 3, 1], pv_tile = [48, 1, 1], kv_block_size = 96, two_pass_keys = 16384, q_slice_size = 960, product = bf16_tiles>}

// -----
// cpu_backward_c1
// expected-error @below {{expected the pv_tile of product bf16_tiles to be [a multiple of 16 up to 96, 1, 1], but got [8, 1, 1]}}
func.func private @cpu_backward_c1_product_tiles() attributes {s = #diffattn.cpu_backward<isa = "amx", lanes = 16, q_block_size = 64, qk_tile = [16, 4, 1], pv_tile = [8, 1, 1], kv_block_size = 128, two_pass_keys = 16384, q_slice_size = 1024, product = bf16_tiles>}

// -----
// cpu_backward_c1
// expected-error @below {{expected 16 lanes with product bf16_pairs, but got 8}}
func.func private @cpu_backward_c1_pairs() attributes {s = #diffattn.cpu_backward<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 96, two_pass_keys = 16384, q_slice_size = 960, product = bf16_pairs>}

// -----
// cpu_split_kv_c1
// expected-error @below {{expected lanes to be 4, 8 or 16, but got 32}}
func.func private @cpu_split_kv_c1_split_lanes() attributes {s = #diffattn.cpu_split_kv<isa = "avx2", lanes = 32, kv_split_size = 512, qk_rows = 2, q_vectors = 8, pv_rows = 1, pv_keys = 8, o_vectors = 8, o_row_vectors = 8>}

// -----
// cpu_split_kv_c2
// expected-error @below {{expected 16 lanes with product bf16_pairs, but got 8}}
func.func private @cpu_split_kv_c2_split_pairs() attributes {s = #diffattn.cpu_split_kv<isa = "avx2", lanes = 8, kv_split_size = 512, qk_rows = 2, q_vectors = 8, pv_rows = 1, pv_keys = 8, o_vectors = 8, o_row_vectors = 8, product = bf16_pairs>}

// -----
// cpu_split_kv_c10
// expected-error @below {{expected prefetch_bytes to be between 0 and 65536, but got -1}}
func.func private @cpu_split_kv_c10_prefetch() attributes {s = #diffattn.cpu_split_kv<isa = "avx2", lanes = 8, kv_split_size = 512, qk_rows = 2, q_vectors = 8, pv_rows = 1, pv_keys = 8, o_vectors = 8, o_row_vectors = 8, prefetch_bytes = -1>}

// -----
// cpu_split_kv_c11
// expected-error @below {{expected prefetch_rows to be between 0 and 4096, but got 4097}}
func.func private @cpu_split_kv_c11_prefetch() attributes {s = #diffattn.cpu_split_kv<isa = "avx2", lanes = 8, kv_split_size = 512, qk_rows = 2, q_vectors = 8, pv_rows = 1, pv_keys = 8, o_vectors = 8, o_row_vectors = 8, prefetch_rows = 4097>}

// -----
// cpu_split_kv_c9
// expected-error @below {{expected 16 lanes with product bf16_tiles, but got 8}}
func.func private @cpu_split_kv_c9_tile_lanes() attributes {s = #diffattn.cpu_split_kv<isa = "amx", lanes = 8, kv_split_size = 512, qk_rows = 4, q_vectors = 16, pv_rows = 2, pv_keys = 16, o_vectors = 16, o_row_vectors = 8, product = bf16_tiles>}

// -----
// cpu_split_kv_c3
// expected-error @below {{expected kv_split_size to be a positive multiple of lanes, but got 10}}
func.func private @cpu_split_kv_c3_split_size() attributes {s = #diffattn.cpu_split_kv<isa = "avx2", lanes = 8, kv_split_size = 10, qk_rows = 2, q_vectors = 8, pv_rows = 1, pv_keys = 8, o_vectors = 8, o_row_vectors = 8>}

// -----
// cpu_split_kv_c3
// expected-error @below {{expected kv_split_size to be a positive multiple of lanes, but got 0}}
func.func private @cpu_split_kv_c3_no_split_size() attributes {s = #diffattn.cpu_split_kv<isa = "avx2", lanes = 8, kv_split_size = 0, qk_rows = 2, q_vectors = 8, pv_rows = 1, pv_keys = 8, o_vectors = 8, o_row_vectors = 8>}

// -----
// cpu_split_kv_c4
// expected-error @below {{expected kv_split_size of at most 65536, but got 4611686018427387904}}
func.func private @cpu_split_kv_c4_large_split_size() attributes {s = #diffattn.cpu_split_kv<isa = "avx2", lanes = 8, kv_split_size = 4611686018427387904, qk_rows = 2, q_vectors = 8, pv_rows = 1, pv_keys = 8, o_vectors = 8, o_row_vectors = 8>}

// -----
// cpu_split_kv_c5
// expected-error @below {{expected qk_rows to be a power of two up to 8, but got 16}}
func.func private @cpu_split_kv_c5_qk_rows() attributes {s = #diffattn.cpu_split_kv<isa = "avx2", lanes = 8, kv_split_size = 512, qk_rows = 16, q_vectors = 8, pv_rows = 1, pv_keys = 8, o_vectors = 8, o_row_vectors = 8>}

// -----
// cpu_split_kv_c6
// expected-error @below {{expected q_vectors to be between 0 and 64, but got 65}}
func.func private @cpu_split_kv_c6_q_vectors() attributes {s = #diffattn.cpu_split_kv<isa = "avx2", lanes = 8, kv_split_size = 512, qk_rows = 2, q_vectors = 65, pv_rows = 1, pv_keys = 8, o_vectors = 8, o_row_vectors = 8>}

// -----
// cpu_split_kv_c7
// expected-error @below {{expected o_vectors to be a power of two up to 64, but got 0}}
func.func private @cpu_split_kv_c7_o_vectors() attributes {s = #diffattn.cpu_split_kv<isa = "avx2", lanes = 8, kv_split_size = 512, qk_rows = 2, q_vectors = 8, pv_rows = 1, pv_keys = 8, o_vectors = 0, o_row_vectors = 8>}

// -----
// cpu_split_kv_c7
// expected-error @below {{expected o_row_vectors to be a power of two up to 64, but got 6}}
func.func private @cpu_split_kv_c7_o_row_vectors() attributes {s = #diffattn.cpu_split_kv<isa = "avx2", lanes = 8, kv_split_size = 512, qk_rows = 2, q_vectors = 8, pv_rows = 1, pv_keys = 8, o_vectors = 8, o_row_vectors = 6>}

// -----
// cpu_split_kv_c7
// expected-error @below {{expected pv_rows to be a power of two up to 8, but got 16}}
func.func private @cpu_split_kv_c7_pv_rows() attributes {s = #diffattn.cpu_split_kv<isa = "avx2", lanes = 8, kv_split_size = 512, qk_rows = 2, q_vectors = 8, pv_rows = 16, pv_keys = 8, o_vectors = 8, o_row_vectors = 8>}

// -----
// cpu_split_kv_c8
// expected-error @below {{expected pv_keys to be even and between 2 and 4096, but got 7}}
func.func private @cpu_split_kv_c8_pv_keys() attributes {s = #diffattn.cpu_split_kv<isa = "avx2", lanes = 8, kv_split_size = 512, qk_rows = 2, q_vectors = 8, pv_rows = 1, pv_keys = 7, o_vectors = 8, o_row_vectors = 8>}

// -----
// gpu_forward_c1
// expected-error @below {{expected warps to be between 1 and 16, but got 32}}
func.func private @gpu_forward_c1_warps() attributes {s = #diffattn.gpu_forward<placement = both, warps = 32, kv_block_size = 32>}

// -----
// gpu_forward_c2
// expected-error @below {{expected kv_block_size to be a multiple of 16 up to 128, but got 24}}
func.func private @gpu_forward_c2_keys() attributes {s = #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 24>}

// -----
// gpu_forward_c3
// expected-error @below {{expected row_tiles to be 1 or 2, but got 3}}
func.func private @gpu_forward_c3_row_tiles() attributes {s = #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32, row_tiles = 3>}

// -----
// gpu_forward_c4
// expected-error @below {{expected stages to be between 2 and 4, but got 1}}
func.func private @gpu_forward_c4_stages() attributes {s = #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32, stages = 1>}

// -----
// gpu_forward_c5
// expected-error @below {{expected an even number of warps for placement pair, but got 3}}
func.func private @gpu_forward_c5_pair_of_warps() attributes {s = #diffattn.gpu_forward<placement = pair, warps = 3, kv_block_size = 32>}

// -----
// gpu_forward_c6
// expected-error @below {{expected warps to be a power of two, but got 3}}
func.func private @gpu_forward_c6_odd_warps() attributes {s = #diffattn.gpu_forward<placement = both, warps = 3, kv_block_size = 32>}

// -----
// gpu_forward_c6
// expected-error @below {{expected kv_block_size to be a power of two, but got 48}}
func.func private @gpu_forward_c6_odd_keys() attributes {s = #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 48>}

// -----
// gpu_split_kv_c1
// expected-error @below {{expected warps to be between 1 and 8, but got 16}}
func.func private @gpu_split_kv_c1_split_warps() attributes {s = #diffattn.gpu_split_kv<warps = 16, kv_split_size = 512>}

// -----
// gpu_split_kv_c1
// expected-error @below {{expected warps to be a power of two, but got 3}}
func.func private @gpu_split_kv_c1_odd_split_warps() attributes {s = #diffattn.gpu_split_kv<warps = 3, kv_split_size = 512>}

// -----
// gpu_split_kv_c2
// expected-error @below {{expected stages to be between 2 and 4, but got 5}}
func.func private @gpu_split_kv_c2_split_stages() attributes {s = #diffattn.gpu_split_kv<warps = 4, kv_split_size = 512, stages = 5>}

// -----
// gpu_split_kv_c3
// expected-error @below {{expected kv_split_size to be a positive multiple of 64, but got 100}}
func.func private @gpu_split_kv_c3_gpu_split_size() attributes {s = #diffattn.gpu_split_kv<warps = 4, kv_split_size = 100>}

// -----
// gpu_split_kv_c4
// expected-error @below {{expected kv_split_size of at most 1048576, but got 1099511627776}}
func.func private @gpu_split_kv_c4_large_gpu_split_size() attributes {s = #diffattn.gpu_split_kv<warps = 4, kv_split_size = 1099511627776>}

// -----
// gpu_plain_c1
// expected-error @below {{expected warps to be between 1 and 16, but got 0}}
func.func private @gpu_plain_c1_plain_warps() attributes {s = #diffattn.gpu_plain<warps = 0>}

// -----
// gpu_plain_c1
// expected-error @below {{expected warps to be a power of two, but got 6}}
func.func private @gpu_plain_c1_odd_plain_warps() attributes {s = #diffattn.gpu_plain<warps = 6>}

// -----
// gpu_backward_c1
// expected-error @below {{expected key_warps to be between 1 and 8, but got 0}}
func.func private @gpu_backward_c1_no_key_warps() attributes {s = #diffattn.gpu_backward<key_warps = 0, q_block_size = 32, query_warps = 4, kv_block_size = 32>}

// -----
// gpu_backward_c1
// expected-error @below {{expected query_warps to be a power of two, but got 3}}
func.func private @gpu_backward_c1_odd_query_warps() attributes {s = #diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 3, kv_block_size = 32>}

// -----
// gpu_backward_c2
// expected-error @below {{expected q_block_size to be between 16 and 64, but got 8}}
func.func private @gpu_backward_c2_small_q_block() attributes {s = #diffattn.gpu_backward<key_warps = 4, q_block_size = 8, query_warps = 4, kv_block_size = 32>}

// -----
// gpu_backward_c2
// expected-error @below {{expected kv_block_size to be a power of two, but got 48}}
func.func private @gpu_backward_c2_odd_kv_block() attributes {s = #diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 48>}

// -----
// gpu_backward_c3
// expected-error @below {{expected stages to be between 2 and 4, but got 1}}
func.func private @gpu_backward_c3_one_stage() attributes {s = #diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 32, stages = 1>}

// -----
// gpu_backward_c4
// expected-error @below {{expected wgmma_q_block_size to be a multiple of 16 up to 128, but got 40}}
func.func private @gpu_backward_c4_odd_q_block() attributes {s = #diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 32, wgmma_q_block_size = 40, wgmma_q_stages = 2>}

// -----
// gpu_backward_c4
// expected-error @below {{expected wgmma_kv_block_size to be a multiple of 16 up to 128, but got 144}}
func.func private @gpu_backward_c4_large_kv_block() attributes {s = #diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 32, wgmma_kv_block_size = 144, wgmma_kv_stages = 2>}

// -----
// gpu_backward_c5
// expected-error @below {{expected wgmma_kv_stages to be between 2 and 8, but got 0}}
func.func private @gpu_backward_c5_no_stages() attributes {s = #diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 32, wgmma_kv_block_size = 64>}

// -----
// gpu_backward_c5
// expected-error @below {{expected wgmma_q_stages to be between 0 and 0, but got 3}}
func.func private @gpu_backward_c5_stages_of_nothing() attributes {s = #diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 32, wgmma_q_stages = 3>}

// -----
// size_bounds_c1
// expected-error @below {{expected bounds of 0 or more, but got -1}}
func.func private @size_bounds_c1_negative() attributes {s = #diffattn.size_bounds<min_queries = 1, max_keys = -1>}

// -----
// size_bounds_c2
// expected-error @below {{expected no lower bound above the upper one, but got queries from 9 to 8 and keys from 0 to 0}}
func.func private @size_bounds_c2_queries() attributes {s = #diffattn.size_bounds<min_queries = 9, max_queries = 8>}

// -----
// size_bounds_c2
// expected-error @below {{expected no lower bound above the upper one, but got queries from 1 to 0 and keys from 2 to 1}}
func.func private @size_bounds_c2_keys() attributes {s = #diffattn.size_bounds<min_queries = 1, min_keys = 2, max_keys = 1>}

// -----
// when_c1
// expected-error @below {{expected a schedule, but got 1 : i64}}
func.func private @when_c1_when_number() attributes {s = #diffattn.when<max_queries = 8 : 1 : i64>}

// -----
// when_c1
// expected-error @below {{expected a schedule, but got #diffattn.when}}
func.func private @when_c1_when_twice() attributes {s = #diffattn.when<max_queries = 8 : #diffattn.when<min_keys = 8 : #diffattn.linalg>>}

// -----
// when_c2
// expected-error @below {{expected max_queries and min_keys not to be negative, but got -1}}
func.func private @when_c2_when_negative() attributes {s = #diffattn.when<max_queries = 8, min_keys = -1 : #diffattn.linalg>}

// -----
// when_c3
// expected-error @below {{expected max_queries, min_keys, unaligned or tensor_maps, but got no condition}}
func.func private @when_c3_when_nothing() attributes {s = #diffattn.when<max_queries = 0 : #diffattn.linalg>}

// -----
// when_c4
// expected-error @below {{expected unaligned with gpu_forward or gpu_split_kv, but got gpu_plain}}
func.func private @when_c4_when_unaligned() attributes {s = #diffattn.when<unaligned = true : #diffattn.gpu_plain<warps = 4>>}

// -----
// when_c5
// expected-error @below {{expected tensor_maps with gpu_wgmma, with gpu_split_kv that has bulk_copies, and with no other schedule, but got gpu_plain with it}}
func.func private @when_c5_maps_without_wgmma() attributes {s = #diffattn.when<tensor_maps = true : #diffattn.gpu_plain<warps = 4>>}

// -----
// when_c5
// expected-error @below {{expected tensor_maps with gpu_wgmma, with gpu_split_kv that has bulk_copies, and with no other schedule, but got gpu_wgmma without it}}
func.func private @when_c5_wgmma_without_maps() attributes {s = #diffattn.when<max_queries = 64 : #diffattn.gpu_wgmma<placement = both, kv_block_size = 64, stages = 6>>}

// -----
// gpu_wgmma_c1
// expected-error @below {{expected placement both or apart, but got pair}}
func.func private @gpu_wgmma_c1_placement() attributes {s = #diffattn.gpu_wgmma<placement = pair, kv_block_size = 64, stages = 6>}

// -----
// gpu_wgmma_c2
// expected-error @below {{expected kv_block_size to be a multiple of 16 up to 256, but got 72}}
func.func private @gpu_wgmma_c2_keys() attributes {s = #diffattn.gpu_wgmma<placement = both, kv_block_size = 72, stages = 6>}

// -----
// gpu_wgmma_c3
// expected-error @below {{expected stages to be between 2 and 8, but got 1}}
func.func private @gpu_wgmma_c3_stages() attributes {s = #diffattn.gpu_wgmma<placement = apart, kv_block_size = 64, stages = 1>}

// -----
// gpu_wgmma_c4
// expected-error @below {{expected cluster to be 1 or 2, but got 4}}
func.func private @gpu_wgmma_c4_cluster() attributes {s = #diffattn.gpu_wgmma<placement = apart, kv_block_size = 64, stages = 2, cluster = 4>}

// -----
// gpu_wgmma_c4
// expected-error @below {{expected placement apart and kv_block_size to be a multiple of 32 for a cluster of 2, but got both and 64}}
func.func private @gpu_wgmma_c4_both() attributes {s = #diffattn.gpu_wgmma<placement = both, kv_block_size = 64, stages = 2, cluster = 2>}

// -----
// gpu_wgmma_c4
// expected-error @below {{expected placement apart and kv_block_size to be a multiple of 32 for a cluster of 2, but got apart and 80}}
func.func private @gpu_wgmma_c4_keys() attributes {s = #diffattn.gpu_wgmma<placement = apart, kv_block_size = 80, stages = 2, cluster = 2>}

// -----
// gpu_wgmma_c5
// expected-error @below {{expected persistent_blocks to be between 0 and 65535, but got -1}}
func.func private @gpu_wgmma_c5_blocks() attributes {s = #diffattn.gpu_wgmma<placement = both, kv_block_size = 64, stages = 6, persistent_blocks = -1>}

// -----
// gpu_wgmma_c5
// expected-error @below {{expected a cluster of 1 and no overlap with persistent_blocks, but got 2 and none}}
func.func private @gpu_wgmma_c5_cluster() attributes {s = #diffattn.gpu_wgmma<placement = apart, kv_block_size = 96, stages = 2, cluster = 2, persistent_blocks = 132>}

// -----
// when_c5
// expected-error @below {{and with no other schedule, but got gpu_split_kv without it}}
func.func private @when_c5_bulk_copies_without_maps() attributes {s = #diffattn.when<max_queries = 8 : #diffattn.gpu_split_kv<warps = 4, bulk_copies = true, kv_split_size = 512>>}

// -----

// when_c5
// expected-error @below {{and with no other schedule, but got gpu_split_kv with it}}
func.func private @when_c5_maps_without_bulk_copies() attributes {s = #diffattn.when<tensor_maps = true : #diffattn.gpu_split_kv<warps = 4, kv_split_size = 512>>}

// -----

// attention_c27
!t = tensor<1x1x?x64xf16>
func.func @attention_c27_wgmma_for_every_call(%q: !t, %l: tensor<f32>, %o: !t) -> !t {
  // expected-error @below {{'diffattn.attention' op expected a schedule that reads tensor maps under a condition with tensor_maps, but got #diffattn.gpu_wgmma}}
  %0 = diffattn.attention ins(%q, %q, %q, %q, %q : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>) outs(%o : !t)
    {scale = 0.25 : f32, schedules = [#diffattn.gpu_wgmma<placement = both, kv_block_size = 64, stages = 6>]} -> !t
  return %0 : !t
}

// -----
// attention_c24
!t = tensor<1x1x?x64xf32>
func.func @attention_c24_not_a_schedule(%q: !t, %l: tensor<f32>, %o: !t) -> !t {
  // expected-error @below {{'diffattn.attention' op expected schedules to hold schedules, but got 1 : i64}}
  %0 = diffattn.attention ins(%q, %q, %q, %q, %q : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>) outs(%o : !t)
    {scale = 0.25 : f32, schedules = [1 : i64]} -> !t
  return %0 : !t
}

// -----
// attention_c24
!t = tensor<1x1x?x64xf32>
func.func @attention_c24_behind_linalg(%q: !t, %l: tensor<f32>, %o: !t) -> !t {
  // expected-error @below {{'diffattn.attention' op expected no schedule behind one for every call, but got #diffattn.gpu_plain}}
  %0 = diffattn.attention ins(%q, %q, %q, %q, %q : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>) outs(%o : !t)
    {scale = 0.25 : f32, schedules = [#diffattn.linalg, #diffattn.gpu_plain<warps = 4>]} -> !t
  return %0 : !t
}

// -----
// attention_c24
!t = tensor<1x1x?x64xf32>
func.func @attention_c24_behind_its_like(%q: !t, %l: tensor<f32>, %o: !t) -> !t {
  // expected-error @below {{'diffattn.attention' op expected no schedule behind one for every call, but got #diffattn.gpu_plain}}
  %0 = diffattn.attention ins(%q, %q, %q, %q, %q : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>) outs(%o : !t)
    {scale = 0.25 : f32, schedules = [#diffattn.gpu_plain<warps = 2>, #diffattn.gpu_plain<warps = 4>]} -> !t
  return %0 : !t
}
