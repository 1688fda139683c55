//===- Scores.h - the scores of a softmax -----------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TRANSFORMS_RAISING_SCORES_H
#define DIFFATTN_LIB_TRANSFORMS_RAISING_SCORES_H

#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

#include <string>

namespace mlir::diffattn::raise {

using namespace tensorexpr;

/// One step between the scaled scores and the softmax, innermost first: either
/// `select(visible, scores, fill)` or `scores + bias`.
struct MaskPart {
  Expr visible = nullptr;
  double fill = 0;
  Expr bias = nullptr;
};

/// scale * factors * <query, key>, capped, then the parts of the mask.
struct Scores {
  double scale = 1;
  SmallVector<Expr> factors;
  Expr query = nullptr;
  Expr key = nullptr;
  AtomId width = 0;
  Value product; ///< where query and key are multiplied; may be absent
  std::optional<double> softcap;
  SmallVector<MaskPart> mask;
  bool droppedNanToNum = false;
};

/// Reads scores as a product of queries and keys. `key` is the loop over the
/// keys. A failure sets `reason`, but not where the scores are no product at
/// all.
class ScoreReader {
public:
  ScoreReader(ExprGraph &graph, AtomId key, std::string &reason)
      : graph(graph), key(key), reason(reason) {}
  std::optional<Scores> read(Expr expr);

private:
  std::optional<Scores> readSelect(Expr expr);
  std::optional<Scores> readProduct(Expr reduce);
  std::optional<Scores> readScaled(Expr expr);
  bool leadsToProduct(Expr expr);
  bool leadsToProduct(Value value);
  bool isUnmaskedScore(Expr expr);

  ExprGraph &graph;
  AtomId key;
  std::string &reason;
  llvm::DenseMap<Value, bool> products;
};

/// Takes constant factors off `expr`, into `scale`.
Expr withoutConstantFactors(ExprGraph &graph, Expr expr, double &scale);

} // namespace mlir::diffattn::raise

#endif // DIFFATTN_LIB_TRANSFORMS_RAISING_SCORES_H
