//===- Codegen.h - from LLVM IR to machine code -----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_COMPILER_CODEGEN_H
#define DIFFATTN_LIB_COMPILER_CODEGEN_H

#include "DiffAttn/Compiler/ReadSignature.h"

namespace llvm {
class Module;
} // namespace llvm

namespace mlir::diffattn {

enum class CodegenOutput { LLVMIR, Assembly, Object };

/// Adds a function of one type for each function of the signature, with the
/// name of `getEntryPointName`: it takes an array of pointers to the arguments
/// of the function's C interface and, last, to its result.
llvm::Error addEntryPoints(llvm::Module &module,
                           const diffattn_rt::Signature &signature);

/// Optimizes `module` for `isa` and generates position-independent code; with
/// `quick` almost without optimizations.
llvm::Expected<std::string> generateCode(llvm::Module &module,
                                         llvm::StringRef isa,
                                         CodegenOutput output, bool quick);

/// CPU and features that code for `isa` is generated for.
struct CodegenCpu {
  std::string cpu, features;
};
CodegenCpu getCodegenCpu(llvm::StringRef isa);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_COMPILER_CODEGEN_H
