//===- PairedNumbers.cpp - layouts of pairs of 16 bits --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PairedNumbers.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::diffattn;

bool PairedNumbers::takesTypes(const AttentionSpec &spec) const {
  auto isOfNumbers = [&](const SpecOperand &operand) {
    return operand.element == numberType(operand.element.getContext());
  };
  return spec.scores.scale > 0.0f && isOfNumbers(spec.v) &&
         llvm::all_of(spec.maps(), [&](int map) {
           return isOfNumbers(spec.queriesOf(map)) &&
                  isOfNumbers(spec.keysOf(map));
         });
}

bool PairedNumbers::takes(const AttentionSpec &spec) const {
  return takesTypes(spec) && spec.v.hasUnitColumns() &&
         llvm::all_of(spec.maps(), [&](int map) {
           return spec.keysOf(map).hasUnitColumns();
         });
}

Value PairedNumbers::interleave(KernelBuilder &b, Value first, Value second) {
  return vector::BitCastOp::create(
      b, b.integers, vector::InterleaveOp::create(b, first, second));
}

Value PairedNumbers::loadFirst(KernelBuilder &b, Value base,
                               Value index) const {
  Type i16 = b.getI16Type();
  Value half = b.load(i16, base, i16, b.mul(index, 2));
  return arith::ExtUIOp::create(b, b.i32, half);
}

Value PairedNumbers::loadRow(KernelBuilder &b, Value row, Type element,
                             Value index, Value mask) const {
  VectorType halves = VectorType::get({2 * b.lanes}, b.getI16Type());
  Value pairs = mask ? b.loadMasked(halves, row, index, mask)
                     : b.load(halves, row, element, index);
  return vector::BitCastOp::create(b, b.integers, pairs);
}

void PairedNumbers::packQuery(KernelBuilder &b,
                              const PackedQuery &query) const {
  Type i16 = b.getI16Type();
  auto load = [&](Value c) {
    return b.load(i16, query.from, i16, b.mul(c, query.columnStride));
  };
  auto store = [&](Value pair, Value low, Value high) {
    low = arith::ExtUIOp::create(b, b.i32, low);
    high = arith::ShLIOp::create(
        b, arith::ExtUIOp::create(b, b.i32, high),
        arith::ConstantOp::create(b, b.getI32IntegerAttr(16)));
    b.store(arith::OrIOp::create(b, low, high), query.to, b.i32,
            b.mul(pair, query.stride));
  };
  Value whole = b.div(query.columns, 2);
  b.loop(whole, [&](Value pair) {
    Value c = b.mul(pair, 2);
    store(pair, load(c), load(b.add(c, 1)));
  });
  Value nothing = arith::ConstantOp::create(b, b.getI16IntegerAttr(0));
  Value pairs = b.ceilDiv(query.columns, 2);
  b.loop(whole, pairs, 1,
         [&](Value pair) { store(pair, load(b.mul(pair, 2)), nothing); });
  if (multiple > 1)
    b.loop(pairs, b.roundUp(pairs, multiple), 1,
           [&](Value pair) { store(pair, nothing, nothing); });
}

/// 0 where the bits of a number of type `number` are Inf or NaN.
static Value keepFinite(KernelBuilder &b, Type number, Value halves) {
  auto type = cast<VectorType>(halves.getType());
  // Inf has all bits of the exponent and no others.
  llvm::APInt infinity =
      llvm::APFloat::getInf(cast<FloatType>(number).getFloatSemantics())
          .bitcastToAPInt();
  Value exponent =
      arith::ConstantOp::create(b, DenseElementsAttr::get(type, infinity));
  Value isFinite = arith::CmpIOp::create(
      b, arith::CmpIPredicate::ne, arith::AndIOp::create(b, halves, exponent),
      exponent);
  return b.select(isFinite, halves,
                  arith::ConstantOp::create(b, b.getZeroAttr(type)));
}

