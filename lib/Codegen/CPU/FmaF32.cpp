//===- FmaF32.cpp - products by multiply-adds of f32 ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ProductAtom.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {
class FmaF32 final : public ProductAtom {
public:
  FmaF32() : ProductAtom("", /*pack=*/1) {}
  Type getPacked(KernelBuilder &b) const override { return b.f32; }
  Type getNumber(KernelBuilder &b) const override { return b.f32; }
  Value loadVector(KernelBuilder &b, Value base, Value index) const override {
    return b.load(b.vector, base, b.f32, index);
  }
  Value loadFirst(KernelBuilder &b, Value base, Value index) const override {
    return loadScalar(b, base, index);
  }
  Value makePack(KernelBuilder &, ArrayRef<Value> parts) const override {
    return parts.front();
  }
  Value multiplyAdd(KernelBuilder &b, Value x, Value y,
                    Value sum) const override {
    return b.fma(x, y, sum);
  }
};
} // namespace

const ProductAtom &mlir::diffattn::getFmaF32() {
  static const FmaF32 atom;
  return atom;
}
