//===- Conditions.h - clamps and guards against infinities ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Two questions about expressions that have many spellings.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_ANALYSIS_TENSOREXPR_CONDITIONS_H
#define DIFFATTN_ANALYSIS_TENSOREXPR_CONDITIONS_H

#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

namespace mlir::diffattn::tensorexpr {

/// The truth of `condition` if the values that `isFinite` names are finite
/// numbers; none where it depends on the numbers. Sets `testsNan` if a value is
/// tested for NaN.
std::optional<bool> truthIfFinite(ExprGraph &graph, Expr condition,
                                  llvm::function_ref<bool(Expr)> isFinite,
                                  bool &testsNan);

/// max(value, bound), or min where not `isLower`.
struct Clamp {
  Expr value;
  double bound;
  bool isLower;
};
/// `expr` as a clamp, spelled as either op, or as a choice after a comparison.
std::optional<Clamp> matchClamp(ExprGraph &graph, Expr expr);

} // namespace mlir::diffattn::tensorexpr

#endif // DIFFATTN_ANALYSIS_TENSOREXPR_CONDITIONS_H
