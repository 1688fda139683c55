//===- KernelCaller.h - the calling side of kernels -------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_KERNELCALLER_H
#define DIFFATTN_LIB_CODEGEN_CPU_KERNELCALLER_H

#include "DiffAttn/Codegen/CPU/KernelBuilder.h"

namespace mlir::diffattn {

/// Emits the context, the memory and the parallel loops of kernels' calls.
class KernelCaller {
public:
  /// `threads`: at most so many; 0: as many as the runtime has.
  KernelCaller(KernelBuilder &b, ModuleOp module, int64_t threads)
      : b(b), module(module), threads(threads) {}

  /// Stores `values` into memory of the frame of the function that `op` is in,
  /// which has one slot more. Returns its address.
  Value packContext(Operation *op, ArrayRef<Value> values);

  /// `body` with memory of `bytes`, whose address is in slot `slot`.
  void withMemory(Value context, int64_t slot, Value bytes,
                  function_ref<void()> body);

  /// Calls `body`, (context: ptr, index: i64, scratch: ptr), for each index
  /// below `count`, with `scratch` bytes for each thread.
  void parallelFor(LLVM::LLVMFuncOp body, Value context, Value count,
                   Value scratch);

  /// The most threads that a loop gets, i64.
  Value getThreads();

  KernelBuilder &b;
  const ModuleOp module;

private:
  LLVM::CallOp callRuntime(RuntimeFunction callee, ValueRange arguments);

  int64_t threads;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_KERNELCALLER_H
