//===- Differential.h - a recognised attention ------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TRANSFORMS_RAISING_DIFFERENTIAL_H
#define DIFFATTN_LIB_TRANSFORMS_RAISING_DIFFERENTIAL_H

#include "Maps.h"
#include "MaskClassifier.h"
#include "Scores.h"

namespace mlir::diffattn::raise {

/// The loops of one attention. A role that the graph has no loop for gets one
/// of extent 1.
struct Roles {
  AtomId batch, head, query, key, width, valueWidth;
};

/// outScale * sum over keys of (softmax(first) - lambda * softmax(second)) *
/// value, as the element of `root` at `position`; without `second` of
/// softmax(first) alone.
struct Differential {
  Value root;
  SmallVector<IndexPoly> position;
  Roles roles;
  Scores first;
  std::optional<Scores> second;
  Mask mask;
  /// A score more in the sums of `first`, of each head; null: none.
  Expr sink = nullptr;
  Expr value = nullptr;
  /// Lambda as a number times factors.
  double lambda = 1;
  SmallVector<Expr> lambdaFactors;
  double outScale = 1;
  /// Factors of all maps, other than numbers: the op's result is multiplied.
  SmallVector<Expr> commonFactors;
  bool droppedNanGuard = false;
  /// The 16-bit types that the maps, or their products with the values, are
  /// rounded to on the way to `root`.
  llvm::SmallSetVector<Type, 2> roundedTo;
  /// The values of the graph that the op replaces and that nothing else may
  /// need: the maps and the scores.
  SmallVector<Value> replaced;

  /// The scores of its maps: one or two.
  SmallVector<Scores *, 2> maps() {
    SmallVector<Scores *, 2> all{&first};
    if (second)
      all.push_back(&*second);
    return all;
  }
};

/// The reason where a softmax is over something else than attention.
constexpr StringLiteral kNoProduct =
    "a softmax is not over products of queries and keys";

struct RecognizerOptions {
  /// Raise maps of different scale by scaling the second query.
  bool rescaleQueries = false;
  /// Look for products of one map, in place of differences of two.
  bool single = false;
};

/// Reads the element of `root`. None, with an empty `reason`, where it is not
/// a difference of products of maps with values, or the product of one; with a
/// reason where it is one, but the op cannot express it.
std::optional<Differential> recognize(ExprGraph &graph, Maps &maps, Value root,
                                      const RecognizerOptions &options,
                                      std::string &reason);

/// Gives every loop its role and splits or merges batch and head axes.
bool solveRoles(ExprGraph &graph, Differential &match, std::string &reason);

/// The factors of a product, one by one.
void flattenProduct(Expr expr, SmallVectorImpl<Expr> &factors);

/// Calls `fn` on a reference to every expression of `match`.
void forEachExpr(Differential &match, llvm::function_ref<void(Expr &)> fn);

} // namespace mlir::diffattn::raise

#endif // DIFFATTN_LIB_TRANSFORMS_RAISING_DIFFERENTIAL_H
