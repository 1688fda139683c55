//===- CompiledProgram.h - compiled code, ready to run ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_COMPILEDPROGRAM_H
#define DIFFATTN_COMPILER_COMPILEDPROGRAM_H

#include "DiffAttn/Compiler/Compile.h"
#include "DiffAttn/Compiler/Device.h"
#include "DiffAttn/Compiler/WeightFiles.h"
#include "DiffAttn/Runtime/Program/Program.h"

#include <memory>

struct diffattn_weight;

namespace mlir::diffattn {

/// A compiled module in memory with its weights.
class CompiledProgram final : public diffattn_rt::Program {
public:
  /// Links the object, and opens the device that it is for. Fails if this CPU
  /// cannot run code for the target, or if there is no such device.
  static llvm::Expected<std::unique_ptr<CompiledProgram>>
  load(CompiledModule module, llvm::StringRef target,
       const CudaLibraries &libraries = {});
  ~CompiledProgram() override;

  const diffattn_rt::Signature &getSignature() const override;
  diffattn_rt::DeviceProgram *getDevice() const override;

  /// Called between tensors with bytes done and bytes in all; false stops.
  using Progress = diffattn_rt::DeviceProgram::Progress;

  /// Finds every declared weight by name. Weights of the declared type and
  /// order stay in the mapped file, others are converted once.
  llvm::Error bindWeights(const WeightFiles &files,
                          const Progress &progress = nullptr);
  bool hasWeights() const;

private:
  struct Impl;
  explicit CompiledProgram(std::unique_ptr<Impl> impl);

  diffattn_rt::Failure checkReady() const override;
  diffattn_rt::EntryPoint
  getEntryPoint(const diffattn_rt::FunctionSignature &function) const override;
  std::pair<std::string, std::string> describeNoDevice() const override;

  std::unique_ptr<Impl> impl;
};

/// The tensors of the weights that `signature` declares, one for each slot of
/// the table, checked against the declarations.
llvm::Expected<std::vector<const FileTensor *>>
findWeights(const diffattn_rt::Signature &signature, const WeightFiles &files);

/// The failure where a module declares weights and no files were named.
diffattn_rt::Failure missWeightFiles(const diffattn_rt::Signature &signature);

/// Finds them and fills `slots`; converted copies are kept in `owned`.
llvm::Error bindWeightSlots(const diffattn_rt::Signature &signature,
                            const WeightFiles &files,
                            const CompiledProgram::Progress &progress,
                            std::vector<diffattn_weight> &slots,
                            std::vector<diffattn_rt::HostArray> &owned);

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_COMPILEDPROGRAM_H
