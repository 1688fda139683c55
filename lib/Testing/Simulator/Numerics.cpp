//===- Numerics.cpp - arithmetic that x86 has not, or has otherwise -------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Numerics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <immintrin.h>

using namespace mlir::diffattn::sim;

#define DIFFATTN_SIM_AVX2 __attribute__((target("avx2,fma,f16c")))

bool mlir::diffattn::sim::hostCanSimulate() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
}

static uint32_t bitsOf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

static float floatOf(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

DIFFATTN_SIM_AVX2 float mlir::diffattn::sim::halfToFloat(uint16_t bits) {
  return _cvtsh_ss(bits);
}

float mlir::diffattn::sim::bfloatToFloat(uint16_t bits) {
  return floatOf(uint32_t(bits) << 16);
}

DIFFATTN_SIM_AVX2 uint16_t mlir::diffattn::sim::floatToHalf(float value) {
  return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
}

DIFFATTN_SIM_AVX2 uint16_t
mlir::diffattn::sim::floatToHalfTowardZero(float value) {
  return _cvtss_sh(value, _MM_FROUND_TO_ZERO);
}

uint16_t mlir::diffattn::sim::floatToBfloat(float value) {
  uint32_t bits = bitsOf(value);
  if (std::isnan(value))
    return 0x7fff;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

uint16_t mlir::diffattn::sim::floatToBfloatTowardZero(float value) {
  return std::isnan(value) ? 0x7fff : bitsOf(value) >> 16;
}

// PTX ISA 9.1, 9.7.3.13 to 9.7.3.22. Where it counts units in the last place (2
// for ex2, 1 for rcp), this is what they are where they are largest beside the
// number, just above a power of two.
double mlir::diffattn::sim::approxBound(Approx function, double x) {
  switch (function) {
  case Approx::Exp2:
  case Approx::Log2:
    return 0x1p-22;
  case Approx::Rcp:
  case Approx::Sqrt:
    return 0x1p-23;
  case Approx::Rsqrt:
    return std::exp2(-22.9);
  case Approx::Sin:
  case Approx::Cos:
    if (std::fabs(x) <= 2 * M_PI)
      return std::exp2(-20.5);
    // Beyond 100 pi nothing is promised.
    return std::fabs(x) <= 100 * M_PI ? std::exp2(-14.7) : 2;
  case Approx::Tanh:
    return 0x1p-11;
  }
  return 0;
}

static double exactly(Approx function, double x) {
  switch (function) {
  case Approx::Exp2:
    return std::exp2(x);
  case Approx::Log2:
    return std::log2(x);
  case Approx::Rcp:
    return 1.0 / x;
  case Approx::Sqrt:
    return std::sqrt(x);
  case Approx::Rsqrt:
    return 1.0 / std::sqrt(x);
  case Approx::Sin:
    return std::sin(x);
  case Approx::Cos:
    return std::cos(x);
  case Approx::Tanh:
    return std::tanh(x);
  }
  return 0;
}

static float flushed(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value)
                                                : value;
}

/// A number in [-1, 1] that depends on the input alone, as the error of real
/// hardware does; an end of the range half the time.
static double errorOf(Approx function, float x, uint64_t salt) {
  uint64_t hash =
      (bitsOf(x) + salt * 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull +
      static_cast<uint64_t>(function);
  hash ^= hash >> 31;
  hash *= 0x94d049bb133111ebull;
  hash ^= hash >> 29;
  if (hash & 1)
    return hash & 2 ? 1 : -1;
  return static_cast<double>(hash >> 40) / (1 << 23) - 1;
}

float mlir::diffattn::sim::approximate(Approx function, float x, bool flush,
                                       uint64_t salt) {
  if (flush)
    x = flushed(x);
  double exact = exactly(function, x);
  double value = exact;
  bool special = x == 0 || !std::isfinite(exact) || exact == 0 ||
                 (function == Approx::Log2 && x == 1);
  if (salt && !special) {
    bool turns = function == Approx::Sin || function == Approx::Cos;
    bool absolute = turns || (function == Approx::Log2 && x > 0.5 && x < 2);
    value += errorOf(function, x, salt) * approxBound(function, x) *
             (absolute ? 1 : std::fabs(exact));
    if (turns)
      value = std::clamp(value, -1.0, 1.0);
  }
  float result = static_cast<float>(value);
  return flush ? flushed(result) : result;
}

float mlir::diffattn::sim::divideApproximately(float a, float b, bool flush,
                                               uint64_t salt) {
  if (flush) {
    a = flushed(a);
    b = flushed(b);
  }
  double exact = double(a) / b, value = exact;
  if (salt && a != 0 && std::isfinite(exact))
    value += errorOf(Approx::Rcp, a * b, salt) * 0x1p-22 * std::fabs(exact);
  float result = static_cast<float>(value);
  return flush ? flushed(result) : result;
}

unsigned mlir::diffattn::sim::getMmaInputs(MmaType type, unsigned depth,
                                           bool halfAccumulator) {
  unsigned perColumn = type == MmaType::TF32 ? 4 : 8;
  unsigned a = 2 * depth / perColumn, b = depth / perColumn;
  return a + b + (halfAccumulator ? 2 : 4);
}

/// The lower and the upper number of a register.
DIFFATTN_SIM_AVX2 static void unpack(MmaType type, uint32_t word, double &low,
                                     double &high) {
  if (type == MmaType::BF16) {
    low = floatOf(word << 16);
    high = floatOf(word & 0xffff0000u);
    return;
  }
  __m128 both = _mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(word)));
  low = both[0];
  high = both[1];
}

