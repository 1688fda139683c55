//===- StructuredBuilder.cpp - linalg on tensors or on memrefs ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "StructuredBuilder.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Dialect/Utils/StaticValueUtils.h"

using namespace mlir;
using namespace mlir::diffattn;

OpFoldResult StructuredBuilder::size(Value shaped, int64_t axis) {
  int64_t size = cast<ShapedType>(shaped.getType()).getDimSize(axis);
  if (ShapedType::isStatic(size))
    return builder.getIndexAttr(size);
  if (onTensors)
    return tensor::DimOp::create(builder, loc, shaped, axis).getResult();
  return memref::DimOp::create(builder, loc, shaped, axis).getResult();
}

Value StructuredBuilder::sizeAsI64(Value shaped, int64_t axis) {
  OpFoldResult folded = size(shaped, axis);
  if (std::optional<int64_t> known = getConstantIntValue(folded))
    return arith::ConstantIntOp::create(builder, loc, *known, 64);
  return arith::IndexCastOp::create(builder, loc, builder.getI64Type(),
                                    cast<Value>(folded));
}

Value StructuredBuilder::empty(ArrayRef<OpFoldResult> sizes) {
  Type f32 = builder.getF32Type();
  if (onTensors)
    return tensor::EmptyOp::create(builder, loc, sizes, f32);
  SmallVector<int64_t> shape;
  SmallVector<Value> dynamic;
  dispatchIndexOpFoldResults(sizes, dynamic, shape);
  temporaries.push_back(memref::AllocOp::create(
      builder, loc, MemRefType::get(shape, f32), dynamic));
  return temporaries.back();
}

Value StructuredBuilder::filled(ArrayRef<OpFoldResult> sizes, float value) {
  Value out = empty(sizes);
  Value scalar =
      arith::ConstantOp::create(builder, loc, builder.getF32FloatAttr(value));
  auto fill =
      linalg::FillOp::create(builder, loc, ValueRange{scalar}, ValueRange{out});
  return onTensors ? fill.getResult(0) : out;
}

Value StructuredBuilder::copyToUpdate(Value value) {
  if (onTensors)
    return value;
  SmallVector<OpFoldResult> sizes;
  for (int64_t axis = 0, rank = cast<ShapedType>(value.getType()).getRank();
       axis < rank; ++axis)
    sizes.push_back(size(value, axis));
  Value copy = empty(sizes);
  memref::CopyOp::create(builder, loc, value, copy);
  return copy;
}

Value StructuredBuilder::store(Value value, Value target) {
  if (onTensors)
    return value;
  memref::CopyOp::create(builder, loc, value, target);
  return target;
}

Value StructuredBuilder::generic(ArrayRef<StructuredInput> inputs, Value out,
                                 AffineMap outMap,
                                 ArrayRef<utils::IteratorType> loops,
                                 Body body) {
  SmallVector<Value> values;
  SmallVector<AffineMap> maps;
  for (const StructuredInput &input : inputs) {
    values.push_back(input.value);
    maps.push_back(input.map);
  }
  maps.push_back(outMap);
  auto build = [&](OpBuilder &nested, Location nestedLoc, ValueRange args) {
    ImplicitLocOpBuilder inner(nestedLoc, nested);
    linalg::YieldOp::create(nested, nestedLoc, body(inner, args));
  };
  SmallVector<Type> results;
  if (onTensors)
    results.push_back(out.getType());
  auto op = linalg::GenericOp::create(builder, loc, results, values,
                                      ValueRange{out}, maps, loops, build);
  return onTensors ? op.getResult(0) : out;
}

void StructuredBuilder::freeTemporaries() {
  for (Value temporary : llvm::reverse(temporaries))
    memref::DeallocOp::create(builder, loc, temporary);
  temporaries.clear();
}
