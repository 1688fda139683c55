//===- Assertion.h - comparisons that messages can tell ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_CHECKS_ASSERTION_H
#define DIFFATTN_LIB_MODEL_CHECKS_ASSERTION_H

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"

namespace mlir::diffattn {

/// Asserts a comparison. In `message` `{0}` and `{1}` stand for its sides;
/// constants among them are written out, since a constant changes its side.
/// Predicates that others turn into when sides change are not allowed, so that
/// the lowering of the assertion can find the order of the sides.
cf::AssertOp assertThat(OpBuilder &builder, Location loc,
                        arith::CmpIPredicate predicate, Value a, Value b,
                        const Twine &message);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_MODEL_CHECKS_ASSERTION_H
