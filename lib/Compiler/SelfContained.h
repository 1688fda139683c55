//===- SelfContained.h - a shared object's needs of a system ----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_COMPILER_SELFCONTAINED_H
#define DIFFATTN_LIB_COMPILER_SELFCONTAINED_H

#include "DiffAttn/Compiler/Error.h"

namespace mlir::diffattn {

/// Reads the dynamic section of the shared object `elf` and checks that it
/// needs no library but libc.so.6 and libm.so.6, no symbol of theirs above
/// GLIBC_2.28, and no relocation of its code.
llvm::Error checkSelfContained(llvm::StringRef elf);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_COMPILER_SELFCONTAINED_H
