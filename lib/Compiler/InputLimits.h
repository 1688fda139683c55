//===- InputLimits.h - limits on modules that are read ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// MLIR's parser and printer call themselves once for each level of nesting, and
// LLVM ends the process when memory runs out. Both are bounded here, before
// either can happen. Text that makes the parser read from a wrong address is
// refused too.
//
#ifndef DIFFATTN_LIB_COMPILER_INPUTLIMITS_H
#define DIFFATTN_LIB_COMPILER_INPUTLIMITS_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Support/LLVM.h"
#include "llvm/ADT/StringRef.h"

#include <string>

namespace mlir::diffattn {

/// Checks MLIR text before it is parsed: at most 256 levels of brackets, of
/// minus signs and of aliases that stand for one another, aliases that stand
/// for at most a million parts, and properties of linalg's ops in braces. Empty
/// if the text keeps to that, else "expected ...".
std::string findTextBeyondLimits(llvm::StringRef text);

/// Checks the types and constants of a parsed module: integers of at most 128
/// bits, sizes whose bytes an i64 counts, vectors of at most 65536 elements,
/// constants of at most 1 GiB. Emits an error at the first op beyond that.
LogicalResult checkSizeLimits(ModuleOp module);

/// Checks that no function calls itself, also not by way of others: the depth
/// of the stack would have no bound. Emits an error at the first such call.
LogicalResult checkCalls(ModuleOp module);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_COMPILER_INPUTLIMITS_H
