//===- Versions.h - which versions run here ---------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_VERSIONS_H
#define DIFFATTN_COMPILER_VERSIONS_H

#include <string>

namespace mlir::diffattn {

/// One line a component: this project, MLIR, the GEMM library.
std::string getVersionText();

/// The machine as the compiler sees it: CPU, instruction sets, caches, threads.
std::string getMachineText();

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_VERSIONS_H
