//===- GpuToPtx.h - from a GPU module to PTX and cubin ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CODEGEN_NVVM_GPUTOPTX_H
#define DIFFATTN_CODEGEN_NVVM_GPUTOPTX_H

#include "DiffAttn/Codegen/NVVM/Ptxas.h"
#include "DiffAttn/Target/GpuTarget.h"

#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "llvm/IR/Module.h"

#include <memory>
#include <string>

namespace mlir::diffattn {

/// Checks that each launch in `module` names a kernel of it and passes
/// arguments of its types: the dialect does not, and a driver would read other
/// memory. Fails with a diagnostic at the launch.
LogicalResult checkLaunches(ModuleOp module);

/// The LLVM module of the kernels in `module`, with triple and data layout of
/// NVPTX. Every collective of a warp is marked convergent, which neither MLIR
/// nor LLVM 22 does for matrix instructions; so the module may be optimized.
/// Fails with a diagnostic at the module; also if a kernel calls a function
/// that is not in the module, such as one of a device library.
FailureOr<std::unique_ptr<llvm::Module>>
translateGpuModule(gpu::GPUModuleOp module, const GpuTarget &target,
                   llvm::LLVMContext &context);

/// Runs LLVM's O2 pipeline for `target`.
LogicalResult optimizeGpuModule(llvm::Module &module, const GpuTarget &target);

/// The PTX of `module`, as it is: optimize it first. Nothing, if NVPTX refuses
/// it.
FailureOr<std::string> emitPtx(llvm::Module &module, const GpuTarget &target);

/// Makes code of a chip from GPU kernels in three steps, each of which may be
/// the last: optimized LLVM IR, PTX, machine code. If LLVM or ptxas fails, it
/// stops with an error.
class DeviceCodeGenerator {
public:
  DeviceCodeGenerator(const GpuTarget &target, PtxasSearch search)
      : target(target), search(std::move(search)) {}

  /// The module's kernels as optimized LLVM IR in `context`. Fails after an
  /// error at the op that it is about.
  FailureOr<std::unique_ptr<llvm::Module>>
  makeLLVMIR(gpu::GPUModuleOp kernels, llvm::LLVMContext &context) const;
  llvm::Expected<std::string> makePtx(llvm::Module &kernels) const;
  llvm::Expected<Cubin> makeCubin(StringRef ptx) const;

  const GpuTarget &getTarget() const { return target; }

private:
  GpuTarget target;
  PtxasSearch search;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_CODEGEN_NVVM_GPUTOPTX_H
