//===- CrashGuard.h - crashes of upstream as errors -------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_COMPILER_CRASHGUARD_H
#define DIFFATTN_LIB_COMPILER_CRASHGUARD_H

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringRef.h"

namespace mlir::diffattn {

/// The error message for a crash.
inline constexpr llvm::StringLiteral kCrashed =
    "expected MLIR to report what it cannot take, but it crashed";

/// Runs `action`; false if it crashed. MLIR's parser and passes do so on some
/// modules that their verifiers let pass, and a process that compiles modules
/// of others must survive it. A crash leaves without destructors: objects that
/// `action` was changing must be leaked. While it runs, the process has
/// handlers for SIGSEGV, SIGABRT and the like; the previous ones return after.
bool runGuarded(llvm::function_ref<void()> action);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_COMPILER_CRASHGUARD_H
