// RUN: diffattn-opt %s --split-input-file --verify-diagnostics

// weight_c1
// expected-error @below {{expected a weight of static shape, but got 'tensor<?xf32>'}}
module attributes {diffattn.weights = [#diffattn.weight<name = "w", type = tensor<?xf32>>]} {}

// -----

// weight_c2
// expected-error @below {{expected layers to be at most 65536, but got 65537}}
module attributes {diffattn.weights = [#diffattn.weight<name = "w.{}", type = tensor<2xf32>, layers = 65537>]} {}

// -----

// weight_c3
// expected-error @below {{expected layers on a name with {}, and only there, but got 0 of 'w.{}'}}
module attributes {diffattn.weights = [#diffattn.weight<name = "w.{}", type = tensor<2xf32>>]} {}

// -----

// weight_c4
// expected-error @below {{expected first_layer to be from 0 to 2147483647, but got -1}}
module attributes {diffattn.weights = [#diffattn.weight<name = "w.{}", type = tensor<2xf32>, layers = 2, first_layer = -1>]} {}

// -----

// weight_c5
// expected-error @below {{expected rank 2 for transpose, but got 'tensor<2xf32>'}}
module attributes {diffattn.weights = [#diffattn.weight<name = "w", type = tensor<2xf32>, transpose = true>]} {}

// -----

// weight_c6
// expected-error @below {{expected row_block_size times the number of row_blocks to be the number of rows}}
module attributes {diffattn.weights = [#diffattn.weight<name = "w", type = tensor<4xf32>, row_block_size = 3, row_blocks = [0, 1]>]} {}

// -----

// weight_c6
// expected-error @below {{expected row_blocks to name each block once}}
module attributes {diffattn.weights = [#diffattn.weight<name = "w", type = tensor<4xf32>, row_block_size = 2, row_blocks = [0, 0]>]} {}

// -----

// weight_c7
// expected-error @below {{expected layer_step to be from 1 to 2147483647, but got 0}}
module attributes {diffattn.weights = [#diffattn.weight<name = "w.{}", type = tensor<2xf32>, layers = 2, layer_step = 0>]} {}

// -----

// weights_c1
// expected-error @below {{expected 'diffattn.weights' to be a list of #diffattn.weight on a module, but got [{name = "w"}]}}
module attributes {diffattn.weights = [{name = "w"}]} {}

// -----

// weights_c1
// expected-error @below {{expected 'diffattn.weights' to be a list of #diffattn.weight on a module, but got []}}
func.func private @f() attributes {diffattn.weights = []}

// -----

// weights_c2
// expected-error @below {{weight 'b': expected to follow a weight before it that no other follows, but got 'a'}}
module attributes {diffattn.weights = [#diffattn.weight<name = "b", type = tensor<4x32xf32>, follows = "a">,
                                       #diffattn.weight<name = "a", type = tensor<4x32xf32>>]} {}

// -----

// weights_c2
// expected-error @below {{weight 'c': expected to follow a weight before it that no other follows, but got 'a'}}
module attributes {diffattn.weights = [#diffattn.weight<name = "a", type = tensor<4x32xf32>>,
                                       #diffattn.weight<name = "b", type = tensor<4x32xf32>, follows = "a">,
                                       #diffattn.weight<name = "c", type = tensor<4x32xf32>, follows = "a">]} {}

// -----

// weights_c3
// expected-error @below {{weight 'b': expected to follow a weight of as many layers, of the same columns and elements, and of a multiple of 256 bytes, but got #diffattn.weight<name = "a", type = tensor<4x32xf32>>}}
module attributes {diffattn.weights = [#diffattn.weight<name = "a", type = tensor<4x32xf32>>,
                                       #diffattn.weight<name = "b", type = tensor<4x16xf32>, follows = "a">]} {}

// -----

// weights_c3
// expected-error @below {{weight 'b': expected to follow a weight of as many layers}}
module attributes {diffattn.weights = [#diffattn.weight<name = "a", type = tensor<4x32xf32>>,
                                       #diffattn.weight<name = "b", type = tensor<4x32xbf16>, follows = "a">]} {}

// -----

// weights_c3
// expected-error @below {{weight 'b.{}': expected to follow a weight of as many layers}}
module attributes {diffattn.weights = [#diffattn.weight<name = "a", type = tensor<4x32xf32>>,
                                       #diffattn.weight<name = "b.{}", type = tensor<4x32xf32>, layers = 2, follows = "a">]} {}

// -----

// weights_c3
// expected-error @below {{weight 'b': expected to follow a weight of as many layers}}
module attributes {diffattn.weights = [#diffattn.weight<name = "a", type = tensor<3x16xf32>>,
                                       #diffattn.weight<name = "b", type = tensor<4x16xf32>, follows = "a">]} {}
