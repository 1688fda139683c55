//===- WeightTable.h - the table of weights in the LLVM dialect -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_WEIGHTS_WEIGHTTABLE_H
#define DIFFATTN_LIB_MODEL_WEIGHTS_WEIGHTTABLE_H

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/BuiltinOps.h"

namespace mlir::diffattn {

/// Slots of the weights that `module` declares. Constants come after them.
int64_t getNumWeightSlots(ModuleOp module);

/// The declaration of the external table `diffattn_weights`, made if it is not
/// there yet. Whoever loads the object provides it.
LLVM::GlobalOp getOrDeclareWeightTable(ModuleOp module);

/// The address of slot `slot` (index), a `diffattn_weight` of the runtime.
Value emitWeightSlot(OpBuilder &builder, Location loc, LLVM::GlobalOp table,
                     Value slot);

/// The address of a `diffattn_weight` of the module's own for the constant
/// `name`, empty at first. The external function `diffattn_release_constants`,
/// made with the first of them, frees what the runtime keeps in them: whoever
/// loads the object calls it last.
Value emitConstantSlot(OpBuilder &builder, ModuleOp module, StringRef name);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_MODEL_WEIGHTS_WEIGHTTABLE_H
