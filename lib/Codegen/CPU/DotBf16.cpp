//===- DotBf16.cpp - products of bf16 pairs by VDPBF16PS ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ProductAtom.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {
class DotBf16 final : public ProductAtom {
public:
  DotBf16()
      : ProductAtom("_bf16", /*pack=*/2, /*scalesQueries=*/false,
                    /*exponentDegree=*/3) {}
  bool takes(const AttentionSpec &spec) const override;
  Type getPacked(KernelBuilder &b) const override { return b.i32; }
  Type getNumber(KernelBuilder &b) const override { return b.bf16; }
  void packQuery(KernelBuilder &b, const PackedQuery &query) const override;
  void packValues(KernelValues &v, Value base, Value first, Value n,
                  Value columns, Value panel, Value stride) const override;
  Value loadVector(KernelBuilder &b, Value base, Value index) const override {
    return b.load(b.integers, base, b.i32, index);
  }
  Value loadFirst(KernelBuilder &b, Value base, Value index) const override {
    Type i16 = b.getI16Type();
    Value half = b.load(i16, base, i16, b.mul(index, 2));
    return arith::ExtUIOp::create(b, b.i32, half);
  }
  Value loadRow(KernelBuilder &b, Value row, Type element, Value index,
                Value mask) const override {
    VectorType halves = VectorType::get({2 * b.lanes}, b.getI16Type());
    Value pairs = mask ? b.loadMasked(halves, row, index, mask)
                       : b.load(halves, row, element, index);
    return vector::BitCastOp::create(b, b.integers, pairs);
  }
  SmallVector<Value> loadColumns(KernelBuilder &b, Value row, Type element,
                                 Value stride, Value column, int64_t vectors,
                                 Value mask) const override;
  Value makePack(KernelBuilder &b, ArrayRef<Value> parts) const override {
    VectorType half = VectorType::get({b.lanes}, b.bf16);
    auto round = [&](Value part) -> Value {
      return arith::TruncFOp::create(b, half, part);
    };
    Value first = round(parts[0]), second = round(parts[1]);
    return vector::BitCastOp::create(
        b, b.integers, vector::InterleaveOp::create(b, first, second));
  }
  Value multiplyAdd(KernelBuilder &b, Value x, Value y,
                    Value sum) const override {
    auto pairs = [&](Value value) -> Value {
      VectorType type = VectorType::get({2 * b.lanes}, b.bf16);
      return vector::BitCastOp::create(b, type, value);
    };
    return LLVM::CallIntrinsicOp::create(
               b, b.vector, b.getStringAttr("llvm.x86.avx512bf16.dpbf16ps.512"),
               ValueRange{sum, pairs(x), pairs(y)})
        .getResult(0);
  }
};
} // namespace

/// Pairs are multiplied as they lie in memory. The scale then waits until after
/// the product, and must keep the order of scores.
bool DotBf16::takes(const AttentionSpec &spec) const {
  auto suits = [](const SpecOperand &operand, bool needsUnit) {
    return operand.element.isBF16() && (!needsUnit || operand.hasUnitColumns());
  };
  return spec.target.hasBf16Dot() && spec.scores.scale > 0.0f &&
         suits(spec.q1, false) && suits(spec.q2, false) &&
         suits(spec.k1, true) && suits(spec.k2, true) && suits(spec.v, true);
}

/// One query's columns in pairs, the last of an odd number with 0.
void DotBf16::packQuery(KernelBuilder &b, const PackedQuery &query) const {
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
  b.loop(whole, b.ceilDiv(query.columns, 2), 1,
         [&](Value pair) { store(pair, load(b.mul(pair, 2)), nothing); });
}

/// In pairs of keys, as i32: panel[ceil(n / 2)][stride], with zeros for the
/// partner of an odd number's last key.
void DotBf16::packValues(KernelValues &v, Value base, Value first, Value n,
                         Value valueDim, Value panel, Value panelStride) const {
  KernelBuilder &b = v.b;
  const AttentionSpec &spec = v.spec;
  VectorType halves = VectorType::get({b.lanes}, b.bf16);
  Value zeros = arith::ConstantOp::create(b, b.getZeroAttr(halves));
  Value stride = v.stride(spec.v, 2);
  Value whole = b.mul(b.div(valueDim, b.lanes), b.lanes);
  bool hasTail = !spec.valueDim.isStatic() || spec.valueDim.value % b.lanes;
  Value mask = b.firstLanes(b.sub(valueDim, whole));
  auto pack = [&](Value pair, bool isLast) {
    Value row = b.at(base, b.bf16, b.mul(b.add(first, b.mul(pair, 2)), stride));
    Value next = isLast ? Value() : b.at(row, b.bf16, stride);
    Value to = b.at(panel, b.i32, b.mul(pair, panelStride));
    auto columns = [&](Value c, Value mask) {
      auto load = [&](Value from) -> Value {
        if (!from)
          return zeros;
        return mask ? b.loadMasked(halves, from, c, mask)
                    : b.load(halves, from, b.bf16, c);
      };
      Value pairs = vector::InterleaveOp::create(b, load(row), load(next));
      b.store(vector::BitCastOp::create(b, b.integers, pairs), to, b.i32, c);
    };
    b.loop(b.index(0), whole, b.lanes, [&](Value c) { columns(c, Value()); });
    if (hasTail)
      b.ifThen(b.less(whole, valueDim), [&] { columns(whole, mask); });
  };
  Value pairs = b.div(n, 2);
  b.loop(pairs, [&](Value pair) { pack(pair, /*isLast=*/false); });
  b.loop(pairs, b.ceilDiv(n, 2), 1,
         [&](Value pair) { pack(pair, /*isLast=*/true); });
}

SmallVector<Value> DotBf16::loadColumns(KernelBuilder &b, Value row,
                                        Type element, Value stride,
                                        Value column, int64_t vectors,
                                        Value mask) const {
  // Two vectors of columns side by side, where there are two, fill one of bf16.
  int64_t wide = vectors > 1 ? 2 : 1;
  VectorType halves = VectorType::get({wide * b.lanes}, b.getI16Type());
  SmallVector<Value> loaded[2], values;
  for (int64_t which : {0, 1}) {
    for (int64_t i = 0; i < vectors; i += wide) {
      Value c = b.add(column, i * b.lanes);
      loaded[which].push_back(mask ? b.loadMasked(halves, row, c, mask)
                                   : b.load(halves, row, element, c));
    }
    row = b.at(row, element, stride);
    b.keepOrder();
  }
  for (auto [first, second] : llvm::zip_equal(loaded[0], loaded[1]))
    for (int64_t part = 0; part < wide; ++part) {
      SmallVector<int64_t> order;
      for (int64_t i = part * b.lanes; i < (part + 1) * b.lanes; ++i)
        order.append({i, wide * b.lanes + i});
      values.push_back(vector::BitCastOp::create(
          b, b.integers, vector::ShuffleOp::create(b, first, second, order)));
    }
  return values;
}

const ProductAtom &mlir::diffattn::getDotBf16() {
  static const DotBf16 atom;
  return atom;
}
