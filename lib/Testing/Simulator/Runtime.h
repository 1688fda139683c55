//===- Runtime.h - functions that compiled kernels call ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_SIMULATOR_RUNTIME_H
#define DIFFATTN_LIB_TESTING_SIMULATOR_RUNTIME_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

#include <utility>

namespace mlir::diffattn::sim {

/// Name and address of every function that lowered code may call.
llvm::ArrayRef<std::pair<llvm::StringLiteral, void *>> getRuntimeSymbols();

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_LIB_TESTING_SIMULATOR_RUNTIME_H
