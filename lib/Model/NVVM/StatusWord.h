//===- StatusWord.h - assertions about data in device memory -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_NVVM_STATUSWORD_H
#define DIFFATTN_LIB_MODEL_NVVM_STATUSWORD_H

#include "DeviceValues.h"

#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"

namespace mlir::diffattn::linalggpu {

/// Assertions in the bodies of `linalg.generic`s become assertions about all
/// turns, before the op.
void liftAssertions(func::FuncOp function);

/// The number that a failed `check` leaves in the status word, from 1.
int64_t getStatusCode(cf::AssertOp check);

/// Whether `op` clears a status word: what comes before that must not be left
/// out for what the word holds.
bool clearsStatus(Operation *op);

/// Numbers the assertions in `module` about values that are on the device
/// alone. The host continues as if they held. Public functions get a status
/// word, which they clear first and have `diffattn_rt_device_check` read at
/// their end; private ones get it as their last argument. Returns the words,
/// none if there is no such assertion.
FailureOr<DenseMap<func::FuncOp, Value>> addStatusWords(ModuleOp module);

} // namespace mlir::diffattn::linalggpu

#endif // DIFFATTN_LIB_MODEL_NVVM_STATUSWORD_H
