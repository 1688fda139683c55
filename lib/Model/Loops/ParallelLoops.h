//===- ParallelLoops.h - loops over elements --------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_LOOPS_PARALLELLOOPS_H
#define DIFFATTN_LIB_MODEL_LOOPS_PARALLELLOOPS_H

#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/IR/PatternMatch.h"

namespace mlir::diffattn {

/// How an op on buffers becomes a nest of loops whose innermost one is
/// parallel.
struct ParallelLoops {
  /// The nest, from the outermost in. The body has all iterations of the other
  /// loops one after the other, which are reductions.
  SmallVector<unsigned> order;
  /// Iterations of a tile for each loop of the op; 0: it is not tiled.
  SmallVector<int64_t> tiles;
};

/// The nest for an op whose loops are all parallel, or that reduces elements
/// which lie side by side for neighbours in one of its parallel loops: there
/// vectors hold neighbours, each of which adds up by itself. None: neighbours
/// are what is added up, or neither.
std::optional<ParallelLoops> planParallelLoops(linalg::LinalgOp op);

/// Emits the nest and erases the op. Code that depends on outer loops alone
/// stands in these: elements that are broadcast, and assertions about them.
void emitParallelLoops(RewriterBase &rewriter, linalg::LinalgOp op,
                       const ParallelLoops &loops);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_MODEL_LOOPS_PARALLELLOOPS_H
