//===- RowSums.cpp - sinks and logarithms of the sums of rows -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "RowSums.h"

#include "DiffAttn/Semantics/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

#include <limits>

using namespace mlir;
using namespace mlir::diffattn;

static constexpr float kLn2 = 0.693147180559945309417f;

static Value headOf(int map, const HeadIndices &heads) {
  return map ? heads.noise : heads.signal;
}

/// Powers of two end at 2^-126, which beside a sink would be weight for keys
/// that have none.
static Value emitPowerOrZero(KernelBuilder &b, Value exponent) {
  PolynomialMath math(b, b.vector);
  Value isTiny = arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, exponent,
                                       b.splat(-126.0f));
  return b.select(isTiny, b.zero(), math.exponential(exponent));
}

FinishedSums mlir::diffattn::finishRowSums(KernelValues &v, int map,
                                           const HeadIndices &heads,
                                           const RowSums &rows) {
  KernelBuilder &b = v.b;
  const AttentionSpec &spec = v.spec;
  const SpecOperand &sink = spec.sinks[map];
  const bool wantsLogarithm = spec.lses[map].present();
  FinishedSums result{rows.sum, {}, {}};
  if (!sink.present() && !wantsLogarithm)
    return result;
  auto isEqual = [&](Value x, Value y) -> Value {
    return arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, x, y);
  };
  Value isEmpty = isEqual(rows.sum, b.zero());
  // All in log2 from here on.
  Value maximum = rows.maximum();
  if (std::optional<float> factor = spec.exponentFactor())
    maximum = b.mulf(maximum, b.splat(*factor));
  if (sink.present()) {
    Value logit =
        b.loadWideScalar(v.address(sink), sink.element,
                         b.mul(headOf(map, heads), v.stride(sink, 1)));
    Value score = b.mulf(b.splat(logit), b.splat(kLog2E));
    Value before = maximum;
    maximum = emitMaximum(b, before, score);
    // Where the maximum stays, numbers change by the added terms alone.
    result.factor = b.select(isEqual(before, maximum), b.splat(1.0f),
                             emitPowerOrZero(b, b.subf(before, maximum)));
    PolynomialMath math(b, b.vector);
    Value term = emitWeight(math, score, maximum);
    Value sum = b.addf(b.mulf(rows.sum, result.factor), term);
    result.sum = b.select(isEmpty, rows.sum, sum);
  }
  if (wantsLogarithm) {
    Value logarithm =
        b.fma(maximum, b.splat(kLn2), emitLogarithm(b, result.sum));
    Value none = b.splat(-std::numeric_limits<float>::infinity());
    result.logarithm = b.select(isEmpty, none, logarithm);
  }
  return result;
}

void mlir::diffattn::ifStoresLogarithms(KernelValues &v, int map,
                                        const HeadIndices &heads,
                                        function_ref<void()> store) {
  KernelBuilder &b = v.b;
  const AttentionSpec &spec = v.spec;
  if (!spec.lses[map].present())
    return;
  if (map == 0)
    return store();
  Value perNoise = b.div(v.size(spec.signalHeads), v.size(spec.noiseHeads));
  b.ifThen(b.equal(b.rem(heads.signal, perNoise), b.index(0)), store);
}

void mlir::diffattn::storeLogarithm(KernelValues &v, int map, Value batch,
                                    const HeadIndices &heads, Value row,
                                    Value logarithm) {
  KernelBuilder &b = v.b;
  const SpecOperand &lse = v.spec.lses[map];
  b.store(logarithm, v.head(lse, batch, headOf(map, heads)),
          b.mul(row, v.stride(lse, 2)));
}
