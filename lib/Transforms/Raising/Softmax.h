//===- Softmax.h - where a softmax map is made ------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TRANSFORMS_RAISING_SOFTMAX_H
#define DIFFATTN_LIB_TRANSFORMS_RAISING_SOFTMAX_H

#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

namespace mlir::diffattn::raise {

using namespace tensorexpr;

/// Element `loops` of a tensor as the softmax of `scores` along one axis. Terms
/// that are the same for all keys of a row are left out of the scores.
struct Softmax {
  SmallVector<IndexPoly> loops;
  unsigned keyAxis;
  Expr scores;
  /// Why this is not quite a softmax, with an article; empty where it is one.
  llvm::StringRef flaw;
  /// Whether a row of large negative numbers alone is 0 / 0, since no maximum
  /// is taken away from the scores.
  bool losesFarRows = false;
};

/// True if `scores` are -inf, shifted or not, wherever `visible` is false.
bool areHiddenUnless(ExprGraph &graph, Expr scores, Expr visible);

/// `scores` with -inf in the place of the large negative number that they are
/// wherever `visible` is false, of a map that is zero there; null where they
/// are no such number. The number hides these keys in a row that has others. In
/// a row that has none it would weigh them, but there the map is zero. No other
/// number may be as large, since it could hide those others.
Expr withoutZeroedKeys(ExprGraph &graph, Expr scores, Expr visible);

/// Reads `value` as exp(x) / sum(exp(x)), exp(x) * (1 / sum(exp(x))) or
/// exp(x - log(sum(exp(x)))), each with any shift of the rows.
std::optional<Softmax> matchSoftmax(ExprGraph &graph, Value value);

/// Reads `element` as a softmax along one of `loops`.
std::optional<Softmax> matchSoftmax(ExprGraph &graph, Expr element,
                                    ArrayRef<IndexPoly> loops);

} // namespace mlir::diffattn::raise

#endif // DIFFATTN_LIB_TRANSFORMS_RAISING_SOFTMAX_H
