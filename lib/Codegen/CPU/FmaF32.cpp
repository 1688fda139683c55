//===- FmaF32.cpp - products by multiply-adds of f32 ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ProductAtom.h"

#include "DiffAttn/Semantics/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {
class FmaF32 final : public ProductAtom {
public:
  FmaF32()
      : ProductAtom("", /*pack=*/1, /*scalesQueries=*/true,
                    /*exponentDegree=*/5) {}
  bool takes(const AttentionSpec &) const override { return true; }
  Type getPacked(KernelBuilder &b) const override { return b.f32; }
  Type getNumber(KernelBuilder &b) const override { return b.f32; }
  Value loadVector(KernelBuilder &b, Value base, Value index) const override {
    return b.load(b.vector, base, b.f32, index);
  }
  Value loadFirst(KernelBuilder &b, Value base, Value index) const override {
    return loadScalar(b, base, index);
  }
  void packQuery(KernelBuilder &b, const PackedQuery &query) const override {
    Value factor = emitConstant(b, b.f32, query.scale);
    b.loop(query.columns, [&](Value c) {
      Value q = b.loadWideScalar(query.from, query.element,
                                 b.mul(c, query.columnStride));
      b.store(b.mulf(q, factor), query.to, b.mul(c, query.stride));
    });
  }
  void packValues(KernelValues &v, const SpecOperand &operand, Value base,
                  Value first, Value n, Value columns, Value panel,
                  Value stride) const override {
    packRows(v, operand, base, first, n, columns, stride, panel);
  }
  Value loadRow(KernelBuilder &b, Value row, Type element, Value index,
                Value mask) const override {
    return b.loadWide(row, element, index, mask);
  }
  SmallVector<Value> loadColumns(KernelBuilder &b, Value row, Type element,
                                 Value, Value column, int64_t vectors,
                                 Value mask) const override {
    SmallVector<Value> values;
    for (int64_t i = 0; i < vectors; ++i)
      values.push_back(
          b.loadWide(row, element, b.add(column, i * b.lanes), mask));
    return values;
  }
  Value roundNumbers(KernelBuilder &, Value part) const override {
    return part;
  }
  Value makePack(KernelBuilder &, ArrayRef<Value> parts) const override {
    return parts.front();
  }
  Value multiplyAdd(KernelBuilder &b, Value x, Value y,
                    Value sum) const override {
    return b.fma(x, y, sum);
  }
  Value multiplyAddCarefully(KernelBuilder &b, Value x, Value y,
                             Value sum) const override {
    Value counts =
        arith::CmpFOp::create(b, arith::CmpFPredicate::UNE, x, b.zero());
    return b.select(counts, b.fma(x, y, sum), sum);
  }
};
} // namespace

const ProductAtom &mlir::diffattn::getFmaF32() {
  static const FmaF32 atom;
  return atom;
}
