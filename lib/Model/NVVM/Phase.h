//===- Phase.h - one op as a part of a kernel -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_NVVM_PHASE_H
#define DIFFATTN_LIB_MODEL_NVVM_PHASE_H

#include "DeviceValues.h"

#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Linalg/Utils/Utils.h"

#include <optional>

namespace mlir::diffattn::linalggpu {

/// A memref that a phase reads or writes at `map` of its loops. Without a map
/// it is addressed by data, or its elements are scalars of the host's code.
struct Access {
  Value memref;
  AffineMap map;
  bool isWrite = false;
};

/// A sum, maximum or the like over the loops that are reductions.
struct Combiner {
  /// The ops between the carried value and the yielded one, all of one kind.
  SmallVector<Operation *> chain;
  /// Neutral element of the reduction (0 for add), and the type in which it
  /// accumulates.
  TypedAttr neutral;
  Type type;
};

/// The computation of one op of a host function: a `linalg.generic`, a
/// `memref.store` or a `cf.assert`. Loops of the host around it may be loops of
/// the phase too: they come first, and count from 0 by 1.
class Phase {
public:
  Phase(Operation *op, ArrayRef<scf::ForOp> enclosing = {});

  Operation *getOp() const { return op; }
  Location getLoc() const { return op->getLoc(); }
  linalg::GenericOp getGeneric() const {
    return dyn_cast<linalg::GenericOp>(op);
  }
  ArrayRef<scf::ForOp> getEnclosing() const { return enclosing; }

  /// All loops, those of the host first.
  ArrayRef<utils::IteratorType> getLoops() const { return loops; }
  bool isParallel() const;
  /// The memref operands of the `linalg.generic` in the order of the op, with
  /// maps from all loops; null for scalars.
  ArrayRef<Access> getOperands() const { return operands; }
  /// Everything in memory that is read or written, whatever reads it.
  SmallVector<Access> getAccesses() const;
  /// Values from outside that the body uses, without memrefs that it indexes.
  SmallVector<Value> getScalars() const;

  /// The operand and its axis whose size is that of loop `loop`.
  std::optional<std::pair<Value, int64_t>> findSize(unsigned loop) const;

  /// Whether operand `number`'s old value matters.
  bool readsOperand(unsigned number) const;

  /// How output `number` is reduced, if its carried value goes through ops of
  /// one associative kind alone.
  std::optional<Combiner> matchCombiner(unsigned number) const;

private:
  Operation *op;
  SmallVector<scf::ForOp> enclosing;
  SmallVector<utils::IteratorType> loops;
  SmallVector<Access> operands;
};

/// Key of a loop's size; loops that share a key have equal sizes. Constants, or
/// values and axes of memrefs that were followed to their definitions.
using SizeKey = std::pair<void *, int64_t>;
SmallVector<SizeKey> getSizeKeys(const Phase &phase, unsigned loop);

} // namespace mlir::diffattn::linalggpu

#endif // DIFFATTN_LIB_MODEL_NVVM_PHASE_H
