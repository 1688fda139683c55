//===- Harness.h - kernels as text, launched in one line --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_TESTING_SIMULATOR_HARNESS_H
#define DIFFATTN_UNITTESTS_TESTING_SIMULATOR_HARNESS_H

#include "DiffAttn/Testing/Simulator/Simulator.h"

#include "llvm/AsmParser/Parser.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/SourceMgr.h"
#include "gtest/gtest.h"

namespace mlir::diffattn::sim {

/// Fixture for kernels that are written as LLVM IR.
class SimulatorTest : public ::testing::Test {
protected:
  /// Compiles `text`, which needs no declarations of intrinsics' attributes.
  /// Returns the error's text, or "".
  std::string compile(const std::string &text, SimChip chip = {}) {
    llvm::SMDiagnostic diagnostic;
    simulator.reset();
    std::unique_ptr<llvm::Module> module =
        llvm::parseAssemblyString(text, diagnostic, context);
    if (!module) {
      std::string message;
      llvm::raw_string_ostream os(message);
      diagnostic.print("kernel", os);
      return message;
    }
    return compileModule(*module, chip);
  }

  std::string compileModule(const llvm::Module &module, SimChip chip = {}) {
    simulator.reset();
    auto made = Simulator::create(module, chip);
    if (!made)
      return llvm::toString(made.takeError());
    simulator = std::move(*made);
    return "";
  }

  template <typename T>
  KernelArgument buffer(std::vector<T> &data, llvm::StringRef name,
                        BufferUse use = {}) {
    return KernelArgument::pointer(simulator->registerBuffer(
        data.data(), data.size() * sizeof(T), name, use));
  }

  /// Launches kernel @k.
  LaunchReport launch(const LaunchShape &shape,
                      llvm::ArrayRef<KernelArgument> arguments,
                      const SimOptions &options = {}) {
    auto report = simulator->launch("k", shape, arguments, options);
    if (report)
      return std::move(*report);
    ADD_FAILURE() << llvm::toString(report.takeError());
    return {};
  }

  /// Launches one block of `threads` threads.
  LaunchReport launch(uint32_t threads,
                      llvm::ArrayRef<KernelArgument> arguments,
                      const SimOptions &options = {}) {
    return launch(LaunchShape{{1, 1, 1}, {threads, 1, 1}, 0}, arguments,
                  options);
  }

  llvm::LLVMContext context;
  std::unique_ptr<Simulator> simulator;
};

/// `text` with every `from` replaced by `to`; it must be there.
inline std::string replaced(std::string text, const std::string &from,
                            const std::string &to) {
  size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  for (; at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_UNITTESTS_TESTING_SIMULATOR_HARNESS_H
