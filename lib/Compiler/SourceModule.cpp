//===- SourceModule.cpp - a module that others wrote ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SourceModule.h"

#include "CrashGuard.h"
#include "ForeignInput.h"
#include "InputLimits.h"
#include "TruthConstants.h"

#include "DiffAttn/Runtime/Support/Printable.h"

#include "mlir/Bytecode/BytecodeReader.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Parser/Parser.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;

/// Far more than sound bytecode was seen to take.
static ApartLimits getReadLimits(size_t bytes) {
  const auto size = static_cast<int64_t>(bytes);
  const int64_t seconds = 10 + size / 1'000'000;
  return {seconds, /*bytes=*/(int64_t(1) << 30) + 256 * size,
          /*elapsed=*/60 * seconds};
}

SourceModule::SourceModule(const DialectRegistry &registry, llvm::StringRef ir,
                           std::string name)
    : ir(ir), name(std::move(name)),
      context(std::make_unique<MLIRContext>(registry,
                                            MLIRContext::Threading::DISABLED)) {
  // A kernel is thousands of ops, and messages have lines.
  context->printOpOnDiagnostic(false);
}

/// Cuts long lines of MLIR's messages, which quote whole lines of the source.
static std::string clipLines(llvm::StringRef text) {
  constexpr size_t kMaxColumns = 1000;
  std::string clipped;
  for (llvm::StringRef line : llvm::split(text, '\n')) {
    clipped += line.take_front(kMaxColumns);
    clipped += line.size() > kMaxColumns ? " ...\n" : "\n";
  }
  clipped.pop_back();
  return clipped;
}

llvm::Error SourceModule::reported(
    ErrorClass errorClass, const Twine &what,
    llvm::function_ref<LogicalResult(std::string &)> action) {
  std::string text;
  llvm::raw_string_ostream os(text);
  SourceMgrDiagnosticHandler handler(sources, context.get(), os);
  // Asked before the other one, which writes what an error is to show.
  ScopedDiagnosticHandler keep(
      context.get(), [&](mlir::Diagnostic &diagnostic) {
        if (diagnostic.getSeverity() != DiagnosticSeverity::Error)
          diagnostics.push_back(describeDiagnostic(diagnostic));
        return failure();
      });
  if (succeeded(action(text)))
    return llvm::Error::success();
  text = printable(clipLines(text), Lines::Keep);
  if (std::string advice =
          adviseOnDialects(text, /*wasRead=*/errorClass != ErrorClass::IR);
      !advice.empty())
    text += (text.empty() || text.back() == '\n' ? "" : "\n") + advice;
  return makeError(errorClass, what + (text.empty() ? "" : "\n" + text));
}

llvm::Error SourceModule::guarded(ErrorClass errorClass, const Twine &what,
                                  llvm::function_ref<LogicalResult()> action,
                                  llvm::function_ref<void()> leak) {
  return reported(errorClass, what, [&](std::string &text) {
    bool done = false;
    if (!runGuarded([&] { done = succeeded(action()); })) {
      // In the middle of a change: neither can be destroyed.
      (void)module.release();
      (void)context.release();
      if (leak)
        leak();
      done = false;
      text += kCrashed;
    }
    return success(done);
  });
}

LogicalResult SourceModule::read() {
  module = parseSourceFile<ModuleOp>(sources, ParserConfig(context.get()));
  return success(module && succeeded(checkSizeLimits(*module)) &&
                 succeeded(checkCalls(*module)));
}

llvm::Error SourceModule::readApart(NoForks &noForks) {
  noForks.pause();
  // Nothing where all is well.
  auto error = runApart(getReadLimits(ir.size()), [&] {
    llvm::Error error = reported(ErrorClass::IR, getWhat(),
                                 [&](std::string &) { return read(); });
    return error ? describeError(std::move(error)).second : std::string();
  });
  noForks.resume();
  if (!error) {
    auto [errorClass, message] = describeError(error.takeError());
    return makeError(errorClass, getWhat() + "\n" + message);
  }
  return error->empty() ? llvm::Error::success()
                        : makeError(ErrorClass::IR, *error);
}

llvm::Error SourceModule::parse(NoForks &noForks) {
  if (std::string advice = adviseOnModuleFile(ir); !advice.empty())
    return makeError(ErrorClass::IR, getWhat() + ", but got " + advice);
  const bool isText = !isBytecode(llvm::MemoryBufferRef(ir, name));
  if (std::string fault = isText ? findTextBeyondLimits(ir) : "";
      !fault.empty())
    return makeError(ErrorClass::IR, name + ": " + fault);
  sources.AddNewSourceBuffer(
      isText
          ? llvm::MemoryBuffer::getMemBufferCopy(packTruthConstants(ir), name)
          : llvm::MemoryBuffer::getMemBufferCopy(ir, name),
      {});
  if (!isText)
    if (llvm::Error error = readApart(noForks))
      return error;
  return guarded(ErrorClass::IR, getWhat(), [&] { return read(); });
}
