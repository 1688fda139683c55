//===- OnlineRanges.h - states of ranges of keys as loops -------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_ONLINERANGES_H
#define DIFFATTN_IR_ONLINERANGES_H

#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/Dialect/SCF/IR/SCF.h"

namespace mlir::diffattn {

/// A loop over ranges, and the op on one of them that it holds.
struct RangeLoop {
  scf::ForOp loop;
  Operation *op = nullptr;
};

/// Writes an op on tensors whose states have an axis of ranges in front as a
/// loop of the same op on one range, before the insertion point; the loop has
/// the results. The op itself stays. Fails where there is no such axis, and on
/// memrefs.
FailureOr<RangeLoop> expandRanges(RewriterBase &rewriter, OnlineAttentionOp op);
FailureOr<RangeLoop> expandRanges(RewriterBase &rewriter, MergeOp op);

} // namespace mlir::diffattn

#endif // DIFFATTN_IR_ONLINERANGES_H
