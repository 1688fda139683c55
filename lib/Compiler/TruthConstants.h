//===- TruthConstants.h - truth values of newer MLIR ------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_COMPILER_TRUTHCONSTANTS_H
#define DIFFATTN_LIB_COMPILER_TRUTHCONSTANTS_H

#include "llvm/ADT/StringRef.h"

#include <string>

namespace mlir::diffattn {

/// MLIR text with its constants of truth values in hexadecimal, `dense<"0x...">
/// : tensor<...xi1>`, as this MLIR reads them: eight to a byte, the first one
/// in the lowest bit. Importers are built with a newer MLIR, which writes a
/// byte for each. Other text stays as it is, also constants whose length fits
/// neither.
std::string packTruthConstants(llvm::StringRef text);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_COMPILER_TRUTHCONSTANTS_H