DIFFATTN_SIM_AVX2 void mlir::diffattn::sim::multiplyFragments(
    const Site &site, const uint32_t *const in[32], uint32_t *const out[32]) {
  const unsigned depth = site.depth;
  const bool tf32 = site.type == MmaType::TF32;
  const unsigned registersA = tf32 ? depth / 2 : depth / 4,
                 registersB = registersA / 2;
  double a[16][16], b[16][8], d[16][8];
  // PTX ISA, matrix fragments of mma.m16n8k*: g is the group of four lanes, t
  // the lane in it.
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned g = lane / 4, t = lane % 4;
    const uint32_t *word = in[lane];
    for (unsigned i = 0; i < registersA; ++i, ++word) {
      unsigned row = g + 8 * (i & 1);
      if (tf32) {
        a[row][t + 4 * (i >> 1)] = floatOf(*word & ~0x1fffu);
      } else {
        unsigned column = 2 * t + 8 * (i >> 1);
        unpack(site.type, *word, a[row][column], a[row][column + 1]);
      }
    }
    for (unsigned i = 0; i < registersB; ++i, ++word) {
      if (tf32) {
        b[t + 4 * i][g] = floatOf(*word & ~0x1fffu);
      } else {
        unsigned row = 2 * t + 8 * i;
        unpack(site.type, *word, b[row][g], b[row + 1][g]);
      }
    }
    if (site.halfAccumulator) {
      for (unsigned i = 0; i < 2; ++i, ++word)
        unpack(MmaType::F16, *word, d[g + 8 * i][2 * t],
               d[g + 8 * i][2 * t + 1]);
    } else {
      for (unsigned i = 0; i < 4; ++i, ++word)
        d[g + 8 * (i >> 1)][2 * t + (i & 1)] = floatOf(*word);
    }
  }
  for (unsigned m = 0; m < 16; ++m) {
    double sum[8];
    memcpy(sum, d[m], sizeof(sum));
    for (unsigned k = 0; k < depth; ++k)
      for (unsigned n = 0; n < 8; ++n)
        sum[n] += a[m][k] * b[k][n];
    memcpy(d[m], sum, sizeof(sum));
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned g = lane / 4, t = lane % 4;
    if (site.halfAccumulator) {
      for (unsigned i = 0; i < 2; ++i)
        out[lane][i] =
            floatToHalf(static_cast<float>(d[g + 8 * i][2 * t])) |
            uint32_t(floatToHalf(static_cast<float>(d[g + 8 * i][2 * t + 1])))
                << 16;
      continue;
    }
    for (unsigned i = 0; i < 4; ++i)
      out[lane][i] =
          bitsOf(static_cast<float>(d[g + 8 * (i >> 1)][2 * t + (i & 1)]));
  }
}
