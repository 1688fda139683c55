//===- RuntimeFunctions.h - the runtime that code calls ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Everything here is made from the declarations of Runtime/ABI: no other file
// of the compiler spells a function, a struct or a number of the runtime.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIMECALLS_RUNTIMEFUNCTIONS_H
#define DIFFATTN_RUNTIMECALLS_RUNTIMEFUNCTIONS_H

#include "DiffAttn/Runtime/ABI/Table.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/BuiltinOps.h"

#include <optional>

namespace mlir::diffattn {

/// A function that compiled code may call: `gemm` is diffattn_rt_gemm,
/// `device_gemm` diffattn_rt_device_gemm.
enum class RuntimeFunction {
#define DIFFATTN_ROW(name) name,
  DIFFATTN_RT_TABLE(DIFFATTN_ROW) DIFFATTN_RT_LATER_TABLE(DIFFATTN_ROW)
#undef DIFFATTN_ROW
#define DIFFATTN_ROW(name) device_##name,
      DIFFATTN_RT_DEVICE_TABLE(DIFFATTN_ROW)
#undef DIFFATTN_ROW
};

StringRef getRuntimeFunctionName(RuntimeFunction function);

/// Whether a function of the runtime has that name.
bool isRuntimeFunctionName(StringRef name);

/// The type of its C declaration.
LLVM::LLVMFunctionType getRuntimeFunctionType(MLIRContext *context,
                                              RuntimeFunction function);

/// The declaration in `module`, made if it is not there yet. Fails, with an
/// error, if the module has something else under the name.
FailureOr<LLVM::LLVMFuncOp>
getOrDeclareRuntimeFunction(OpBuilder &builder, Operation *module,
                            RuntimeFunction function);

/// Fails, with an error at `module`, unless `threads` is a number of threads
/// that loops can request of the runtime; 0 leaves their number to it.
LogicalResult verifyThreads(Operation *module, int64_t threads);

/// A slot of the table of weights: diffattn_weight.
LLVM::LLVMStructType getWeightSlotType(MLIRContext *context);

/// The number of an element type (diffattn_dtype): index is i64, and integers
/// without a sign are signed. None for types that arrays cannot have.
std::optional<int32_t> getElementTypeCode(Type type);

} // namespace mlir::diffattn

#endif // DIFFATTN_RUNTIMECALLS_RUNTIMEFUNCTIONS_H
