//===- SystemSymbols.h - functions of libc and libm -------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_COMPILER_SYSTEMSYMBOLS_H
#define DIFFATTN_LIB_COMPILER_SYSTEMSYMBOLS_H

#include "llvm/ADT/StringRef.h"

#include <optional>
#include <vector>

namespace mlir::diffattn {

/// A function of the system that compiled code may call, in the oldest version
/// that glibc for x86-64 has of it. The newest would tie the code to the
/// machine that it was linked on.
struct SystemSymbol {
  llvm::StringRef name;
  llvm::StringRef library; // libc.so.6 or libm.so.6
  llvm::StringRef version; // for example GLIBC_2.2.5
};

std::optional<SystemSymbol> findSystemSymbol(llvm::StringRef name);
std::vector<SystemSymbol> getSystemSymbols();

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_COMPILER_SYSTEMSYMBOLS_H
