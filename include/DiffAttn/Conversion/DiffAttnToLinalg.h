//===- DiffAttnToLinalg.h - the ops as linalg -------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CONVERSION_DIFFATTNTOLINALG_H
#define DIFFATTN_CONVERSION_DIFFATTNTOLINALG_H

#include "DiffAttn/IR/DiffAttn.h"
#include "mlir/IR/PatternMatch.h"

namespace mlir::diffattn {

/// Writes `op`, on tensors or on memrefs, as linalg ops before the insertion
/// point. Returns what holds the results: new tensors, or the init memrefs. The
/// op itself stays.
SmallVector<Value> decomposeAttention(OpBuilder &builder, AttentionOp op);
SmallVector<Value> decomposeAttentionBackward(OpBuilder &builder,
                                              AttentionBackwardOp op);
SmallVector<Value> decomposeOnlineAttention(OpBuilder &builder,
                                            OnlineAttentionOp op);
SmallVector<Value> decomposeMerge(OpBuilder &builder, MergeOp op);
SmallVector<Value> decomposeFinalize(OpBuilder &builder, FinalizeOp op);
Value decomposeGatedGemm(OpBuilder &builder, GatedGemmOp op);
Value decomposeQuantizedGemm(OpBuilder &builder, QuantizedGemmOp op);

/// The ops on states that stand for an attention.
struct StateOps {
  OnlineAttentionOp online;
  FinalizeOp finalize;
};

/// Writes integral attention (DINT) as ops on states and a mean over queries,
/// before the insertion point, on tensors or on memrefs. The op itself stays.
StateOps rewriteIntegral(RewriterBase &rewriter, AttentionOp op);

/// Patterns that decompose every op for which `shouldDecompose` holds.
void populateDecomposePatterns(
    RewritePatternSet &patterns,
    std::function<bool(Operation *)> shouldDecompose);

} // namespace mlir::diffattn

#endif // DIFFATTN_CONVERSION_DIFFATTNTOLINALG_H
