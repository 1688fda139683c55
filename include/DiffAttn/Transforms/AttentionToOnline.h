//===- AttentionToOnline.h - attention as states and an end -----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TRANSFORMS_ATTENTIONTOONLINE_H
#define DIFFATTN_TRANSFORMS_ATTENTIONTOONLINE_H

#include "DiffAttn/IR/DiffAttn.h"
#include "mlir/IR/PatternMatch.h"

namespace mlir::diffattn {

/// The two ops that an attention became.
struct OnlineForm {
  OnlineAttentionOp online;
  FinalizeOp finalize;
};

/// Replaces `op`, on tensors, by one online_attention over all keys and a
/// finalize; the online op can then be tiled or split along the keys.
FailureOr<OnlineForm> rewriteToOnline(RewriterBase &rewriter, AttentionOp op);

} // namespace mlir::diffattn

#endif // DIFFATTN_TRANSFORMS_ATTENTIONTOONLINE_H
