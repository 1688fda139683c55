//===- PtxasFolders.h - where an assembler may lie --------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TOOLS_DIFFATTN_RUN_PTXASFOLDERS_H
#define DIFFATTN_TOOLS_DIFFATTN_RUN_PTXASFOLDERS_H

#include <string>
#include <vector>

namespace mlir::diffattn {

/// Folders to look for ptxas in, beside those of PATH: that of $CUDA_HOME, the
/// CUDA Toolkit's usual one, and those of the Python environment of the set-up
/// ($DIFFATTN_VENV, else .venv beside the build folder that this tool lies in).
std::vector<std::string> getPtxasFolders();

/// The folders of Python packages of that environment.
std::vector<std::string> getPackageFolders();

} // namespace mlir::diffattn

#endif // DIFFATTN_TOOLS_DIFFATTN_RUN_PTXASFOLDERS_H
