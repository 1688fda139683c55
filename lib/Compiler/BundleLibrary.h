//===- BundleLibrary.h - compiled code as a shared object -------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_COMPILER_BUNDLELIBRARY_H
#define DIFFATTN_LIB_COMPILER_BUNDLELIBRARY_H

#include "DiffAttn/Compiler/Bundle.h"

namespace mlir::diffattn {

/// Links the object of `module` into a shared object that needs libc and libm
/// alone; what it calls of the runtime goes through the table that its init
/// function is given (DiffAttn/Runtime/ABI/Table.h). Errors are of class
/// Compile.
llvm::Expected<std::string> linkBundleLibrary(const CompiledModule &module,
                                              const LinkerSearch &search);

/// SHA-256 as 64 hexadecimal digits in lower case.
std::string sha256Text(llvm::StringRef bytes);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_COMPILER_BUNDLELIBRARY_H
