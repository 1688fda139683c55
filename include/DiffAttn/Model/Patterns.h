//===- Patterns.h - rewritings for passes of other projects -----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The patterns of the passes in Passes.h, for a set that a pass of one's own
// applies. Passes that are not listed walk the IR instead of rewriting op by
// op.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_MODEL_PATTERNS_H
#define DIFFATTN_MODEL_PATTERNS_H

#include "mlir/IR/PatternMatch.h"

namespace mlir::diffattn {

/// diffattn-decompose-tensor-ops: pads, packs, gathers, scatters,
/// concatenations and element-wise ops on tensors as linalg.
void populateDecomposeTensorOpsPatterns(RewritePatternSet &patterns);

/// diffattn-fuse-elementwise: element-wise ops that read a concatenation, as
/// one for each of its parts.
void populateSplitAtConcatenationsPatterns(RewritePatternSet &patterns);

/// diffattn-expand-math: exponentials and what upstream expands or
/// approximates. With `all`, also what a C library would be called for.
void populateExpandMathPatterns(RewritePatternSet &patterns, bool all);

/// convert-diffattn-copy-to-loops: copies between strided buffers as linalg.
void populateCopyToLoopsPatterns(RewritePatternSet &patterns);

/// convert-diffattn-reshape-to-strided: expansions of strided buffers as
/// `memref.reinterpret_cast`.
void populateReshapeToStridedPatterns(RewritePatternSet &patterns);

} // namespace mlir::diffattn

#endif // DIFFATTN_MODEL_PATTERNS_H
