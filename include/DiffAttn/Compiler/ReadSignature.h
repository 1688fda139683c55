//===- ReadSignature.h - arguments and results of a module ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_READSIGNATURE_H
#define DIFFATTN_COMPILER_READSIGNATURE_H

#include "DiffAttn/Compiler/Error.h"
#include "DiffAttn/Runtime/Program/Signature.h"

#include "llvm/ADT/StringRef.h"

namespace mlir {
class ModuleOp;
} // namespace mlir

namespace mlir::diffattn {

/// The function called `name`, or an error that names the functions there are.
llvm::Expected<const diffattn_rt::FunctionSignature *>
getFunction(const diffattn_rt::Signature &signature, llvm::StringRef name);

/// Reads the signature of a module of tensor IR, before it is lowered.
llvm::Expected<diffattn_rt::Signature> readSignature(ModuleOp module);

/// Reads the weights alone: those that are bound already, and those of globals.
llvm::Expected<std::vector<diffattn_rt::WeightDeclaration>>
readWeights(ModuleOp module);

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_READSIGNATURE_H
