//===- GpuKernelModule.cpp - the module of kernels ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/NVVM/GpuKernelModule.h"

#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace mlir::diffattn;

gpu::GPUModuleOp
mlir::diffattn::getOrCreateKernelModule(ModuleOp module,
                                        const GpuTarget &target) {
  static constexpr StringLiteral kName = "diffattn_kernels";
  if (auto known = module.lookupSymbol<gpu::GPUModuleOp>(kName))
    return known;
  auto b = OpBuilder::atBlockBegin(module.getBody());
  auto kernels = gpu::GPUModuleOp::create(b, module.getLoc(), kName);
  module->setAttr(gpu::GPUDialect::getContainerModuleAttrName(),
                  b.getUnitAttr());
  kernels.setTargetsAttr(b.getArrayAttr(NVVM::NVVMTargetAttr::get(
      b.getContext(), 2, "nvptx64-nvidia-cuda", target.chip,
      "+ptx" + std::to_string(target.ptxVersion))));
  return kernels;
}

bool mlir::diffattn::hasDependentLaunch(gpu::GPUModuleOp module) {
  ArrayAttr targets = module.getTargetsAttr();
  auto chip = targets && targets.size() == 1
                  ? dyn_cast<NVVM::NVVMTargetAttr>(targets[0])
                  : NVVM::NVVMTargetAttr();
  std::string error;
  std::optional<GpuTarget> target =
      chip ? getGpuTarget(chip.getChip(), error) : std::nullopt;
  return target && target->hasDependentLaunch;
}
