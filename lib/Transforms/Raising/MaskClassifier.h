//===- MaskClassifier.h - which keys a mask hides ---------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TRANSFORMS_RAISING_MASKCLASSIFIER_H
#define DIFFATTN_LIB_TRANSFORMS_RAISING_MASKCLASSIFIER_H

#include "Scores.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

namespace mlir::diffattn::raise {

/// low <= key - query <= high; a missing side has no limit.
struct Band {
  std::optional<IndexPoly> low, high;
  bool operator==(const Band &other) const {
    return low == other.low && high == other.high;
  }
};

/// Keys are visible whose integer `key` is the query's `query`.
struct Segments {
  Expr query, key;
};

/// The mask of one map: a band, a number of keys for each batch, and operands
/// for what is no band.
struct Mask {
  Band band;
  std::optional<Segments> segments;
  Expr validKeys = nullptr;  ///< keys at or behind this number are hidden
  SmallVector<Expr> visible; ///< all must be true
  SmallVector<Expr> bias;    ///< all are added

  bool isSame(ExprGraph &graph, const Mask &other) const;
};

/// Proves what a mask does, from its expression or by evaluating it for every
/// query and key.
class MaskClassifier {
public:
  /// `query` is absent where there is one query and no loop for it.
  MaskClassifier(ExprGraph &graph, AtomId head, std::optional<AtomId> query,
                 AtomId key, std::string &reason)
      : graph(graph), head(head), query(query), key(key), reason(reason) {}

  std::optional<Mask> classify(ArrayRef<MaskPart> parts);

private:
  /// Hides keys that are not visible, or adds a bias; innermost first.
  struct Step {
    Expr visible;
    double fill;
    bool isSelect; ///< `fill` replaces the score, else it is added
    Expr bias;
  };

  void hide(Expr condition, double fill, bool isSelect);
  void readBias(Expr bias);
  void proveFinite();
  bool foldFinite(SmallVector<Expr> &numbers, SmallVector<Expr> &conditions);
  Expr sumOf(ArrayRef<Expr> numbers, Type type);
  void addVisible(Mask &mask, Expr visible);
  Expr plus(Expr count, int64_t more, Type boolean);
  Expr openComparison(Expr visible, arith::CmpIPredicate &predicate);
  Expr validKeysOf(Expr visible);
  std::optional<Segments> segmentsOf(Expr visible);
  /// Adds the parts of `visible` to a band and segments; false if there is a
  /// part of another kind.
  bool readTogether(Expr visible, Band &band,
                    SmallVectorImpl<Segments> &segments);
  bool keepsAKey(const Band &band, ArrayRef<Segments> segments);
  Expr openCondition(Expr condition);
  std::optional<Band> bandOf(Expr visible);
  std::optional<Band> bandFromComparisons(Expr visible);
  std::optional<Band> bandByEvaluation(Expr visible);
  /// `closed` for every query and key, row-major.
  std::optional<std::vector<double>> evaluate(Expr closed);
  bool keepsAKey(const Band &band);
  bool intersect(Band &band, const Band &other);
  IndexPoly queries() const {
    return query ? graph.space.extent(*query) : IndexPoly(1);
  }
  IndexPoly keys() const { return graph.space.extent(key); }

  ExprGraph &graph;
  AtomId head;
  std::optional<AtomId> query;
  AtomId key;
  std::string &reason;
  SmallVector<Step> steps;
};

} // namespace mlir::diffattn::raise

#endif // DIFFATTN_LIB_TRANSFORMS_RAISING_MASKCLASSIFIER_H
