//===- Kernels.cpp - bytes as kernels for the simulator -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Targets.h"

#include "DiffAttn/Testing/Simulator/Simulator.h"

#include "llvm/AsmParser/Parser.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/Verifier.h"
#include "llvm/Support/SourceMgr.h"

using namespace mlir::diffattn::fuzz;
using namespace mlir::diffattn::sim;

/// Runs every kernel of a module of LLVM IR in two blocks of 64 threads. Each
/// pointer is to 1 KiB of its own; whatever a kernel does beyond is in the
/// report, and never done.
bool mlir::diffattn::fuzz::simulateKernel(llvm::StringRef bytes) {
  // LLVM's lexer reads on to the zero behind a text.
  const std::string text = bytes.str();
  llvm::LLVMContext context;
  llvm::SMDiagnostic diagnostic;
  std::unique_ptr<llvm::Module> module =
      llvm::parseAssemblyString(text, diagnostic, context);
  if (!module || llvm::verifyModule(*module))
    return false;
  SimChip chip;
  chip.name = "sm_90";
  chip.capability = 90;
  auto made = Simulator::create(*module, chip);
  if (!made) {
    require(!llvm::toString(made.takeError()).empty(), "no message");
    return false;
  }
  Simulator &simulator = **made;
  bool launched = false;
  for (const std::string &kernel : simulator.getKernelNames()) {
    std::vector<std::vector<char>> buffers;
    std::vector<KernelArgument> arguments;
    for (const KernelParameter &parameter : simulator.getParameters(kernel)) {
      if (parameter.bytes > 8)
        return false; // a tensor map, which the host encodes
      if (!parameter.isPointer) {
        arguments.push_back({8, parameter.bytes});
        continue;
      }
      std::vector<char> &buffer = buffers.emplace_back(1024, '\1');
      arguments.push_back(KernelArgument::pointer(
          simulator.registerBuffer(buffer.data(), buffer.size(), "buffer")));
    }
    SimOptions options;
    options.maxSteps = 20'000;
    options.stackBytesPerThread = 64 << 10;
    auto report = simulator.launch(
        kernel, LaunchShape{{2, 1, 1}, {64, 1, 1}, 4096}, arguments, options);
    if (report)
      launched = true;
    else
      require(!llvm::toString(report.takeError()).empty(), "no message");
  }
  return launched;
}
