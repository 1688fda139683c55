//===- Epilogue.h - norm, scale, gate and the one rounding ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CONVERSION_DIFFATTNTOLINALG_EPILOGUE_H
#define DIFFATTN_LIB_CONVERSION_DIFFATTNTOLINALG_EPILOGUE_H

#include "StructuredBuilder.h"

#include "DiffAttn/Semantics/AttentionRules.h"

namespace mlir::diffattn {

/// Inputs of the steps after the difference of the maps; null where absent.
struct EpilogueInputs {
  EpilogueRules rules;
  Value normWeight, gate;
  Layout oLayout;
};

/// Lambda as an input of loops whose first three are batch, signal head, query.
StructuredInput lambdaInput(StructuredBuilder &sb, Value lambda,
                            OpFoldResult signalHeads);

/// The element of lambda after its activation.
Value activated(ImplicitLocOpBuilder &b, Value lambda, bool isSigmoid);

/// `weight` / `sum` of a map's row, 0 in a row that sees no key.
Value normalized(ImplicitLocOpBuilder &b, Value weight, Value sum);

/// `value`, or 0 in a row that sees no key: both maps' sums are 0.
Value zeroWithoutKeys(ImplicitLocOpBuilder &b, Value sum1, Value sum2,
                      Value value);

/// Sums of the squares of each row of `x` (f32 [B,Hs,Tq,dv]), f32 [B,Hs,Tq].
Value buildSquares(StructuredBuilder &sb, Value x);

/// `value`, an f32, rounded to `element`.
Value narrow(ImplicitLocOpBuilder &b, Value value, Type element);

/// Writes norm, out_scale, norm_weight and gate of `x` (f32 [B,Hs,Tq,dv]) to
/// `init`, rounded once.
Value buildEpilogue(StructuredBuilder &sb, Value x, Value init,
                    const EpilogueInputs &inputs);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CONVERSION_DIFFATTNTOLINALG_EPILOGUE_H
