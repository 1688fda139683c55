// Strategies of tiling.mlir, apart from it so that the program that runs has none.
module attributes {transform.with_named_sequence} {
  transform.named_sequence @tile_attention(%root: !transform.any_op {transform.readonly}) {
    %op = transform.structured.match ops{["diffattn.attention"]} in %root
        : (!transform.any_op) -> !transform.any_op
    %t, %loops:3 = transform.structured.tile_using_for %op tile_sizes [1, 1, 2]
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op)
    transform.yield
  }
  transform.named_sequence @tile_keys(%root: !transform.any_op {transform.readonly}) {
    %op = transform.structured.match ops{["diffattn.online_attention"]} in %root
        : (!transform.any_op) -> !transform.any_op
    %t, %loops:2 = transform.structured.tile_using_for %op tile_sizes [0, 0, 3, 2]
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op)
    transform.yield
  }
  transform.named_sequence @split_keys(%root: !transform.any_op {transform.readonly}) {
    %op = transform.structured.match ops{["diffattn.online_attention"]} in %root
        : (!transform.any_op) -> !transform.any_op
    %f:6, %t, %m:2, %loop = transform.structured.tile_reduction_using_forall %op
        by num_threads = [0, 0, 0, 3] tile_sizes = [0, 0, 0, 0]
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op,
                                  !transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op,
                                  !transform.any_op, !transform.any_op)
    transform.yield
  }
  transform.named_sequence @tile_groups(%root: !transform.any_op {transform.readonly}) {
    %op = transform.structured.match ops{["diffattn.attention"]} in %root
        : (!transform.any_op) -> !transform.any_op
    %t, %loops:3 = transform.structured.tile_using_for %op tile_sizes [1, 2, 2]
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op)
    transform.yield
  }
  transform.named_sequence @tile_heads_and_keys(%root: !transform.any_op {transform.readonly}) {
    %op = transform.structured.match ops{["diffattn.online_attention"]} in %root
        : (!transform.any_op) -> !transform.any_op
    %t, %loops:4 = transform.structured.tile_using_for %op tile_sizes [1, 1, 3, 2]
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op)
    transform.yield
  }
}
