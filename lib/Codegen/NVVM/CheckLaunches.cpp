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

/// Whether a value of type `argument` has the bits that a parameter of type
/// `parameter` is made of.
static bool fits(Type argument, Type parameter) {
  return argument == parameter ||
         (isa<IndexType>(argument) && parameter.isInteger(64));
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
        ArrayRef<Type> parameters = kernel.getFunctionType().getParams();
        OperandRange arguments = launch.getKernelOperands();
        if (parameters.size() != arguments.size()) {
          launch.emitOpError()
              << "expected " << parameters.size() << " arguments of "
              << launch.getKernelAttr() << ", but got " << arguments.size();
          return WalkResult::interrupt();
        }
        for (auto [i, operand, type] : llvm::enumerate(arguments, parameters))
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
