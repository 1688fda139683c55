//===- diffattn-reduce.cpp - test case reducer ----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "../CrashMessage.h"
#include "../EntryPoints.h"
#include "../StandardStreams.h"

#include "DiffAttn/InitAll.h"

#include "mlir/IR/Diagnostics.h"
#include "mlir/InitAllDialects.h"
#include "mlir/InitAllExtensions.h"
#include "mlir/InitAllPasses.h"
#include "mlir/Tools/mlir-reduce/MlirReduceMain.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

/// The file that `-o` names; "-" without one. MLIR keeps the option to itself.
static llvm::StringRef findOutput(llvm::ArrayRef<char *> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    llvm::StringRef text = arguments[i];
    if (!text.consume_front("-"))
      continue;
    text.consume_front("-");
    if (text == "o" && i + 1 < arguments.size())
      return arguments[i + 1];
    if (text.consume_front("o="))
      return text;
  }
  return "-";
}

/// The error for a file that cannot be written, which MLIR does not report.
static std::error_code findFault(llvm::StringRef path) {
  namespace fs = llvm::sys::fs;
  if (path == "-")
    return {};
  if (fs::is_directory(path))
    return std::make_error_code(std::errc::is_a_directory);
  llvm::StringRef folder = llvm::sys::path::parent_path(path);
  return fs::access(fs::exists(path) ? path
                    : folder.empty() ? "."
                                     : folder,
                    fs::AccessMode::Write);
}

int diffattn_reduce_main(int argc, char **argv) {
  mlir::diffattn::guardStandardStreams({"diffattn-reduce: error: ", 1});
  mlir::diffattn::reportCrashes(argv[0]);
  mlir::diffattn::endWithoutReader();
  mlir::registerAllPasses();
  mlir::diffattn::registerAllPasses();
  mlir::DialectRegistry registry;
  mlir::registerAllDialects(registry);
  mlir::registerAllExtensions(registry);
  mlir::diffattn::registerAllDialects(registry);
  mlir::MLIRContext context(registry);
  // MLIR's default handler prints errors alone; a module that the test does not
  // find interesting gives a warning.
  context.getDiagEngine().registerHandler([](mlir::Diagnostic &diagnostic) {
    if (diagnostic.getSeverity() != mlir::DiagnosticSeverity::Warning)
      return mlir::failure();
    llvm::errs() << diagnostic.getLocation() << ": warning: " << diagnostic
                 << "\n";
    return mlir::success();
  });
  if (mlir::succeeded(mlir::mlirReduceMain(argc, argv, context)))
    return 0;
  const llvm::StringRef output = findOutput(llvm::ArrayRef(argv, argc));
  if (std::error_code fault = findFault(output))
    llvm::errs() << "diffattn-reduce: error: " << output
                 << ": expected to write the file, but got: " << fault.message()
                 << "\n";
  return 1;
}
