// RUN: diffattn-opt %s --split-input-file --verify-diagnostics

// schedule_c1
// expected-error @below {{expected lanes to be 4, 8 or 16, but got 5}}
func.func private @lanes() attributes {s = #diffattn.schedule<path = nest, isa = "avx2", lanes = 5, rows = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 128, split_keys = 256>}

// -----
// schedule_c2
// expected-error @below {{expected rows to be a positive multiple of lanes, but got 30}}
func.func private @rows() attributes {s = #diffattn.schedule<path = nest, isa = "avx2", lanes = 8, rows = 30, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 128, split_keys = 256>}

// -----
// schedule_c3
// expected-error @below {{expected pv_tile to hold 3 numbers, but got 2}}
func.func private @tile() attributes {s = #diffattn.schedule<path = nest, isa = "avx2", lanes = 8, rows = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2], kv_block_size = 128, split_keys = 256>}

// -----
// schedule_c4
// expected-error @below {{expected the numbers of qk_tile to be between 1 and 64, but got 0}}
func.func private @tile_size() attributes {s = #diffattn.schedule<path = nest, isa = "avx2", lanes = 8, rows = 48, qk_tile = [4, 3, 0], pv_tile = [6, 2, 4], kv_block_size = 128, split_keys = 256>}

// -----
// schedule_c5
// expected-error @below {{expected rows to be a multiple of the qk_tile's 40, but got 48}}
func.func private @score_rows() attributes {s = #diffattn.schedule<path = nest, isa = "avx2", lanes = 8, rows = 48, qk_tile = [4, 5, 4], pv_tile = [6, 2, 4], kv_block_size = 128, split_keys = 256>}

// -----
// schedule_c6
// expected-error @below {{expected rows to be a multiple of the pv_tile's 5, but got 48}}
func.func private @product_rows() attributes {s = #diffattn.schedule<path = nest, isa = "avx2", lanes = 8, rows = 48, qk_tile = [4, 3, 4], pv_tile = [5, 2, 4], kv_block_size = 128, split_keys = 256>}

// -----
// schedule_c7
// expected-error @below {{expected kv_block_size to be a multiple of lanes and of the qk_tile's 4, but got 100}}
func.func private @kv_block_size() attributes {s = #diffattn.schedule<path = nest, isa = "avx2", lanes = 8, rows = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 100, split_keys = 256>}

// -----
// schedule_c8
// expected-error @below {{expected split_rows not to be negative, but got -1}}
func.func private @split_rows() attributes {s = #diffattn.schedule<path = nest, isa = "avx2", lanes = 8, rows = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 128, split_rows = -1, split_keys = 256>}

// -----
// schedule_c9
// expected-error @below {{expected split_keys to be a positive multiple of lanes, but got 10}}
func.func private @split_keys() attributes {s = #diffattn.schedule<path = nest, isa = "avx2", lanes = 8, rows = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 128, split_keys = 10>}

// -----
// schedule_c10
// expected-error @below {{expected two_pass_keys not to be negative, but got -2}}
func.func private @two_pass_keys() attributes {s = #diffattn.schedule<path = nest, isa = "avx2", lanes = 8, rows = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 128, two_pass_keys = -2, split_keys = 256>}

// -----
// schedule_c11
// expected-error @below {{expected rows of at most 1024, but got 1072}}
func.func private @many_rows() attributes {s = #diffattn.schedule<path = nest, isa = "avx2", lanes = 8, rows = 1072, qk_tile = [4, 3, 4], pv_tile = [4, 2, 4], kv_block_size = 128, split_keys = 256>}

// -----
// schedule_c11
// expected-error @below {{expected kv_block_size of at most 65536, but got 65552}}
func.func private @long_kv_block() attributes {s = #diffattn.schedule<path = nest, isa = "avx2", lanes = 8, rows = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 65552, split_keys = 256>}

// -----
// schedule_c11
// expected-error @below {{expected split_keys of at most 65536, but got 4611686018427387904}}
func.func private @many_split_keys() attributes {s = #diffattn.schedule<path = nest, isa = "avx2", lanes = 8, rows = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 128, split_keys = 4611686018427387904>}

// -----
// schedule_c12
// expected-error @below {{expected a product of the numbers of qk_tile of at most 512, but got 768}}
func.func private @long_code() attributes {s = #diffattn.schedule<path = nest, isa = "avx2", lanes = 8, rows = 48, qk_tile = [4, 3, 64], pv_tile = [6, 2, 4], kv_block_size = 128, split_keys = 256>}

// -----
// schedule_c13
// expected-error @below {{expected the vectors of pv_tile to be a power of two, but got 3}}
func.func private @product_vectors() attributes {s = #diffattn.schedule<path = nest, isa = "avx2", lanes = 8, rows = 48, qk_tile = [4, 3, 4], pv_tile = [6, 3, 4], kv_block_size = 128, split_keys = 256>}

// -----
// schedule_c14
// expected-error @below {{expected 16 lanes with bf16_dot, but got 8}}
func.func private @pairs() attributes {s = #diffattn.schedule<path = nest, isa = "avx512bf16", lanes = 8, rows = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 128, split_keys = 256, bf16_dot = true>}
