//===- Modules.cpp - bytes as modules of MLIR -----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Text alone: a reader of bytecode works in a process of its own, whose faults
// no fuzzer sees (docs/security.md).
//
//===----------------------------------------------------------------------===//
#include "Targets.h"

#include "CrashGuard.h"
#include "InputLimits.h"

#include "DiffAttn/Compiler/Compile.h"
#include "DiffAttn/InitAll.h"

#include "mlir/IR/Verifier.h"
#include "mlir/InitAllDialects.h"
#include "mlir/InitAllExtensions.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include "llvm/ADT/Hashing.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::fuzz;
using llvm::StringRef;
using llvm::Twine;

static const DialectRegistry &getRegistry() {
  static const DialectRegistry registry = [] {
    DialectRegistry made;
    mlir::registerAllDialects(made);
    mlir::registerAllExtensions(made);
    mlir::diffattn::registerAllDialects(made);
    mlir::diffattn::registerAllPasses();
    return made;
  }();
  return registry;
}

/// A context for the next module. To make one takes longer than most modules,
/// so 256 of them share one, which is then renewed, because it keeps each type
/// and attribute for good.
static std::shared_ptr<MLIRContext> getContext() {
  static std::shared_ptr<MLIRContext> context;
  static unsigned uses = 0;
  if (uses++ % 256 == 0) {
    context = std::make_shared<MLIRContext>(getRegistry(),
                                            MLIRContext::Threading::DISABLED);
    context->printOpOnDiagnostic(false);
  }
  return context;
}

namespace {
/// A module that was read within the limits that the compiler sets.
class ReadModule {
public:
  /// MLIR's lexer reads on to the zero behind a text.
  explicit ReadModule(const std::string &text)
      : context(getContext()),
        handler(context.get(), [](Diagnostic &) { return success(); }) {
    if (findTextBeyondLimits(text).empty())
      module = parseSourceString<ModuleOp>(text, context.get());
    if (module &&
        (failed(checkSizeLimits(*module)) || failed(checkCalls(*module))))
      module = nullptr;
  }

  explicit operator bool() const { return static_cast<bool>(module); }

  /// Runs passes; what they leave must verify and print.
  bool run(StringRef pipeline) {
    PassManager manager(context.get(), ModuleOp::getOperationName());
    manager.enableVerifier(false);
    require(succeeded(parsePassPipeline(pipeline, manager)),
            "expected a pipeline, but got " + pipeline);
    if (failed(manager.run(*module)))
      return false;
    (void)print();
    require(succeeded(verify(*module)), "no sound module after " + pipeline);
    return true;
  }

  std::string print() {
    std::string text;
    llvm::raw_string_ostream os(text);
    module->print(os);
    return text;
  }

private:
  std::shared_ptr<MLIRContext> context;
  ScopedDiagnosticHandler handler;
  OwningOpRef<ModuleOp> module;
};
} // namespace

static bool isBytecode(StringRef bytes) { return bytes.starts_with("ML\xefR"); }

bool mlir::diffattn::fuzz::printModule(StringRef bytes) {
  if (isBytecode(bytes))
    return false;
  ReadModule module(bytes.str());
  if (!module)
    return false;
  const std::string printed = module.print();
  ReadModule again(printed);
  require(again && again.print() == printed, "printed otherwise: " + printed);
  return true;
}

/// Compiles as users do, with a context of its own for each module.
bool mlir::diffattn::fuzz::compileModuleText(StringRef bytes) {
  if (isBytecode(bytes))
    return false;
  CompileOptions options;
  options.target = "cpu:avx2";
  auto out = emitStage(bytes, options, "llvm");
  if (out)
    return true;
  auto [errorClass, message] = describeError(out.takeError());
  require(errorClass == diffattn_rt::ErrorClass::IR ||
              errorClass == diffattn_rt::ErrorClass::Compile,
          "an error of another class: " + message);
  // Users are told of a crash; here it would hide one of ours.
  // The end, as a message also quotes what it was given.
  require(!StringRef(message).rtrim().ends_with(kCrashed), message);
  return false;
}

