//===- TileBuilder.cpp - tiles of a matrix unit in memory -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "TileBuilder.h"

#include "mlir/Dialect/AMX/AMXDialect.h"
#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;

static Value toIndex(KernelBuilder &b, Value value) {
  return arith::IndexCastOp::create(b, b.getIndexType(), value);
}

/// AMX ops address memrefs: one of unknown size from `base` on.
Value TileBuilder::memory(Value base, Type element) {
  auto type = MemRefType::get({ShapedType::kDynamic}, element);
  auto one = LLVM::LLVMArrayType::get(b.i64, 1);
  auto descriptor = LLVM::LLVMStructType::getLiteral(
      b.getContext(), {b.pointer, b.pointer, b.i64, one, one});
  Value value = LLVM::PoisonOp::create(b, descriptor);
  auto set = [&](Value field, ArrayRef<int64_t> position) {
    value = LLVM::InsertValueOp::create(b, value, field, position);
  };
  set(base, {0});
  set(base, {1});
  set(b.index(0), {2});
  set(b.index(std::numeric_limits<int64_t>::max()), {3, 0});
  set(b.index(1), {4, 0});
  return UnrealizedConversionCastOp::create(b, type, value).getResult(0);
}

static amx::TileType getSumsType(KernelBuilder &b,
                                 int64_t columns = kTileLanes) {
  return amx::TileType::get({kTileRows, columns}, b.f32);
}

Value TileBuilder::loadFactor(Value base, Value stride, int64_t rows,
                              int64_t numbers) {
  auto type = amx::TileType::get({rows, numbers}, number);
  return amx::TileLoadOp::create(b, type, memory(base, number),
                                 toIndex(b, b.index(0)), toIndex(b, stride));
}

Value TileBuilder::loadSums(Value base, Value stride) {
  return amx::TileLoadOp::create(b, getSumsType(b), memory(base, b.f32),
                                 toIndex(b, b.index(0)), toIndex(b, stride));
}

Value TileBuilder::zeroSums(int64_t columns) {
  return amx::TileZeroOp::create(b, getSumsType(b, columns));
}

Value TileBuilder::multiplyAdd(Value a, Value pairs, Value sums) {
  return amx::TileMulFOp::create(b, sums.getType(), a, pairs, sums);
}

void TileBuilder::storeSums(Value sums, Value base, Value stride) {
  amx::TileStoreOp::create(b, memory(base, b.f32), toIndex(b, b.index(0)), sums,
                           toIndex(b, stride));
}

Value TileBuilder::integer(int64_t value) {
  return arith::ConstantOp::create(
      b, DenseElementsAttr::get(b.integers, APInt(32, value)));
}

// A bf16 is the upper half of an f32. Instructions that round to the nearest
// even one take as long as these, put their results in another order, and are
// not on every CPU that emulates tiles.
Value TileBuilder::makePairs(Value first, Value second) {
  assert(number.isBF16() && "expected numbers that are halves of f32");
  auto rounded = [&](Value x) -> Value {
    return arith::AddIOp::create(b, arith::BitcastOp::create(b, b.integers, x),
                                 integer(0x8000));
  };
  Value low = arith::ShRUIOp::create(b, rounded(first), integer(16));
  Value high = rounded(second), upper = integer(0xFFFF0000);
  if (!b.target.has("avx512f"))
    return arith::OrIOp::create(b, low, arith::AndIOp::create(b, high, upper));
  // Seen as a shuffle of halves, both would be one instruction of three steps.
  constexpr int32_t kLowOrHighAndUpper = 0xF8;
  Value table =
      arith::ConstantOp::create(b, b.getI32IntegerAttr(kLowOrHighAndUpper));
  return LLVM::CallIntrinsicOp::create(
             b, b.integers, b.getStringAttr("llvm.x86.avx512.pternlog.d.512"),
             ValueRange{low, high, upper, table})
      .getResult(0);
}

std::pair<Value, Value> TileBuilder::splitPairs(Value pairs) {
  assert(number.isBF16() && "expected numbers that are halves of f32");
  Value low = arith::ShLIOp::create(b, pairs, integer(16));
  Value high = arith::AndIOp::create(b, pairs, integer(0xFFFF0000));
  return {arith::BitcastOp::create(b, b.vector, low),
          arith::BitcastOp::create(b, b.vector, high)};
}

void mlir::diffattn::packTileRows(KernelBuilder &b, const TileSource &source,
                                  Value count, Value depth, Value panel) {
  Type i16 = b.getI16Type();
  VectorType halves = VectorType::get({kTileLanes}, i16);
  Value zero = arith::ConstantOp::create(b, b.getZeroAttr(halves));
  Value columns = source.columns;
  Value whole = b.mul(b.div(columns, kTileLanes), kTileLanes);
  Value mask = b.firstLanes(b.sub(columns, whole), kTileLanes);
  b.loop(b.index(0), b.mul(b.roundUp(count, kTileRows), depth), kTileLanes,
         [&](Value at) { b.store(zero, panel, i16, at); });
  b.loop(count, [&](Value row) {
    Value from = source.rowOf(row);
    Value to = b.at(panel, i16, b.mul(row, depth));
    if (source.columnStride) {
      b.loop(columns, [&](Value c) {
        Value at = b.mul(c, source.columnStride);
        b.store(b.load(i16, from, i16, at), to, i16, c);
      });
      return;
    }
    b.loop(b.index(0), whole, kTileLanes,
           [&](Value c) { b.store(b.load(halves, from, i16, c), to, i16, c); });
    b.ifThen(b.less(whole, columns), [&] {
      b.store(b.loadMasked(halves, from, whole, mask), to, i16, whole);
    });
  });
}
