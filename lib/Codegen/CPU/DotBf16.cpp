//===- DotBf16.cpp - products of bf16 pairs by VDPBF16PS ------------------===//
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

namespace {
class DotBf16 final : public PairedNumbers {
public:
  DotBf16()
      : PairedNumbers("_bf16", getType<BFloat16Type>, /*usesTiles=*/false,
                      /*multiple=*/1) {}
  bool takes(const AttentionSpec &spec) const override {
    return spec.target.hasBf16Dot() && PairedNumbers::takes(spec);
  }
  Value roundNumbers(KernelBuilder &b, Value part) const override {
    VectorType half = VectorType::get({b.lanes}, b.bf16);
    return arith::TruncFOp::create(b, half, part);
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

const ProductAtom &mlir::diffattn::getDotBf16() {
  static const DotBf16 atom;
  return atom;
}
