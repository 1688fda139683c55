//===- Phase.cpp - one op as a part of a kernel -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Phase.h"

#include "mlir/Analysis/SliceAnalysis.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Transforms/RegionUtils.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace mlir::diffattn::linalggpu;

Phase::Phase(Operation *op, ArrayRef<scf::ForOp> enclosing)
    : op(op), enclosing(enclosing),
      loops(enclosing.size(), utils::IteratorType::parallel) {
  linalg::GenericOp generic = getGeneric();
  if (!generic)
    return;
  llvm::append_range(loops, generic.getIteratorTypesArray());
  for (OpOperand &operand : generic->getOpOperands()) {
    Access access;
    if (isa<MemRefType>(operand.get().getType())) {
      access.memref = operand.get();
      access.map =
          generic.getMatchingIndexingMap(&operand).shiftDims(enclosing.size());
      access.isWrite = generic.isDpsInit(&operand);
    }
    operands.push_back(access);
  }
}

bool Phase::isParallel() const {
  return llvm::all_of(loops, linalg::isParallelIterator);
}

bool Phase::readsOperand(unsigned number) const {
  return !getGeneric().getBody()->getArgument(number).use_empty();
}

SmallVector<Value> Phase::getScalars() const {
  llvm::SetVector<Value> values;
  if (auto store = dyn_cast<memref::StoreOp>(op)) {
    values.insert(store.getValue());
    values.insert(store.getIndices().begin(), store.getIndices().end());
  } else if (auto check = dyn_cast<cf::AssertOp>(op)) {
    values.insert(check.getArg());
  } else {
    getUsedValuesDefinedAbove(op->getRegions(), values);
    for (Value operand : op->getOperands())
      values.insert(operand);
  }
  return llvm::filter_to_vector(values.takeVector(), [](Value value) {
    return !isa<BaseMemRefType>(value.getType());
  });
}

/// The loads that `value` is computed from, where the host's code has them.
static void collectLoads(Value value, llvm::SetVector<Value> &memrefs,
                         llvm::SmallPtrSetImpl<Operation *> &seen) {
  Operation *op = value.getDefiningOp();
  if (!op || !seen.insert(op).second)
    return;
  if (auto load = dyn_cast<memref::LoadOp>(op))
    memrefs.insert(load.getMemRef());
  else if (!isPure(op))
    return;
  for (Value operand : op->getOperands())
    collectLoads(operand, memrefs, seen);
}

SmallVector<Access> Phase::getAccesses() const {
  SmallVector<Access> accesses;
  for (auto [i, access] : llvm::enumerate(operands)) {
    if (!access.memref)
      continue;
    if (!access.isWrite || readsOperand(i))
      accesses.push_back({access.memref, access.map, false});
    if (access.isWrite)
      accesses.push_back(access);
  }
  llvm::SetVector<Value> loaded;
  llvm::SmallPtrSet<Operation *, 16> seen;
  for (Value scalar : getScalars())
    collectLoads(scalar, loaded, seen);
  // Offsets of views may be data.
  for (const Access &access : operands)
    if (access.memref)
      collectLoads(access.memref, loaded, seen);
  op->walk([&](memref::LoadOp load) { loaded.insert(load.getMemRef()); });
  for (Value memref : loaded)
    accesses.push_back({memref, AffineMap(), false});
  if (auto store = dyn_cast<memref::StoreOp>(op)) {
    auto none = AffineMap::get(0, 0, op->getContext());
    bool whole = store.getIndices().empty();
    accesses.push_back(
        {store.getMemRef(), whole ? none : AffineMap(), /*isWrite=*/true});
  }
  return accesses;
}

std::optional<std::pair<Value, int64_t>> Phase::findSize(unsigned loop) const {
  std::optional<std::pair<Value, int64_t>> dynamicSize;
  for (const Access &access : operands) {
    if (!access.memref)
      continue;
    for (auto [axis, result] : llvm::enumerate(access.map.getResults())) {
      auto dim = dyn_cast<AffineDimExpr>(result);
      if (!dim || dim.getPosition() != loop)
        continue;
      auto type = cast<MemRefType>(access.memref.getType());
      if (!type.isDynamicDim(axis))
        return std::make_pair(access.memref, static_cast<int64_t>(axis));
      if (!dynamicSize)
        dynamicSize = {access.memref, static_cast<int64_t>(axis)};
    }
  }
  return dynamicSize;
}

/// Neutral element of `op`. Upstream's function counts the bits of the type,
/// which an index does not have: it is an i64 here.
static std::optional<TypedAttr> getNeutralElement(Operation *op) {
  if (!isa<IndexType>(op->getResult(0).getType()))
    return arith::getNeutralElement(op);
  auto number = [&](int64_t value) -> TypedAttr {
    return Builder(op->getContext()).getIndexAttr(value);
  };
  return llvm::TypeSwitch<Operation *, std::optional<TypedAttr>>(op)
      .Case<arith::AddIOp, arith::OrIOp, arith::XOrIOp, arith::MaxUIOp>(
          [&](auto) { return number(0); })
      .Case([&](arith::MulIOp) { return number(1); })
      .Case<arith::AndIOp, arith::MinUIOp>([&](auto) { return number(-1); })
      .Case([&](arith::MaxSIOp) {
        return number(std::numeric_limits<int64_t>::min());
      })
      .Case([&](arith::MinSIOp) {
        return number(std::numeric_limits<int64_t>::max());
      })
      .Default([](Operation *) { return std::nullopt; });
}

