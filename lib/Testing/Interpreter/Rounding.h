//===- Rounding.h - f64 to the float types ----------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Sums, products, quotients and roots of two narrow floats, computed in f64 and
// then rounded, are those of the narrow type: f64 has more than twice its bits.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_INTERPRETER_ROUNDING_H
#define DIFFATTN_LIB_TESTING_INTERPRETER_ROUNDING_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace mlir::diffattn::interpreter {

/// Type to which the results of a float op are rounded; F64: not at all.
/// Random: up or down, by chance.
enum class FloatKind { F64, F32, F16, BF16, RandomF32, RandomF16, RandomBF16 };

/// Pseudo-random bits (xorshift64*).
struct Random {
  uint64_t state;

  explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15u | 1) {}
  uint64_t next() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1du;
  }
  /// From -1 to 1.
  double nextSigned() {
    return static_cast<double>(static_cast<int64_t>(next())) * 0x1p-63;
  }
};

inline uint64_t bitsOf(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline double doubleOf(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// `value` rounded to nearest, ties to even, to a type with `fractionBits` and
/// exponents from `minExponent` to `maxExponent`.
template <int fractionBits, int minExponent, int maxExponent>
inline double roundTo(double value) {
  const double magnitude = std::fabs(value);
  if (!(magnitude < std::numeric_limits<double>::infinity()))
    return value;
  const double leastNormal = doubleOf(uint64_t(1023 + minExponent) << 52);
  if (magnitude < leastNormal) {
    // Added to this, a multiple of the least subnormal is what remains.
    const double shift =
        1.5 * doubleOf(uint64_t(1023 + 52 + minExponent - fractionBits) << 52);
    return std::copysign((magnitude + shift) - shift, value);
  }
  constexpr int dropped = 52 - fractionBits;
  uint64_t bits = bitsOf(value);
  bits += ((uint64_t(1) << (dropped - 1)) - 1) + ((bits >> dropped) & 1);
  bits &= ~((uint64_t(1) << dropped) - 1);
  const double rounded = doubleOf(bits);
  const double end = doubleOf(uint64_t(1023 + maxExponent + 1) << 52);
  return std::fabs(rounded) < end
             ? rounded
             : std::copysign(std::numeric_limits<double>::infinity(), value);
}

/// Down or up, the nearer the likelier; what the type holds stays.
template <int fractionBits, int minExponent, int maxExponent>
inline double roundRandomly(double value, Random &random) {
  constexpr int dropped = 52 - fractionBits;
  constexpr uint64_t mask = (uint64_t(1) << dropped) - 1;
  const double magnitude = std::fabs(value);
  const double leastNormal = doubleOf(uint64_t(1023 + minExponent) << 52);
  if (magnitude < leastNormal) {
    const double scale = std::ldexp(1.0, fractionBits - minExponent);
    const double units = magnitude * scale, whole = std::floor(units);
    const double chance = static_cast<double>(random.next() >> 11) * 0x1p-53;
    const double rounded = (whole + (units - whole > chance)) / scale;
    return std::copysign(rounded, value);
  }
  uint64_t bits = bitsOf(value);
  if (!std::isfinite(value))
    return value;
  if (bits & mask)
    bits += random.next() & mask;
  const double rounded = doubleOf(bits & ~mask);
  const double end = doubleOf(uint64_t(1023 + maxExponent + 1) << 52);
  return std::fabs(rounded) < end
             ? rounded
             : std::copysign(std::numeric_limits<double>::infinity(), value);
}

template <FloatKind kind>
inline double roundTo(double value, Random &random) {
  if constexpr (kind == FloatKind::F64)
    return value;
  else if constexpr (kind == FloatKind::F32)
    return static_cast<float>(value);
  else if constexpr (kind == FloatKind::F16)
    return roundTo<10, -14, 15>(value);
  else if constexpr (kind == FloatKind::BF16)
    return roundTo<7, -126, 127>(value);
  else if constexpr (kind == FloatKind::RandomF32)
    return roundRandomly<23, -126, 127>(value, random);
  else if constexpr (kind == FloatKind::RandomF16)
    return roundRandomly<10, -14, 15>(value, random);
  else
    return roundRandomly<7, -126, 127>(value, random);
}

/// Calls `use` with a constant that is `kind`.
template <typename Use>
inline auto withKind(FloatKind kind, Use use) {
  switch (kind) {
  case FloatKind::F64:
    break;
  case FloatKind::F32:
    return use(std::integral_constant<FloatKind, FloatKind::F32>());
  case FloatKind::F16:
    return use(std::integral_constant<FloatKind, FloatKind::F16>());
  case FloatKind::BF16:
    return use(std::integral_constant<FloatKind, FloatKind::BF16>());
  case FloatKind::RandomF32:
    return use(std::integral_constant<FloatKind, FloatKind::RandomF32>());
  case FloatKind::RandomF16:
    return use(std::integral_constant<FloatKind, FloatKind::RandomF16>());
  case FloatKind::RandomBF16:
    return use(std::integral_constant<FloatKind, FloatKind::RandomBF16>());
  }
  return use(std::integral_constant<FloatKind, FloatKind::F64>());
}

inline double roundTo(FloatKind kind, double value, Random &random) {
  return withKind(kind, [&](auto constant) {
    return roundTo<decltype(constant)::value>(value, random);
  });
}

/// `value` plus its error, of the sign of `rest`, as a number whose last bit is
/// set if there is an error (round to odd): so a second rounding, to a narrower
/// type, is that of the exact sum.
inline double roundToOdd(double value, double rest) {
  if (rest == 0.0 || !std::isfinite(value) || (bitsOf(value) & 1))
    return value;
  return std::nextafter(value, rest > 0.0
                                   ? std::numeric_limits<double>::infinity()
                                   : -std::numeric_limits<double>::infinity());
}

/// a * b + c with one rounding.
template <FloatKind kind>
inline double fusedMultiplyAdd(double a, double b, double c, Random &random) {
  if constexpr (kind == FloatKind::F64)
    return std::fma(a, b, c);
  // Exact: narrow types have at most 24 bits.
  const double product = a * b;
  const double sum = product + c;
  if (!std::isfinite(sum))
    return roundTo<kind>(sum, random);
  const double back = sum - product;
  const double rest = (product - (sum - back)) + (c - back);
  return roundTo<kind>(roundToOdd(sum, rest), random);
}

/// An integer as f64, rounded to odd if it has more than 53 bits.
inline double oddFromMagnitude(uint64_t magnitude) {
  int shift = 0;
  while ((magnitude >> shift) >> 53)
    ++shift;
  uint64_t kept = magnitude >> shift;
  if (shift && (magnitude & ((uint64_t(1) << shift) - 1)))
    kept |= 1;
  return std::ldexp(static_cast<double>(kept), shift);
}

} // namespace mlir::diffattn::interpreter

#endif // DIFFATTN_LIB_TESTING_INTERPRETER_ROUNDING_H
