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

/// Names the format of a file that was given as a module, by its first bytes,
/// and a tool that makes a module of it; empty for MLIR and for unknown
/// formats.
std::string adviseOnModuleFile(llvm::StringRef bytes);

/// Advice on a path that was given as a module and leads to a folder, with the
/// command for its contents; empty if it leads to none.
std::string adviseOnModuleFolder(llvm::StringRef path);

/// Names the format of a file that was given as safetensors, by its first
/// bytes; empty if it is not known.
std::string adviseOnWeightFile(llvm::StringRef bytes);

/// Advice on a folder without safetensors: a bundle, or weights in another
/// format; else empty.
std::string adviseOnWeightFolder(llvm::StringRef folder);

/// How to lower a module to dialects that are taken here, by MLIR's messages
/// `messages`: the parser lacks a known importer's dialect or, if the module
/// `wasRead`, a pass names one of MLIR's own that importers make. Empty for
/// other messages.
std::string adviseOnDialects(llvm::StringRef messages, bool wasRead);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_COMPILER_FOREIGNINPUT_H
