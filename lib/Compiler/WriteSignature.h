//===- WriteSignature.h - a signature as JSON -------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_COMPILER_WRITESIGNATURE_H
#define DIFFATTN_LIB_COMPILER_WRITESIGNATURE_H

#include "DiffAttn/Runtime/Program/Signature.h"

#include "llvm/Support/JSON.h"

namespace mlir::diffattn {

/// Members of an object, as diffattn_rt::SignatureReader reads them: the
/// functions, and a declaration of a weight.
void writeFunctions(llvm::json::OStream &out,
                    const diffattn_rt::Signature &signature);
void writeWeight(llvm::json::OStream &out,
                 const diffattn_rt::WeightDeclaration &declared);

/// A whole signature, for diffattn_rt::parseSignature.
std::string writeSignature(const diffattn_rt::Signature &signature);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_COMPILER_WRITESIGNATURE_H
