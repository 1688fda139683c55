//===- Explain.h - where the time of a call goes ----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TOOLS_DIFFATTN_RUN_EXPLAIN_H
#define DIFFATTN_TOOLS_DIFFATTN_RUN_EXPLAIN_H

#include "DiffAttn/Compiler/Explanation.h"

#include "llvm/ADT/STLFunctionalExtras.h"

namespace mlir::diffattn {

/// How an explanation is printed.
enum class ExplainFormat { None, Text, JSON };

/// Calls `call` some times, for about a second, and prints a row for each
/// product and attention of `facts`, with the least time of them, beside the
/// roof of so many threads. Code must have been compiled with spans.
llvm::Error explainCalls(llvm::function_ref<llvm::Error()> call,
                         ExplanationFacts facts, int64_t threads,
                         ExplainFormat format);

} // namespace mlir::diffattn

#endif // DIFFATTN_TOOLS_DIFFATTN_RUN_EXPLAIN_H
