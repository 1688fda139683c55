//===- Guards.h - where assertions about accesses stand ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_CHECKS_GUARDS_H
#define DIFFATTN_LIB_MODEL_CHECKS_GUARDS_H

#include "IndexFacts.h"

#include "mlir/Analysis/AliasAnalysis.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/SetVector.h"

namespace mlir::diffattn {

/// An index that has to be one of an axis of a memref.
struct IndexUse {
  Operation *user;
  Value index;
  Value memref;
  int64_t axis;
};

/// Asserts facts about what ops do in loops without slowing the loops down:
/// about the ends of the range of an index that runs with the counters, about
/// the worst of the indices that are data, found by a loop of its own, and only
/// where neither can be had in the loop, before the op.
class Guards {
public:
  Guards(FunctionOpInterface function, IndexFacts &facts)
      : facts(facts), aliases(function) {}

  /// `use.index` is from 0 and below the size of its axis.
  void requireInside(const IndexUse &use, StringRef message);

  /// A condition of values that `op` uses.
  using Condition =
      llvm::function_ref<Value(ImplicitLocOpBuilder &, ValueRange values)>;
  void require(Operation *op, ValueRange values, Condition condition,
               StringRef message);

  /// Asserts that `predicate` holds of `a` and `b`, which are known right
  /// before `op`.
  static void assertHere(Operation *op, arith::CmpIPredicate predicate, Value a,
                         Value b, const Twine &message);
  /// Right before `op`, or before the block that takes no other ops.
  static ImplicitLocOpBuilder before(Operation *op);

private:
  /// One loop as `from + i`, with i below `to - from`.
  struct Counter {
    tensorexpr::AtomId atom;
    OpFoldResult from, to; // of a loop of the host
    Value memref;          // else the axis whose size is the number of turns
    int64_t axis = 0;
  };
  /// Loops that begin at one op, which is reached whenever the next outer one
  /// runs.
  struct Level {
    Operation *op;
    SmallVector<Counter> counters;
  };
  SmallVector<Level> levelsAround(Operation *op);
  bool hoist(const IndexUse &use, StringRef message);
  bool hoistTo(const IndexUse &use, ArrayRef<Level> levels, StringRef message);
  Value materialize(ImplicitLocOpBuilder &b, const tensorexpr::IndexPoly &poly);
  bool isKnownOutside(const tensorexpr::IndexPoly &poly, Operation *anchor);

  /// How a value of every turn of an op is folded into one.
  struct Fold {
    TypedAttr start;
    llvm::function_ref<Value(ImplicitLocOpBuilder &, ValueRange values,
                             Value sofar)>
        step;
  };
  /// The fold over all turns of `op` of `values` in its body, before the op;
  /// null where it would differ from what the turns see. `runs` is set to the
  /// condition that the other loops of the op run, where that is not certain.
  Value foldTurns(linalg::LinalgOp op, ValueRange values, const Fold &fold,
                  Value &runs);
  bool readsWhatItWrites(linalg::LinalgOp op, ArrayRef<Value> read);

  IndexFacts &facts;
  AliasAnalysis aliases;
  /// Ops of bodies that are only safe after the assertion before them.
  llvm::SmallPtrSet<Operation *, 8> guardedHere;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_MODEL_CHECKS_GUARDS_H
