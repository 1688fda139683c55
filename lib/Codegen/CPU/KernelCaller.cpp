//===- KernelCaller.cpp - the calling side of kernels ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "KernelCaller.h"

#include "mlir/Interfaces/FunctionInterfaces.h"

using namespace mlir;
using namespace mlir::diffattn;

Value KernelCaller::packContext(Operation *op, ArrayRef<Value> values) {
  Value context;
  {
    // At the function's entry, so that an op in a loop takes its memory once.
    OpBuilder::InsertionGuard guard(b);
    auto function = op->getParentOfType<FunctionOpInterface>();
    b.setInsertionPointToStart(&function.getFunctionBody().front());
    context =
        LLVM::AllocaOp::create(b, b.pointer, b.i64, b.index(values.size() + 1),
                               /*alignment=*/8);
  }
  for (auto [slot, value] : llvm::enumerate(values))
    b.store(value, context, b.i64, b.index(slot));
  return context;
}

LLVM::CallOp KernelCaller::callRuntime(RuntimeFunction callee,
                                       ValueRange arguments) {
  auto function = b.getRuntimeFunction(module, callee);
  return LLVM::CallOp::create(b, function, arguments);
}

void KernelCaller::withMemory(Value context, int64_t slot, Value bytes,
                              function_ref<void()> body) {
  Value mark = callRuntime(RuntimeFunction::mark, {}).getResult();
  Value memory = callRuntime(RuntimeFunction::alloc, bytes).getResult();
  b.store(memory, context, b.i64, b.index(slot));
  body();
  callRuntime(RuntimeFunction::release, mark);
}

void KernelCaller::parallelFor(LLVM::LLVMFuncOp body, Value context,
                               Value count, Value scratch) {
  Value address = LLVM::AddressOfOp::create(b, body);
  callRuntime(RuntimeFunction::parallel_for,
              {address, context, count, scratch, b.index(threads)});
}

Value KernelCaller::getThreads() {
  if (threads > 0)
    return b.index(threads);
  return callRuntime(RuntimeFunction::threads, {}).getResult();
}
