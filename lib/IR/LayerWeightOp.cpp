//===- LayerWeightOp.cpp - diffattn.layer_weight --------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/Dialect/MLProgram/IR/MLProgram.h"

using namespace mlir;
using namespace mlir::diffattn;

LogicalResult LayerWeightOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto global = symbols.lookupNearestSymbolFrom<ml_program::GlobalOp>(
      *this, getPatternAttr());
  if (!global) // layer_weight_c1
    return emitOpError() << "expected " << getPatternAttr()
                         << " to name an ml_program.global, but found none";
  if (!getPattern().contains("{}")) // layer_weight_c2
    return emitOpError() << "expected the name of the weight to hold {} for "
                            "the layer, but got "
                         << getPatternAttr();
  if (global.getType() != getResult().getType()) // layer_weight_c3
    return emitOpError() << "expected the type of the global, "
                         << global.getType() << ", but got "
                         << getResult().getType();
  return success();
}
