//===- SpecBuilder.h - an op as the spec of a kernel ------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_SPECBUILDER_H
#define DIFFATTN_LIB_CODEGEN_CPU_SPECBUILDER_H

#include "BackwardSpec.h"
#include "DiffAttn/Codegen/CPU/KernelBuilder.h"

namespace mlir::diffattn {

/// Turns operands into a spec and the values that its context holds.
class SpecBuilder {
public:
  /// Errors are of `op`, before which `b` inserts.
  SpecBuilder(KernelBuilder &b, Operation *op) : b(b), op(op) {}

  /// Sizes and operands that are there; not the rules, nor the schedule.
  LogicalResult build(const AttentionOperands &operands, AttentionSpec &spec);
  LogicalResult build(const BackwardOperands &operands, BackwardSpec &spec);

  /// A size: `fixed`, or, where that is dynamic, the value `dynamic`.
  SpecSize bind(int64_t fixed, Value dynamic);
  /// A size as a value, which may be a constant.
  SpecSize bind(Value size);

  SmallVector<Value> context;
  /// The sizes as values, for the caller's own arithmetic.
  Value value(const SpecSize &size) {
    return size.isStatic() ? b.index(size.value) : context[size.slot];
  }

private:
  SpecSize bindDim(const OperandView &view, OperandView::Role role);
  LogicalResult bindOperand(const OperandView &view, SpecOperand &operand);

  KernelBuilder &b;
  Operation *op;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_SPECBUILDER_H
