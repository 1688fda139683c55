//===- ScheduleCases.h - which schedule a call takes ------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_SCHEDULECASES_H
#define DIFFATTN_IR_SCHEDULECASES_H

#include "DiffAttn/IR/DiffAttn.h"

namespace mlir::diffattn {

/// A schedule of an op's list that some call takes, and its conditions at run
/// time: a call takes the first case all of whose conditions hold.
struct ScheduleCase {
  ScheduleAttrInterface schedule;
  /// The most queries and the fewest keys of calls that the case takes.
  std::optional<int64_t> maxQueries, minKeys;
  /// Operands do not allow copies of 16 bytes.
  bool unaligned = false;
  /// Tensor maps can describe the operands.
  bool tensorMaps = false;

  /// Whether every call takes it that takes none before it.
  bool isAlways() const {
    return !maxQueries && !minKeys && !unaligned && !tensorMaps;
  }
};

/// The cases of `op` for `target`, in the order in which they are tried.
/// Schedules for other targets are left out, and so are those that no call of
/// the op's types takes. With `Any`, those of all targets.
SmallVector<ScheduleCase> getScheduleCases(AttentionOp op,
                                           ScheduleTarget target);

/// Whether every call takes one of `cases`.
bool takeEveryCall(ArrayRef<ScheduleCase> cases);

/// Fails, with an error, where some call takes none of `cases`, or takes linalg
/// while others take a kernel, or has more queries than its kernel computes.
LogicalResult verifyScheduleCases(AttentionOp op, ArrayRef<ScheduleCase> cases);

/// The rules of the list itself, whatever the op's types are.
LogicalResult verifySchedules(AttentionOp op);
LogicalResult verifySchedules(AttentionBackwardOp op);

/// The schedule of gradients that every call takes on `target`; null: none.
ScheduleAttrInterface findSchedule(AttentionBackwardOp op,
                                   ScheduleTarget target);

/// Appends `schedules` to the list of `op`.
void appendSchedules(AttentionOp op, ArrayRef<Attribute> schedules);
void appendSchedules(AttentionBackwardOp op, ArrayRef<Attribute> schedules);

} // namespace mlir::diffattn

#endif // DIFFATTN_IR_SCHEDULECASES_H
