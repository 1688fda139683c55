//===- Numerics.h - arithmetic that x86 has not -----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_SIMULATOR_NUMERICS_H
#define DIFFATTN_LIB_TESTING_SIMULATOR_NUMERICS_H

#include "Site.h"

namespace mlir::diffattn::sim {

/// Whether this CPU has what compiled kernels and these functions use: AVX2,
/// FMA, F16C.
bool hostCanSimulate();

float halfToFloat(uint16_t bits);
float bfloatToFloat(uint16_t bits);
/// Round to nearest, ties to even; a NaN stays one.
uint16_t floatToHalf(float value);
uint16_t floatToBfloat(float value);
/// Cut off the excess bits.
uint16_t floatToHalfTowardZero(float value);
uint16_t floatToBfloatTowardZero(float value);

/// Approximate instructions of the special function unit.
enum class Approx : uint8_t { Exp2, Log2, Rcp, Sqrt, Rsqrt, Sin, Cos, Tanh };

/// The bound that the PTX ISA states for an input: relative, and absolute for
/// Sin, Cos and, between 0.5 and 2, Log2.
double approxBound(Approx function, double x);

/// The result of `function` for `x`, off by up to its bound if `salt` is not 0.
/// Special values are exact: 2^0 is 1, and zeros, infinities and NaNs are as
/// documented. With `flush`, subnormal inputs and results become zeros.
float approximate(Approx function, float x, bool flush, uint64_t salt);

/// a / b, off by up to two units in the last place if `salt` is not 0.
float divideApproximately(float a, float b, bool flush, uint64_t salt);

/// One mma of a warp: in[lane] holds the registers of A, B and C, out[lane]
/// gets those of D. Products are exact, sums are kept in f64 and rounded once.
void multiplyFragments(const Site &site, const uint32_t *const in[32],
                       uint32_t *const out[32]);

/// Registers of A, B and C together that a lane gives.
unsigned getMmaInputs(MmaType type, unsigned depth, bool halfAccumulator);

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_LIB_TESTING_SIMULATOR_NUMERICS_H
