//===- ShapedBuilder.h - steps on tensors or on memrefs ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TRANSFORMS_SHAPEDBUILDER_H
#define DIFFATTN_LIB_TRANSFORMS_SHAPEDBUILDER_H

#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace mlir::diffattn {

/// Reads the operands of an op in either form.
struct ShapedBuilder : ImplicitLocOpBuilder {
  ShapedBuilder(Location loc, OpBuilder &builder, bool onTensors)
      : ImplicitLocOpBuilder(loc, builder), onTensors(onTensors) {}
  ShapedBuilder(OpBuilder &builder, Operation *op)
      : ShapedBuilder(op->getLoc(), builder, op->getNumResults() != 0) {}

  Value constant(int64_t number) {
    return arith::ConstantIndexOp::create(*this, number);
  }
  OpFoldResult size(Value shaped, int64_t axis) {
    return onTensors ? tensor::getMixedSize(*this, getLoc(), shaped, axis)
                     : memref::getMixedSize(*this, getLoc(), shaped, axis);
  }
  Value load(Value shaped, ValueRange indices) {
    if (onTensors)
      return tensor::ExtractOp::create(*this, shaped, indices);
    return memref::LoadOp::create(*this, shaped, indices);
  }
  /// An integer as an index.
  Value asIndex(Value integer) {
    return arith::IndexCastOp::create(*this, getIndexType(), integer);
  }

  const bool onTensors;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_TRANSFORMS_SHAPEDBUILDER_H
