//===- QuantizedBuilder.cpp - code that reads quantized weights -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "QuantizedBuilder.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::diffattn;

static QuantizedGemmSchedule scheduleOf(const QuantizedGemmSpec &spec) {
  return selectQuantizedGemmSchedule(spec.target, spec.bits, spec.group);
}

QuantizedBuilder::QuantizedBuilder(Location loc, const QuantizedGemmSpec &spec)
    : KernelBuilder(loc, spec.target, scheduleOf(spec).lanes), spec(spec),
      schedule(scheduleOf(spec)), parts(8 / spec.bits), unit(parts * lanes) {}

static Value constantOf(KernelBuilder &b, int32_t value) {
  return arith::ConstantOp::create(
      b, DenseElementsAttr::get(b.integers, b.getI32IntegerAttr(value)));
}

/// Four bits as f32 by a permutation of the numbers that they can be: one
/// instruction, which looks at the four low bits of each index.
static Value lookUp(KernelBuilder &b, Value indices) {
  SmallVector<float> numbers;
  for (int i = 0; i < 16; ++i)
    numbers.push_back(static_cast<float>(i < 8 ? i : i - 16));
  Value table = arith::ConstantOp::create(
      b, DenseElementsAttr::get(b.vector, ArrayRef<float>(numbers)));
  return LLVM::CallIntrinsicOp::create(
             b, b.vector, b.getStringAttr("llvm.x86.avx512.permvar.sf.512"),
             ValueRange{table, indices})
      .getResults();
}

SmallVector<Value> QuantizedBuilder::loadUnit(Value base, Value index) {
  Value bytes = load(VectorType::get({lanes}, i8), base, i8, index);
  Value wide = arith::ExtSIOp::create(*this, integers, bytes);
  auto toFloat = [&](Value value) -> Value {
    return arith::SIToFPOp::create(*this, vector, value);
  };
  if (spec.bits == 8)
    return {toFloat(wide)};
  Value high = arith::ShRSIOp::create(*this, wide, constantOf(*this, 4));
  if (target.has("avx512f") && lanes == 16)
    return {lookUp(*this, wide), lookUp(*this, high)};
  Value low = arith::ShRSIOp::create(
      *this, arith::ShLIOp::create(*this, wide, constantOf(*this, 28)),
      constantOf(*this, 28));
  return {toFloat(low), toFloat(high)};
}

SmallVector<Value> QuantizedBuilder::toUnit(SmallVector<Value> inOrder) {
  if (parts == 1)
    return inOrder;
  SmallVector<Value> result;
  for (int64_t part : {0, 1}) {
    SmallVector<int64_t> lanesOfPart;
    for (int64_t i = 0; i < lanes; ++i)
      lanesOfPart.push_back(2 * i + part);
    result.push_back(
        vector::ShuffleOp::create(*this, inOrder[0], inOrder[1], lanesOfPart));
  }
  return result;
}

SmallVector<Value> QuantizedBuilder::fromUnit(SmallVector<Value> unit) {
  if (parts == 1)
    return unit;
  SmallVector<Value> result;
  for (int64_t half : {0, 1}) {
    SmallVector<int64_t> order;
    for (int64_t i = half * lanes / 2; i < (half + 1) * lanes / 2; ++i)
      order.append({i, lanes + i});
    result.push_back(vector::ShuffleOp::create(*this, unit[0], unit[1], order));
  }
  return result;
}

static StringRef shortName(Type type) {
  return type.isF32() ? "f32" : type.isF16() ? "f16" : "bf16";
}

std::string QuantizedBuilder::nameOf(StringRef kind) const {
  return kernelName(kind + "_" + shortName(spec.aType) + "_i" +
                    Twine(spec.bits) + "g" + Twine(spec.group) + "_" +
                    shortName(spec.cType) + (spec.accumulate ? "_add" : ""));
}

void QuantizedBuilder::callItems(ModuleOp module, LLVM::LLVMFuncOp item,
                                 Value rowsOfB, Value depth, ValueRange slots,
                                 Value maxThreads) {
  const auto count = static_cast<int64_t>(slots.size());
  Value context = LLVM::AllocaOp::create(*this, pointer, i64, index(count + 2),
                                         /*alignment=*/8);
  for (auto [slot, value] : llvm::enumerate(slots))
    store(value, context, i64, index(static_cast<int64_t>(slot)));
  // Items of about the same number of bytes, whatever the length of a row; all
  // but the last have whole tiles.
  Value rowBytes = max(bytesOf(depth), index(1));
  Value rows = roundUp(max(div(index(schedule.itemBytes), rowBytes), index(1)),
                       schedule.columns);
  store(rowsOfB, context, i64, index(count));
  store(rows, context, i64, index(count + 1));
  Value items = div(add(rowsOfB, sub(rows, index(1))), rows);
  Value address = LLVM::AddressOfOp::create(*this, item);
  LLVM::CallOp::create(
      *this, getRuntimeFunction(module, RuntimeFunction::parallel_for),
      ValueRange{address, context, items, index(0), maxThreads});
}

QuantizedBuilder::Item QuantizedBuilder::readItem(Value context, Value index,
                                                  TypeRange types) {
  Item item;
  for (auto [slot, type] : llvm::enumerate(types))
    item.slots.push_back(
        load(type, context, i64, this->index(static_cast<int64_t>(slot))));
  const auto count = static_cast<int64_t>(types.size());
  Value rowsOfB = load(i64, context, i64, this->index(count)),
        rows = load(i64, context, i64, this->index(count + 1));
  item.first = mul(index, rows);
  item.last = min(add(item.first, rows), rowsOfB);
  return item;
}
