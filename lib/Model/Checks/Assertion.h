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

/// Asserts a comparison. In `message` `{0}` and `{1}` stand for its sides; what
/// is known now is written out, since a constant changes its side. Of the other
/// predicates those are left out that these turn into when sides change, so
/// that the lowering of the assertion can tell which is which.
cf::AssertOp assertThat(OpBuilder &builder, Location loc,
                        arith::CmpIPredicate predicate, Value a, Value b,
                        const Twine &message);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_MODEL_CHECKS_ASSERTION_H
