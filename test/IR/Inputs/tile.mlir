// Strategies of tiling*.mlir, apart from them so that the programs that run have none.
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
  transform.named_sequence @fuse_into_heads(%root: !transform.any_op {transform.readonly}) {
    %op = transform.structured.match ops{["linalg.generic"]} in %root
        : (!transform.any_op) -> !transform.any_op
    %t, %loops:3 = transform.structured.fuse %op tile_sizes [1, 1, 2]
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op)
    transform.yield
  }
  transform.named_sequence @fuse_into_queries(%root: !transform.any_op {transform.readonly}) {
    %op = transform.structured.match ops{["linalg.generic"]} in %root
        : (!transform.any_op) -> !transform.any_op
    %t, %loops:2 = transform.structured.fuse %op tile_sizes [1, 0, 2]
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op)
    transform.yield
  }
  transform.named_sequence @fuse_into_values(%root: !transform.any_op {transform.readonly}) {
    %op = transform.structured.match ops{["linalg.generic"]} in %root
        : (!transform.any_op) -> !transform.any_op
    %t, %loops:3 = transform.structured.fuse %op tile_sizes [1, 0, 2, 3]
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op)
    transform.yield
  }
}
