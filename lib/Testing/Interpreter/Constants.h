//===- Constants.h - arrays from attributes ---------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_INTERPRETER_CONSTANTS_H
#define DIFFATTN_LIB_TESTING_INTERPRETER_CONSTANTS_H

#include "DiffAttn/Testing/Interpreter/Array.h"

#include "mlir/IR/BuiltinAttributes.h"

namespace mlir::diffattn::interpreter {

/// The value of an integer or float attribute.
Slot readScalar(Attribute value);

/// The elements of a dense attribute, also of one in a resource.
llvm::Expected<Array> readConstant(Attribute value,
                                   const std::shared_ptr<MemoryBudget> &budget);

} // namespace mlir::diffattn::interpreter

#endif // DIFFATTN_LIB_TESTING_INTERPRETER_CONSTANTS_H
