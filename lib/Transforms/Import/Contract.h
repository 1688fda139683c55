//===- Contract.h - names of attributes that importers set ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The names of attributes by which an importer states facts of a module that is
// in upstream dialects. docs/spec.md says what each means (import_c1 to _c10).
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TRANSFORMS_IMPORT_CONTRACT_H
#define DIFFATTN_LIB_TRANSFORMS_IMPORT_CONTRACT_H

#include "llvm/ADT/StringRef.h"

namespace mlir::diffattn::import {

/// Attribute of an argument: the name of the weight that it is.
constexpr llvm::StringLiteral kWeight = "diffattn.weight";
/// Attribute of an argument: the function may write to its memory.
constexpr llvm::StringLiteral kWritable = "diffattn.writable";
/// Attribute of an argument: names or numbers of its sizes.
constexpr llvm::StringLiteral kSize = "diffattn.size";
/// Attribute of a declaration: the opaque op that its calls stand for.
constexpr llvm::StringLiteral kBuiltin = "diffattn.builtin";
/// Attribute of a declaration: the options of that op.
constexpr llvm::StringLiteral kOptions = "diffattn.options";

} // namespace mlir::diffattn::import

#endif // DIFFATTN_LIB_TRANSFORMS_IMPORT_CONTRACT_H
