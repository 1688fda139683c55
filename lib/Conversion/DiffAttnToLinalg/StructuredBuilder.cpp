//===- StructuredBuilder.cpp - linalg on tensors or on memrefs ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "StructuredBuilder.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Arith/Utils/Utils.h"
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

Value StructuredBuilder::sizeAsF32(Value shaped, int64_t axis) {
  OpFoldResult folded = size(shaped, axis);
  if (std::optional<int64_t> known = getConstantIntValue(folded))
    return arith::ConstantOp::create(
        builder, loc, builder.getF32FloatAttr(static_cast<float>(*known)));
  return arith::UIToFPOp::create(builder, loc, builder.getF32Type(),
                                 sizeAsI64(shaped, axis));
}

SmallVector<OpFoldResult> StructuredBuilder::sizes(Value shaped) {
  SmallVector<OpFoldResult> sizes;
  for (int64_t axis = 0, rank = cast<ShapedType>(shaped.getType()).getRank();
       axis < rank; ++axis)
    sizes.push_back(size(shaped, axis));
  return sizes;
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
  Value copy = empty(sizes(value));
  memref::CopyOp::create(builder, loc, value, copy);
  return copy;
}

Value StructuredBuilder::store(Value value, Value target) {
  // Also on tensors: a loop that carries the state keeps its buffer then.
  if (onTensors)
    return linalg::CopyOp::create(builder, loc, value, target).getResult(0);
  memref::CopyOp::create(builder, loc, value, target);
  return target;
}

OpFoldResult StructuredBuilder::ratio(OpFoldResult whole, OpFoldResult part) {
  std::optional<int64_t> a = getConstantIntValue(whole),
                         b = getConstantIntValue(part);
  if (a && b)
    return builder.getIndexAttr(*a / *b);
  return arith::DivUIOp::create(
             builder, loc, getValueOrCreateConstantIndexOp(builder, loc, whole),
             getValueOrCreateConstantIndexOp(builder, loc, part))
      .getResult();
}

OpFoldResult StructuredBuilder::wholeIfOne(OpFoldResult size,
                                           OpFoldResult whole) {
  if (std::optional<int64_t> known = getConstantIntValue(size))
    return *known == 1 ? whole : builder.getIndexAttr(1);
  Value one = arith::ConstantIndexOp::create(builder, loc, 1);
  Value isOne = arith::CmpIOp::create(
      builder, loc, arith::CmpIPredicate::eq,
      getValueOrCreateConstantIndexOp(builder, loc, size), one);
  return arith::SelectOp::create(
             builder, loc, isOne,
             getValueOrCreateConstantIndexOp(builder, loc, whole), one)
      .getResult();
}

bool StructuredBuilder::isAffine(const StructuredInput &input) const {
  auto type = cast<ShapedType>(input.value.getType());
  for (auto [i, axis] : llvm::enumerate(input.axes))
    if ((axis.group && !getConstantIntValue(axis.group)) ||
        (axis.mayBroadcast && type.isDynamicDim(i)))
      return false;
  return true;
}

/// The map of an affine input.
static AffineMap mapOf(OpBuilder &builder, unsigned loops,
                       const StructuredInput &input) {
  auto type = cast<ShapedType>(input.value.getType());
  SmallVector<AffineExpr> results;
  for (auto [i, axis] : llvm::enumerate(input.axes)) {
    if (axis.loop < 0 || (axis.mayBroadcast && type.getDimSize(i) == 1)) {
      results.push_back(builder.getAffineConstantExpr(0));
      continue;
    }
    AffineExpr place = builder.getAffineDimExpr(axis.loop);
    int64_t group = axis.group ? *getConstantIntValue(axis.group) : 1;
    results.push_back(axis.inner >= 0
                          ? place * group + builder.getAffineDimExpr(axis.inner)
                          : place.floorDiv(group));
  }
  return AffineMap::get(loops, 0, results, builder.getContext());
}

Value StructuredBuilder::load(ImplicitLocOpBuilder &b,
                              const StructuredInput &input,
                              ArrayRef<Value> sizes) {
  SmallVector<Value> places;
  Value zero = arith::ConstantIndexOp::create(b, 0),
        one = arith::ConstantIndexOp::create(b, 1);
  for (auto [i, axis] : llvm::enumerate(input.axes)) {
    if (axis.loop < 0) {
      places.push_back(zero);
      continue;
    }
    Value place = linalg::IndexOp::create(b, axis.loop);
    if (axis.group) {
      Value group = getValueOrCreateConstantIndexOp(b, b.getLoc(), axis.group);
      if (axis.inner >= 0)
        place = arith::AddIOp::create(b, arith::MulIOp::create(b, place, group),
                                      linalg::IndexOp::create(b, axis.inner));
      else
        place = arith::DivUIOp::create(b, place, group);
    }
    if (axis.mayBroadcast) {
      Value single =
          arith::CmpIOp::create(b, arith::CmpIPredicate::eq, sizes[i], one);
      place = arith::SelectOp::create(b, single, zero, place);
    }
    places.push_back(place);
  }
  if (onTensors)
    return tensor::ExtractOp::create(b, input.value, places);
  return memref::LoadOp::create(b, input.value, places);
}

