//===- StructuredOp.h - a nest of loops over tensors ------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_INTERPRETER_STRUCTUREDOP_H
#define DIFFATTN_LIB_TESTING_INTERPRETER_STRUCTUREDOP_H

#include "CodeBuilder.h"

#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/IR/AffineMap.h"

namespace mlir::diffattn::interpreter {

/// factors . loops + constant
struct LinearExpr {
  SmallVector<int64_t> factors;
  int64_t constant = 0;
};

struct StructuredOperand {
  int32_t number = -1; ///< of its register
  bool isTensor = true;
  int32_t inside = -1; ///< the body's register for its element
  bool isRead = false;
  AffineMap map;
  bool isLinear = true;
  SmallVector<LinearExpr> linear; ///< one for each axis, if the map is linear
};

/// Where the size of a loop is found.
struct LoopSize {
  int32_t operand = -1, axis = -1;
};

/// A body that only adds the product of its two inputs to its output.
enum class Product { No, F64, F32, RandomF32 };

struct StructuredOp : Details {
  SmallVector<StructuredOperand> operands; ///< inputs, then inits
  int64_t numInputs = 0;
  SmallVector<LoopSize> loopSizes;
  SmallVector<int32_t> indices; ///< registers of the loops; -1: not asked for
  Code body;
  SmallVector<int32_t> yielded, results;
  SmallVector<bool> isOverwritten;
  SmallVector<int32_t> released; ///< inits that the body does not read whole
  Product product = Product::No;
};

bool runStructuredOp(Machine &m, const Inst &inst);

/// Whether the body is acc + a * b, in the types of the inputs.
Product findProduct(linalg::LinalgOp op, const StructuredOp &details,
                    const CodeBuilder &b);

} // namespace mlir::diffattn::interpreter

#endif // DIFFATTN_LIB_TESTING_INTERPRETER_STRUCTUREDOP_H
