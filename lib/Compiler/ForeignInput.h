//===- ForeignInput.h - input of other tools, and the way here --*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_COMPILER_FOREIGNINPUT_H
#define DIFFATTN_LIB_COMPILER_FOREIGNINPUT_H

#include "llvm/ADT/StringRef.h"

#include <string>

namespace mlir::diffattn {

/// What a file that was given as a module is, as its first bytes say, and what
/// makes a module of it; empty for MLIR and for what is not known.
std::string adviseOnModuleFile(llvm::StringRef bytes);

/// The same for a path that leads to a folder, and the command for what the
/// folder holds; empty if it leads to none.
std::string adviseOnModuleFolder(llvm::StringRef path);

/// The same for a file that was given as safetensors.
std::string adviseOnWeightFile(llvm::StringRef bytes);

/// The same for a folder without safetensors: a bundle, or weights in another
/// format.
std::string adviseOnWeightFolder(llvm::StringRef folder);

/// What lowers a module to dialects that are taken here, if MLIR's parser
/// `said` that it lacks a known importer's, or a pass of a module that
/// `wasRead` speaks of one of MLIR's own that importers make; else empty.
std::string adviseOnDialects(llvm::StringRef said, bool wasRead);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_COMPILER_FOREIGNINPUT_H
