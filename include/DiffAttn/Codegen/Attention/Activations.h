//===- Activations.h - exponentials that kernels share ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CODEGEN_ATTENTION_ACTIVATIONS_H
#define DIFFATTN_CODEGEN_ATTENTION_ACTIVATIONS_H

#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace mlir::diffattn {

/// log2(e): softmax runs on powers of two.
constexpr float kLog2E = 1.44269504088896340736f;

/// A constant of `type` (f32, or a vector of f32) with every element `value`.
Value emitConstant(ImplicitLocOpBuilder &b, Type type, float value);

/// 2^x for x <= 126, by a polynomial of degree 3 to 5 (relative error 8e-5,
/// 3e-6, 2e-7). Values below -126 give 2^-126, and NaN stays NaN. `x` is f32 or
/// a vector of f32.
Value emitExp2(ImplicitLocOpBuilder &b, Value x, int degree = 5);

/// 1 / (1 + e^-x).
Value emitSigmoid(ImplicitLocOpBuilder &b, Value x);

/// cap * tanh(x / cap), accurate relative to the result also for small x.
Value emitSoftcap(ImplicitLocOpBuilder &b, Value x, float cap);

/// The larger of two values as one instruction; `a` if `b` is NaN, so a running
/// maximum forgets the NaN and leaves it to the exponential.
Value emitMaximum(ImplicitLocOpBuilder &b, Value running, Value next);

} // namespace mlir::diffattn

#endif // DIFFATTN_CODEGEN_ATTENTION_ACTIVATIONS_H