/// The pipelines that a module may be given to: those of the plugins.
static constexpr StringRef kPipelines[] = {
    "func.func(diffattn-fuse-differential)",
    "diffattn-import-weights",
    "func.func(diffattn-import-sizes)",
    "diffattn-import-builtins",
    "diffattn-unpack-sequences",
    "diffattn-gather-pages",
    "func.func(diffattn-to-online)",
    "diffattn-select-schedule{isa=avx512bf16}",
    "diffattn-select-gpu-schedule{chip=sm_90a}",
    "diffattn-decompose",
    "diffattn-split-kv",
    "convert-diffattn-to-vector",
    "convert-diffattn-to-gpu",
    "diffattn-bind-weights",
    "diffattn-merge-gemms",
    "func.func(diffattn-scalar-counters)",
    "diffattn-separate-results",
    "diffattn-mark-read-only-arguments",
    "func.func(diffattn-check-accesses)",
    "func.func(diffattn-reuse-buffers)",
    "diffattn-scope-arena",
    "diffattn-export-functions",
    "func.func(diffattn-expand-math)",
    "convert-linalg-to-gpu",
    "convert-diffattn-gemm-to-runtime",
    "convert-diffattn-weight-to-runtime",
    "convert-diffattn-alloc-to-runtime",
    "convert-diffattn-assert-to-runtime",
    "convert-diffattn-bits-to-bytes",
    "diffattn-verify-llvm",
    "convert-diffattn-constant-to-weight",
};

/// The first line is a pipeline of the list, or stands for any of them.
bool mlir::diffattn::fuzz::runPasses(StringRef bytes) {
  if (isBytecode(bytes))
    return false;
  auto [line, text] = bytes.split('\n');
  const StringRef *named = llvm::find(kPipelines, line);
  uint64_t sum = 0;
  for (char c : line)
    sum = sum * 31 + static_cast<unsigned char>(c);
  StringRef pipeline = named != std::end(kPipelines)
                           ? *named
                           : kPipelines[sum % std::size(kPipelines)];
  ReadModule module(text.str());
  return module && module.run(pipeline);
}

/// The bytes are the list of schedules of a forward and of a backward op, one
/// of which may take them; code is made of it then.
bool mlir::diffattn::fuzz::selectByHand(StringRef bytes) {
  constexpr StringRef forward[] = {R"(
!t = tensor<1x2x?x32xf32>
func.func @f(%q: !t, %k: !t, %v: !t, %l: tensor<f32>, %o: !t) -> !t {
  %0 = diffattn.attention ins(%q, %k, %q, %k, %v : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>)
      outs(%o : !t) {scale = 0.25 : f32, schedules = [)",
                                   R"(]} -> !t
  return %0 : !t
}
)"};
  constexpr StringRef half[] = {R"(
!t = tensor<1x2x40x64xbf16>
func.func @h(%q: !t, %k: !t, %v: !t, %l: tensor<f32>, %o: !t) -> !t {
  %0 = diffattn.attention ins(%q, %k, %q, %k, %v : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>)
      outs(%o : !t) {scale = 0.25 : f32, schedules = [)",
                                R"(]} -> !t
  return %0 : !t
}
)"};
  bool taken = false;
  for (const auto &[before, after] :
       {std::pair(forward[0], forward[1]), std::pair(half[0], half[1])}) {
    const std::string text = (before + bytes + after).str();
    ReadModule module(text);
    if (!module)
      continue;
    for (StringRef pipeline : {"diffattn-select-schedule{isa=avx2}",
                               "diffattn-select-gpu-schedule{chip=sm_90a}"})
      taken |= ReadModule(text).run(pipeline);
    module.run("diffattn-cpu-pipeline{isa=avx2}");
  }
  return taken;
}
