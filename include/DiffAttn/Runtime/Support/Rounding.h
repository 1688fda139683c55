//===- Rounding.h - floats rounded by integers ------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_SUPPORT_ROUNDING_H
#define DIFFATTN_RUNTIME_SUPPORT_ROUNDING_H

#include <cmath>
#include <cstdint>
#include <cstring>

namespace diffattn_rt {

template <typename To, typename From>
To bitsOf(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

/// The bf16 nearest to `f`, ties to even; a NaN stays one and becomes quiet.
inline uint16_t toBFloat(float f) {
  uint32_t bits = bitsOf<uint32_t>(f);
  if (f != f)
    return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// `d` as f32 rounded to odd, so that rounding once more is as rounding once.
inline float toOdd(double d) {
  float f = static_cast<float>(d);
  if (f != f || std::isinf(f) || static_cast<double>(f) == d)
    return f;
  uint32_t bits = bitsOf<uint32_t>(f);
  if (bits & 1)
    return f;
  bool grew = std::fabs(static_cast<double>(f)) > std::fabs(d);
  return bitsOf<float>(grew ? bits - 1 : bits + 1);
}

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_SUPPORT_ROUNDING_H
