//===- SourceModule.h - a module that others wrote --------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_COMPILER_SOURCEMODULE_H
#define DIFFATTN_LIB_COMPILER_SOURCEMODULE_H

#include "RunApart.h"

#include "DiffAttn/Compiler/Diagnostics.h"
#include "DiffAttn/Compiler/Error.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/Support/SourceMgr.h"

namespace mlir::diffattn {

/// A module with its context. Errors of MLIR are errors of these functions, and
/// so is a crash of MLIR, after which both are leaked.
class SourceModule {
public:
  /// `ir` is text or bytecode, and stays where it is.
  SourceModule(const DialectRegistry &registry, llvm::StringRef ir,
               std::string name);

  /// Reads the module and holds it to limits. MLIR's reader of bytecode writes
  /// where it should not, or counts for hours, if lengths in it are wrong. So a
  /// process of its own reads it first.
  llvm::Error parse(NoForks &noForks);

  /// Runs `action`; on failure or a crash, an error with the messages
  /// of MLIR. `leak` is called after a crash.
  llvm::Error guarded(diffattn_rt::ErrorClass errorClass,
                      const llvm::Twine &what,
                      llvm::function_ref<llvm::LogicalResult()> action,
                      llvm::function_ref<void()> leak = nullptr);

  MLIRContext &getContext() { return *context; }
  OwningOpRef<ModuleOp> &getModule() { return module; }
  CompileDiagnostics &getDiagnostics() { return diagnostics; }

private:
  /// Runs `action`, which adds to the text of its error.
  llvm::Error
  reported(diffattn_rt::ErrorClass errorClass, const llvm::Twine &what,
           llvm::function_ref<llvm::LogicalResult(std::string &)> action);
  llvm::Error readApart(NoForks &noForks);
  llvm::LogicalResult read();
  std::string getWhat() const { return name + ": expected a module of MLIR"; }

  llvm::StringRef ir;
  std::string name;
  /// Before the context, which adds remarks to it as long as it lives.
  CompileDiagnostics diagnostics;
  std::unique_ptr<MLIRContext> context;
  llvm::SourceMgr sources;
  OwningOpRef<ModuleOp> module;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_COMPILER_SOURCEMODULE_H