std::optional<Combiner> Phase::matchCombiner(unsigned number) const {
  linalg::GenericOp generic = getGeneric();
  Block *body = generic.getBody();
  BlockArgument carried = body->getArgument(generic.getNumDpsInputs() + number);
  llvm::SetVector<Operation *> forward;
  getForwardSlice(carried, &forward);
  Combiner combiner;
  Value value = body->getTerminator()->getOperand(number);
  while (value != carried) {
    Operation *op = value.getDefiningOp();
    if (!op || op->getBlock() != body || op->getNumOperands() != 2 ||
        op->getNumRegions() || !value.hasOneUse() ||
        (!combiner.chain.empty() &&
         op->getName() != combiner.chain.front()->getName()))
      return std::nullopt;
    auto carries = [&](Value operand) {
      return operand == carried || (operand.getDefiningOp() &&
                                    forward.contains(operand.getDefiningOp()));
    };
    bool left = carries(op->getOperand(0)), right = carries(op->getOperand(1));
    if (left == right)
      return std::nullopt;
    combiner.chain.push_back(op);
    value = op->getOperand(left ? 0 : 1);
  }
  if (combiner.chain.empty() || !carried.hasOneUse())
    return std::nullopt;
  std::optional<TypedAttr> neutral =
      ::getNeutralElement(combiner.chain.front());
  if (!neutral)
    return std::nullopt;
  // Unlike 0 this leaves a sum of negative zeros as it is.
  if (isa<arith::AddFOp>(combiner.chain.front()))
    neutral = FloatAttr::get(carried.getType(), -0.0);
  combiner.neutral = *neutral;
  combiner.type = carried.getType();
  // Sums of half precision are kept in single precision and rounded once.
  if (isa<FloatType>(combiner.type) &&
      combiner.type.getIntOrFloatBitWidth() < 32) {
    combiner.type = Float32Type::get(op->getContext());
    APFloat wide = cast<FloatAttr>(*neutral).getValue();
    bool inexact;
    wide.convert(APFloat::IEEEsingle(), APFloat::rmNearestTiesToEven, &inexact);
    combiner.neutral = FloatAttr::get(combiner.type, wide);
  }
  return combiner;
}

static SizeKey getSizeKey(Value memref, int64_t axis);

static SizeKey getSizeKey(OpFoldResult size) {
  if (std::optional<int64_t> constant = getConstantIntValue(size))
    return {nullptr, *constant};
  Value value = cast<Value>(size);
  if (auto dim = value.getDefiningOp<memref::DimOp>())
    if (std::optional<int64_t> axis = dim.getConstantIndex();
        axis && isa<MemRefType>(dim.getSource().getType()))
      return getSizeKey(dim.getSource(), *axis);
  return {value.getAsOpaquePointer(), -1};
}

static SizeKey getSizeKey(Value memref, int64_t axis) {
  auto type = cast<MemRefType>(memref.getType());
  if (!type.isDynamicDim(axis))
    return {nullptr, type.getDimSize(axis)};
  Operation *op = memref.getDefiningOp();
  if (auto alloc = dyn_cast_or_null<memref::AllocOp>(op))
    return getSizeKey(
        OpFoldResult(alloc.getDynamicSizes()[type.getDynamicDimIndex(axis)]));
  if (auto cast = dyn_cast_or_null<memref::CastOp>(op))
    if (isa<MemRefType>(cast.getSource().getType()))
      return getSizeKey(cast.getSource(), axis);
  if (auto expand = dyn_cast_or_null<memref::ExpandShapeOp>(op))
    return getSizeKey(expand.getMixedOutputShape()[axis]);
  if (auto view = dyn_cast_or_null<memref::SubViewOp>(op)) {
    llvm::SmallBitVector dropped = view.getDroppedDims();
    for (auto [i, size] : llvm::enumerate(view.getMixedSizes()))
      if (!dropped.test(i) && axis-- == 0)
        return getSizeKey(size);
  }
  return {memref.getAsOpaquePointer(), axis};
}

SmallVector<SizeKey> mlir::diffattn::linalggpu::getSizeKeys(const Phase &phase,
                                                            unsigned loop) {
  SmallVector<SizeKey> keys;
  for (const Access &access : phase.getOperands()) {
    if (!access.memref)
      continue;
    for (auto [axis, result] : llvm::enumerate(access.map.getResults()))
      if (auto dim = dyn_cast<AffineDimExpr>(result);
          dim && dim.getPosition() == loop)
        keys.push_back(getSizeKey(access.memref, axis));
  }
  return keys;
}
