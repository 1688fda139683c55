//===- CheckLaunches.cpp - launches against the kernels they name ---------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/NVVM/GpuToPtx.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/BuiltinOps.h"

using namespace mlir;
using namespace mlir::diffattn;

/// Whether a value of type `given` has the bits that a parameter of type
/// `taken` is made of.
static bool fits(Type given, Type taken) {
  return given == taken || (isa<IndexType>(given) && taken.isInteger(64));
}

LogicalResult mlir::diffattn::checkLaunches(ModuleOp module) {
  WalkResult walk =
      module.walk([&](gpu::LaunchFuncOp launch) {
        auto kernels =
            module.lookupSymbol<gpu::GPUModuleOp>(launch.getKernelModuleName());
        auto kernel =
            kernels
                ? kernels.lookupSymbol<LLVM::LLVMFuncOp>(launch.getKernelName())
                : LLVM::LLVMFuncOp();
        if (!kernel) {
          launch.emitOpError()
              << "expected an llvm.func of a gpu.module to launch, "
                 "but got "
              << launch.getKernelAttr();
          return WalkResult::interrupt();
        }
        ArrayRef<Type> taken = kernel.getFunctionType().getParams();
        OperandRange given = launch.getKernelOperands();
        if (taken.size() != given.size()) {
          launch.emitOpError()
              << "expected " << taken.size() << " arguments of "
              << launch.getKernelAttr() << ", but got " << given.size();
          return WalkResult::interrupt();
        }
        for (auto [i, operand, type] : llvm::enumerate(given, taken))
          if (!fits(operand.getType(), type)) {
            launch.emitOpError()
                << "expected " << type << " as argument " << i << " of "
                << launch.getKernelAttr() << ", but got " << operand.getType();
            return WalkResult::interrupt();
          }
        return WalkResult::advance();
      });
  return failure(walk.wasInterrupted());
}
