//===- Patterns.h - rewritings for passes of other projects -----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The patterns of the passes in Passes.h, for a set that a pass of one's own
// applies. Passes that are not listed walk the IR instead of rewriting op by
// op. populateDecomposePatterns is in DiffAttn/Conversion/DiffAttnToLinalg.h.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TRANSFORMS_PATTERNS_H
#define DIFFATTN_TRANSFORMS_PATTERNS_H

#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/IR/PatternMatch.h"

namespace mlir::diffattn {

/// diffattn-to-online: an attention on tensors as online_attention and
/// finalize.
void populateAttentionToOnlinePatterns(RewritePatternSet &patterns);

/// diffattn-unpack-sequences: attention on packed sequences, or its gradients,
/// as a loop over them; and attention on pages of keys and values, where
/// `shouldGather` holds, as attention on copies of them.
void populateUnpackSequencesPatterns(
    RewritePatternSet &patterns, std::function<bool(Operation *)> shouldUnpack);
void populateGatherPagesPatterns(RewritePatternSet &patterns,
                                 std::function<bool(AttentionOp)> shouldGather);

} // namespace mlir::diffattn

#endif // DIFFATTN_TRANSFORMS_PATTERNS_H
