//===- DiffAttn.h - the dialect, its attributes and ops ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_DIFFATTN_H
#define DIFFATTN_IR_DIFFATTN_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/DestinationStyleOpInterface.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "mlir/Interfaces/TilingInterface.h"

#include "DiffAttn/IR/DiffAttnDialect.h.inc"

#include "DiffAttn/IR/DiffAttnEnums.h.inc"

#define GET_ATTRDEF_CLASSES
#include "DiffAttn/IR/DiffAttnAttrs.h.inc"

#define GET_OP_CLASSES
#include "DiffAttn/IR/DiffAttnOps.h.inc"

namespace mlir::diffattn {
/// Attaches the bufferization of the dialect's ops.
void registerBufferizableOpInterfaceExternalModels(DialectRegistry &registry);
} // namespace mlir::diffattn

#endif // DIFFATTN_IR_DIFFATTN_H
