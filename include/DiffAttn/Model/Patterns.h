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

#include "DiffAttn/Model/PassEnums.h"
#include "DiffAttn/Target/CpuTarget.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/PatternMatch.h"

namespace mlir {
class LLVMTypeConverter;
} // namespace mlir

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

/// convert-linalg-to-gemm: contractions as `diffattn.gemm`, and the rounding of
/// their results; with `convolutions` those too.
void populateLinalgToGemmPatterns(RewritePatternSet &patterns,
                                  bool convolutions);

/// diffattn-fuse-gated-gemms: a gate's product and that of what it gates as
/// `diffattn.gated_gemm`, where the tiles of `target` multiply both in one
/// order.
void populateFuseGatedGemmsPatterns(RewritePatternSet &patterns,
                                    const CpuTarget &target,
                                    BatchInvariance batchInvariance);

/// convert-diffattn-alloc-to-runtime: allocations in `module` as calls of the
/// runtime, which is declared there; with `device` memory of the device. For a
/// dialect conversion. Fails after an error where a symbol of the runtime means
/// something else.
LogicalResult populateAllocToRuntimePatterns(const LLVMTypeConverter &converter,
                                             RewritePatternSet &patterns,
                                             ModuleOp module, bool device);

/// convert-diffattn-weight-to-runtime: weights in `module` as loads of the
/// table of weights, which is declared there. For a dialect conversion.
void populateWeightToRuntimePatterns(const LLVMTypeConverter &converter,
                                     RewritePatternSet &patterns,
                                     ModuleOp module);

} // namespace mlir::diffattn

#endif // DIFFATTN_MODEL_PATTERNS_H
