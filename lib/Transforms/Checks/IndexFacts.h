//===- IndexFacts.h - what is known of indices without running --*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TRANSFORMS_CHECKS_INDEXFACTS_H
#define DIFFATTN_LIB_TRANSFORMS_CHECKS_INDEXFACTS_H

#include "DiffAttn/Transforms/Raise/IndexPoly.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

namespace mlir::diffattn {

/// Integers of code on memrefs as polynomials over sizes, loop counters and
/// what is not known, and what follows for their ranges.
class IndexFacts {
public:
  raise::IndexPoly polyOf(Value integer);
  raise::IndexPoly polyOf(OpFoldResult integer);
  raise::IndexPoly sizeOf(Value memref, int64_t axis);
  /// How often loop `number` of `op` runs, as a polynomial and as the axis of
  /// the operand that says so; none if no axis is that loop.
  std::optional<raise::IndexPoly> extentOf(linalg::LinalgOp op,
                                           unsigned number);
  /// The counter of loop `number`.
  raise::IndexPoly loopOf(linalg::LinalgOp op, unsigned number);
  static std::optional<std::pair<Value, int64_t>>
  findExtent(linalg::LinalgOp op, unsigned number);

  /// Whether `index` is at least 0, or below `size`, wherever `user` runs.
  bool isNotNegative(Value index, Operation *user);
  bool isBelow(Value index, const raise::IndexPoly &size, Operation *user);
  /// Whether `poly` is never negative where `user` runs.
  bool isNotNegative(const raise::IndexPoly &poly, Operation *user);

  /// Takes it that `assertion` holds behind it, and everywhere if
  /// `isUnconditional`.
  void learn(cf::AssertOp assertion, bool isUnconditional);

  raise::IndexSpace space;

private:
  /// What an assertion says of one integer.
  struct Fact {
    Operation *assertion;
    bool isNotNegative;
    std::optional<raise::IndexPoly> limit; // the integer is below
  };

  raise::IndexPoly readPoly(Value integer);
  void learnComparison(arith::CmpIPredicate predicate, Value a, Value b,
                       Operation *assertion);

  DenseMap<Value, SmallVector<Fact>> asserted;
  DenseMap<Value, raise::IndexPoly> counters;
  DenseMap<std::pair<Operation *, unsigned>, raise::IndexPoly> indices;
  unsigned depth = 0;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_TRANSFORMS_CHECKS_INDEXFACTS_H
