//===- Program.h - compiled code, ready to run ------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_PROGRAM_H
#define DIFFATTN_COMPILER_PROGRAM_H

#include "DiffAttn/Compiler/Compile.h"
#include "DiffAttn/Compiler/Device.h"
#include "DiffAttn/Compiler/WeightFiles.h"
#include "DiffAttn/Runtime/Program/ReplayedCall.h"

#include <functional>
#include <memory>

struct diffattn_weight;

namespace mlir::diffattn {

/// A compiled module in memory with its weights.
class Program {
public:
  /// Links the object, and opens the device that it is for. Fails if this CPU
  /// cannot run code for the target, or if there is no such device.
  static llvm::Expected<std::unique_ptr<Program>>
  load(CompiledModule module, llvm::StringRef target,
       const CudaLibraries &libraries = {});
  ~Program();

  const diffattn_rt::Signature &getSignature() const;

  /// Called between tensors with bytes done and bytes in all; false stops.
  using Progress = std::function<bool(int64_t done, int64_t total)>;

  /// Finds every declared weight by name. Weights of the declared type and
  /// order stay in the mapped file, others are converted once.
  llvm::Error bindWeights(const WeightFiles &files,
                          const Progress &progress = nullptr);
  bool hasWeights() const;

  /// What the program has on its device; null for code of the CPU.
  diffattn_rt::DeviceProgram *getDevice() const;

  /// Calls a public function. `threads` 0: the runtime's default. One call of a
  /// program at a time.
  llvm::Expected<std::vector<diffattn_rt::CallResult>>
  call(llvm::StringRef entry, llvm::ArrayRef<diffattn_rt::ArrayView> args,
       int64_t threads = 0);

  /// A call of a public function that is captured once, of a program on a
  /// device. To be ended before the program.
  llvm::Expected<std::unique_ptr<diffattn_rt::ReplayedCall>>
  replay(llvm::StringRef entry, llvm::ArrayRef<diffattn_rt::ArrayView> args);

  /// Checks arguments as `call` does, without a call.
  llvm::Error checkArguments(llvm::StringRef entry,
                             llvm::ArrayRef<diffattn_rt::ArrayView> args) const;

private:
  struct Impl;
  explicit Program(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl;
};

/// The tensors of the weights that `signature` declares, one for each slot of
/// the table, checked against the declarations.
llvm::Expected<std::vector<const FileTensor *>>
findWeights(const diffattn_rt::Signature &signature, const WeightFiles &files);

/// The error where a module declares weights and no files were named.
llvm::Error missWeightFiles(const diffattn_rt::Signature &signature);

/// Finds them and fills `slots`; converted copies are kept in `owned`.
llvm::Error bindWeightSlots(const diffattn_rt::Signature &signature,
                            const WeightFiles &files,
                            const Program::Progress &progress,
                            std::vector<diffattn_weight> &slots,
                            std::vector<diffattn_rt::HostArray> &owned);

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_PROGRAM_H
