//===- FarNumbers.h - numbers that masks hide keys with ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TRANSFORMS_RAISING_FARNUMBERS_H
#define DIFFATTN_LIB_TRANSFORMS_RAISING_FARNUMBERS_H

#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

namespace mlir::diffattn::raise {

using namespace tensorexpr;

/// Added to scores, numbers of this size and more hide keys, or drown what else
/// is in a row.
inline constexpr double kFarNumber = 1e4;

/// Numbers that `readsFarNumber` looks for beside those of `kFarNumber`.
struct FarNumbers {
  /// Infinity too, which hides a key whatever else is added.
  bool infinite;
  /// Terms of sums, products and extremes over a loop too. These are near the
  /// scores where they are computed from them, as a row's maximum is.
  bool insideReductions;
};

/// True if a constant as far from zero as `kFarNumber` goes into the value of
/// `expr`. Conditions choose among values, and are none; arguments of the graph
/// are taken for numbers of ordinary size. A value of too many parts to look at
/// all of them counts as if it had one.
bool readsFarNumber(ExprGraph &graph, Expr expr, FarNumbers which);

/// True if `term`, which is one for all keys of a row, may hide the row or
/// drown its scores.
inline bool hidesRows(ExprGraph &graph, Expr term) {
  return readsFarNumber(graph, term,
                        {/*infinite=*/true, /*insideReductions=*/false});
}

} // namespace mlir::diffattn::raise

#endif // DIFFATTN_LIB_TRANSFORMS_RAISING_FARNUMBERS_H
