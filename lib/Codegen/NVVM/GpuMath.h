//===- GpuMath.h - formulas by instructions of a GPU ------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_GPUMATH_H
#define DIFFATTN_LIB_CODEGEN_NVVM_GPUMATH_H

#include "DiffAttn/Codegen/NVVM/GpuBuilder.h"
#include "DiffAttn/Semantics/AttentionMath.h"

namespace mlir::diffattn::gpucode {

/// Inverses, roots and powers of two are approximations by one instruction,
/// whose errors docs/numerics.md counts; a polynomial would take the place of
/// products.
class GpuMath final : public MathBuilder {
public:
  /// `unit` makes powers of two of differences of scores; null where there are
  /// none.
  explicit GpuMath(GpuBuilder &b, Value unit = {}) : b(b), unit(unit) {}

  Value constant(float value) override { return b.f32(value); }
  Value add(Value x, Value y) override { return b.addF(x, y); }
  Value subtract(Value x, Value y) override { return b.subF(x, y); }
  Value multiply(Value x, Value y) override { return b.mulF(x, y); }
  Value isEqual(Value x, Value y) override {
    return b.compareF(LLVM::FCmpPredicate::oeq, x, y);
  }
  Value select(Value condition, Value x, Value y) override {
    return b.select(condition, x, y);
  }
  Value divide(Value x, Value y) override { return b.mulF(b.reciprocal(y), x); }
  Value invert(Value x) override { return b.reciprocal(x); }
  Value squareRoot(Value x) override { return b.sqrt(x); }
  Value invertSquareRoot(Value x) override { return b.reciprocalSqrt(x); }
  /// 2^(large) is infinite, and 1 / infinity is 0, as it should be.
  Value exponentialOfMinus(Value x) override {
    return b.exp2(b.mulF(x, b.f32(-kLog2E)));
  }
  Value exponential(Value difference) override {
    return b.exp2(b.mulF(difference, unit));
  }
  /// 1 - 2 / (1 + 2^x): kernels take x ready from a product with the scale,
  /// which holds 2 log2(e) / cap.
  Value tanh(Value x) override {
    Value inverse = b.reciprocal(b.addF(b.f32(1.0), b.exp2(x)));
    return b.fma(inverse, b.f32(-2.0), b.f32(1.0));
  }

private:
  GpuBuilder &b;
  Value unit;
};

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_GPUMATH_H
