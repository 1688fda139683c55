//===- raise-and-compare.cpp - is what raising writes what it read? -------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Reads many modules, raises each, interprets it before and after, and prints
// a line for each: `SEED VERDICT DETAIL`. Before a module it prints
// `SEED begins`, so that a crash has a name. test/python/fuzz/raising_fuzz
// drives it.
//
//===----------------------------------------------------------------------===//
#include "Comparison.h"
#include "GivenInputs.h"

#include "DiffAttn/InitAll.h"
#include "DiffAttn/Model/Pipelines/Pipelines.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Verifier.h"
#include "mlir/InitAllDialects.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/InitLLVM.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::fuzz;

static llvm::cl::opt<std::string>
    inputFile(llvm::cl::Positional, llvm::cl::desc("modules to compare"),
              llvm::cl::init("-"));
static llvm::cl::opt<bool>
    printModules("print", llvm::cl::desc("print each module after raising"));

namespace {
/// Contexts keep the constants of all modules that they have seen.
constexpr size_t casesPerContext = 250;

Verdict check(const Case &given, MLIRContext &context) {
  std::string message;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    if (message.empty())
      message = diagnostic.str();
    return success();
  });
  OwningOpRef<ModuleOp> module =
      parseSourceString<ModuleOp>(given.text, ParserConfig(&context));
  if (!module)
    return {"invalid", message};
  OwningOpRef<ModuleOp> raised(module->clone());
  PassManager pm(&context);
  PipelineOptions options;
  buildPipeline(pm, options, Stage::Raised);
  if (failed(pm.run(*raised)))
    return {"fault", "raising fails: " + message};
  if (printModules)
    raised->print(llvm::outs());
  return compare(given, *module, *raised);
}
} // namespace

int main(int argc, char **argv) {
  llvm::InitLLVM init(argc, argv);
  llvm::cl::ParseCommandLineOptions(argc, argv, "compares raised modules\n");
  auto buffer = llvm::MemoryBuffer::getFileOrSTDIN(inputFile);
  if (!buffer) {
    llvm::errs() << inputFile << ": " << buffer.getError().message() << "\n";
    return 1;
  }
  DialectRegistry registry;
  mlir::registerAllDialects(registry);
  mlir::diffattn::registerAllDialects(registry);
  std::unique_ptr<MLIRContext> context;
  for (auto [number, given] :
       llvm::enumerate(splitCases((*buffer)->getBuffer()))) {
    if (number % casesPerContext == 0)
      context = std::make_unique<MLIRContext>(registry,
                                              MLIRContext::Threading::DISABLED);
    llvm::outs() << given.seed << " begins\n";
    llvm::outs().flush();
    Verdict verdict = check(given, *context);
    llvm::replace(verdict.detail, '\n', ' ');
    llvm::outs() << given.seed << " " << verdict.kind << " " << verdict.detail
                 << "\n";
    llvm::outs().flush();
  }
  return 0;
}