void PairedNumbers::packValues(KernelValues &v, const SpecOperand &operand,
                               Value base, Value first, Value n, Value width,
                               Value panel, Value panelStride,
                               bool finite) const {
  KernelBuilder &b = v.b;
  Type number = getNumber(b);
  VectorType halves = VectorType::get({b.lanes}, b.getI16Type());
  Value zeros = arith::ConstantOp::create(b, b.getZeroAttr(halves));
  Value stride = v.stride(operand, 2);
  Value whole = b.mul(b.div(width, b.lanes), b.lanes);
  Value tail = b.sub(width, whole);
  bool hasTail = KernelBuilder::known(tail) != 0;
  Value mask = b.firstLanes(tail);
  auto pack = [&](Value pair, bool isLast) {
    Value row = b.at(base, number, b.mul(b.add(first, b.mul(pair, 2)), stride));
    Value next = isLast ? Value() : b.at(row, number, stride);
    Value to = b.at(panel, b.i32, b.mul(pair, panelStride));
    auto columns = [&](Value c, Value mask) {
      auto load = [&](Value from) -> Value {
        if (!from)
          return zeros;
        Value loaded = mask ? b.loadMasked(halves, from, c, mask)
                            : b.load(halves, from, number, c);
        return finite ? keepFinite(b, number, loaded) : loaded;
      };
      b.store(interleave(b, load(row), load(next)), to, b.i32, c);
    };
    b.loop(b.index(0), whole, b.lanes, [&](Value c) { columns(c, Value()); });
    if (hasTail)
      b.ifThen(b.less(whole, width), [&] { columns(whole, mask); });
  };
  Value pairs = b.div(n, 2);
  b.loop(pairs, [&](Value pair) { pack(pair, /*isLast=*/false); });
  Value rows = b.ceilDiv(n, 2);
  b.loop(pairs, rows, 1, [&](Value pair) { pack(pair, /*isLast=*/true); });
  if (multiple == 1)
    return;
  Value zero = arith::ConstantOp::create(b, b.getZeroAttr(b.integers));
  b.loop(rows, b.roundUp(rows, multiple), 1, [&](Value pair) {
    Value to = b.at(panel, b.i32, b.mul(pair, panelStride));
    b.loop(b.index(0), panelStride, b.lanes,
           [&](Value c) { b.store(zero, to, b.i32, c); });
  });
}

SmallVector<Value> PairedNumbers::loadColumns(KernelBuilder &b, Value row,
                                              Type element, Value stride,
                                              Value column, int64_t vectors,
                                              Value mask) const {
  // Two vectors of columns side by side, where there are two, fill one of
  // numbers.
  auto getWide = [&](int64_t i) { return i + 1 < vectors ? 2 : 1; };
  SmallVector<Value> loaded[2], values;
  for (int64_t which : {0, 1}) {
    for (int64_t i = 0; i < vectors; i += 2) {
      VectorType halves =
          VectorType::get({getWide(i) * b.lanes}, b.getI16Type());
      Value c = b.add(column, i * b.lanes);
      loaded[which].push_back(mask ? b.loadMasked(halves, row, c, mask)
                                   : b.load(halves, row, element, c));
    }
    row = b.at(row, element, stride);
    b.keepOrder();
  }
  for (auto [step, first] : llvm::enumerate(loaded[0])) {
    const int64_t wide = getWide(2 * step);
    for (int64_t part = 0; part < wide; ++part) {
      SmallVector<int64_t> order;
      for (int64_t i = part * b.lanes; i < (part + 1) * b.lanes; ++i)
        order.append({i, wide * b.lanes + i});
      values.push_back(vector::BitCastOp::create(
          b, b.integers,
          vector::ShuffleOp::create(b, first, loaded[1][step], order)));
    }
  }
  return values;
}

Value PairedNumbers::multiplyAddCarefully(KernelBuilder &b, Value x, Value y,
                                          Value sum) const {
  // Numbers that are multiplied with 0 become 0, so that the instruction stays
  // the same.
  VectorType type = VectorType::get({2 * b.lanes}, b.getI16Type());
  Value zeros = arith::ConstantOp::create(b, b.getZeroAttr(type));
  Value magnitudes = arith::ConstantOp::create(
      b, DenseElementsAttr::get(type, llvm::APInt(16, 0x7fff)));
  auto halves = [&](Value pairs) -> Value {
    return vector::BitCastOp::create(b, type, pairs);
  };
  Value counts = arith::CmpIOp::create(
      b, arith::CmpIPredicate::ne,
      arith::AndIOp::create(b, halves(x), magnitudes), zeros);
  Value kept = b.select(counts, halves(y), zeros);
  return multiplyAdd(b, x, vector::BitCastOp::create(b, b.integers, kept), sum);
}
