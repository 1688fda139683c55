//===- IndexFacts.h - static facts about indices ----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_CHECKS_INDEXFACTS_H
#define DIFFATTN_LIB_MODEL_CHECKS_INDEXFACTS_H

#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

namespace mlir::diffattn {

/// Integers of code on memrefs as polynomials over sizes, loop counters and
/// what is not known, and what follows for their ranges.
class IndexFacts {
public:
  tensorexpr::IndexPoly polyOf(Value integer);
  tensorexpr::IndexPoly polyOf(OpFoldResult integer);
  tensorexpr::IndexPoly sizeOf(Value memref, int64_t axis);
  /// How often loop `number` of `op` runs, as a polynomial and as the axis of
  /// an operand with that size; none if no axis is that loop.
  std::optional<tensorexpr::IndexPoly> extentOf(linalg::LinalgOp op,
                                                unsigned number);
  /// The counter of loop `number`.
  tensorexpr::IndexPoly loopOf(linalg::LinalgOp op, unsigned number);
  static std::optional<std::pair<Value, int64_t>>
  findExtent(linalg::LinalgOp op, unsigned number);

  /// Whether `index` is at least 0, or below `size`, wherever `user` runs.
  bool isNotNegative(Value index, Operation *user);
  bool isBelow(Value index, const tensorexpr::IndexPoly &size, Operation *user);
  /// Whether `poly` is never negative where `user` runs.
  bool isNotNegative(const tensorexpr::IndexPoly &poly, Operation *user);

  /// Assumes `assertion` to hold after it, and everywhere if `isUnconditional`.
  void learn(cf::AssertOp assertion, bool isUnconditional);
  /// Takes it that the condition of `branch` holds in its first region, and
  /// does not hold in its second one.
  void learn(scf::IfOp branch);

  tensorexpr::IndexSpace space;

private:
  /// A bound of one integer that an assertion states.
  struct Fact {
    Operation *assertion;
    bool isNotNegative;
    std::optional<tensorexpr::IndexPoly> limit; // the integer is below
  };

  /// A number that is at least 0 wherever `region` runs.
  struct BranchFact {
    Region *region;
    tensorexpr::IndexPoly number;
  };

  tensorexpr::IndexPoly readPoly(Value integer);
  bool isFarFromOverflow(const tensorexpr::IndexPoly &number);
  void learnComparison(arith::CmpIPredicate predicate, Value a, Value b,
                       Operation *assertion);

  DenseMap<Value, SmallVector<Fact>> asserted;
  SmallVector<BranchFact> branches;
  DenseMap<Value, tensorexpr::IndexPoly> counters;
  DenseMap<std::pair<Operation *, unsigned>, tensorexpr::IndexPoly> indices;
  unsigned depth = 0;
  /// Since the outermost call that is under way.
  unsigned steps = 0;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_MODEL_CHECKS_INDEXFACTS_H
