//===- GivenInputs.h - arguments drawn from a seed --------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TEST_FUZZ_GIVENINPUTS_H
#define DIFFATTN_TEST_FUZZ_GIVENINPUTS_H

#include "DiffAttn/Testing/Interpreter/Array.h"

#include "mlir/IR/MLIRContext.h"

#include <optional>
#include <string>
#include <vector>

namespace mlir::diffattn::fuzz {

/// A module of the input file, after the line
/// `// seed=NUMBER changed=0|1 inputs=VALUES@SIZESxTYPE,...`, where VALUES is
/// `normal`, `bool` or `int:LOW:HIGH`.
struct Case {
  uint64_t seed = 0;
  /// Whether the graph was changed at random, and may be nonsense.
  bool isChanged = false;
  std::string inputs;
  /// A prefix of files that get the arguments and the results; may be empty.
  std::string dump;
  llvm::StringRef text;
};

/// Cuts a file at its headers.
std::vector<Case> splitCases(llvm::StringRef file);

/// The arguments of a case: the same numbers on every machine.
llvm::Expected<std::vector<interpreter::Array>>
drawInputs(const Case &given, MLIRContext *context);

} // namespace mlir::diffattn::fuzz

#endif // DIFFATTN_TEST_FUZZ_GIVENINPUTS_H
