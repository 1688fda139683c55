//===- LlvmErrors.h - the first error of an LLVM module ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CODEGEN_LLVMERRORS_H
#define DIFFATTN_CODEGEN_LLVMERRORS_H

#include "llvm/IR/DiagnosticHandler.h"
#include "llvm/IR/DiagnosticInfo.h"
#include "llvm/IR/DiagnosticPrinter.h"
#include "llvm/Support/raw_ostream.h"

#include <string>

namespace mlir::diffattn {

/// Keeps the first error that LLVM reports for a module, as for an inline
/// assembly in it: functions that were inlined repeat it. By default it would
/// be printed, and end the process.
class KeepLlvmError final : public llvm::DiagnosticHandler {
public:
  explicit KeepLlvmError(std::string &error) : error(error) {}
  bool handleDiagnostics(const llvm::DiagnosticInfo &info) override {
    if (info.getSeverity() != llvm::DS_Error)
      return false;
    if (!error.empty())
      return true;
    llvm::raw_string_ostream stream(error);
    llvm::DiagnosticPrinterRawOStream printer(stream);
    info.print(printer);
    return true;
  }

private:
  std::string &error;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_CODEGEN_LLVMERRORS_H