/// Makes what `op` reads of its destination an input. Upstream's fusion keeps a
/// destination that is read, and a consumer with more loops than the op would
/// update it again and again.
static void readDestinationAsInput(linalg::GenericOp op) {
  const unsigned number = op.getNumDpsInputs();
  Block &body = *op.getBody();
  BlockArgument destination = body.getArgument(number);
  destination.replaceAllUsesWith(
      body.insertArgument(number, destination.getType(), op.getLoc()));
  SmallVector<AffineMap> maps = op.getIndexingMapsArray();
  maps.insert(maps.end() - 1, maps.back());
  op.getInputsMutable().append(op.getOutputs()[0]);
  op.setIndexingMapsAttr(OpBuilder(op).getAffineMapArrayAttr(maps));
}

Value StructuredBuilder::generic(ArrayRef<StructuredInput> inputs, Value out,
                                 ArrayRef<Axis> outAxes,
                                 ArrayRef<utils::IteratorType> loops,
                                 Body body) {
  SmallVector<Value> operands;
  SmallVector<AffineMap> maps;
  SmallVector<SmallVector<Value>> sizes(inputs.size());
  for (auto [i, input] : llvm::enumerate(inputs)) {
    if (isAffine(input)) {
      operands.push_back(input.value);
      maps.push_back(mapOf(builder, loops.size(), input));
      continue;
    }
    for (size_t axis = 0; axis < input.axes.size(); ++axis)
      sizes[i].push_back(getValueOrCreateConstantIndexOp(
          builder, loc, size(input.value, axis)));
  }
  maps.push_back(mapOf(builder, loops.size(), {out, llvm::to_vector(outAxes)}));
  auto build = [&](OpBuilder &nested, Location nestedLoc, ValueRange args) {
    ImplicitLocOpBuilder inner(nestedLoc, nested);
    SmallVector<Value> elements;
    unsigned next = 0;
    for (auto [i, input] : llvm::enumerate(inputs))
      elements.push_back(isAffine(input) ? args[next++]
                                         : load(inner, input, sizes[i]));
    elements.push_back(args[next]);
    linalg::YieldOp::create(nested, nestedLoc, body(inner, elements));
  };
  SmallVector<Type> results;
  if (onTensors)
    results.push_back(out.getType());
  auto op = linalg::GenericOp::create(builder, loc, results, operands,
                                      ValueRange{out}, maps, loops, build);
  if (onTensors && op.getNumParallelLoops() == op.getNumLoops() &&
      op.payloadUsesValueFromOperand(op.getDpsInitOperand(0)))
    readDestinationAsInput(op);
  return onTensors ? op.getResult(0) : out;
}

Value StructuredBuilder::sumGroups(Value value, ArrayRef<OpFoldResult> sizes,
                                   ArrayRef<OpFoldResult> groups) {
  const int64_t rank = static_cast<int64_t>(groups.size());
  SmallVector<StructuredInput> inputs = {{value, {}}};
  SmallVector<Axis> outAxes;
  SmallVector<utils::IteratorType> loops(rank, utils::IteratorType::parallel);
  for (auto [axis, group] : llvm::enumerate(groups)) {
    outAxes.push_back(axis);
    if (isConstantIntValue(group, 1)) {
      inputs[0].axes.push_back(axis);
      continue;
    }
    // Storage that is not read gives the loop over the group its size.
    const int64_t inner = static_cast<int64_t>(loops.size());
    loops.push_back(utils::IteratorType::reduction);
    inputs[0].axes.push_back(Axis::inGroup(axis, group, inner));
    inputs.push_back({empty({group}), {inner}});
  }
  if (inputs.size() == 1)
    return value;
  return generic(inputs, filled(sizes, 0.0f), outAxes, loops,
                 [](ImplicitLocOpBuilder &b, ValueRange args) -> Value {
                   return arith::AddFOp::create(b, args.back(), args.front());
                 });
}

void StructuredBuilder::freeTemporaries() {
  for (Value temporary : llvm::reverse(temporaries))
    memref::DeallocOp::create(builder, loc, temporary);
  temporaries.clear();
}
