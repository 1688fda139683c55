//===- AffineValue.h - values of affine expressions -------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_INTERPRETER_AFFINEVALUE_H
#define DIFFATTN_LIB_TESTING_INTERPRETER_AFFINEVALUE_H

#include "mlir/IR/AffineExpr.h"

namespace mlir::diffattn::interpreter {

/// Evaluates `expr`, with wrapping sums and products; false for a divisor below
/// 1.
bool evaluate(AffineExpr expr, ArrayRef<int64_t> dims,
              ArrayRef<int64_t> symbols, int64_t &value);

} // namespace mlir::diffattn::interpreter

#endif // DIFFATTN_LIB_TESTING_INTERPRETER_AFFINEVALUE_H
