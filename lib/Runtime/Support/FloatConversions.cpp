//===- FloatConversions.cpp - Conversions that compilers call by name -----===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// LLVM lowers conversions to and from f16 and bf16 to these names where the CPU
// has no instruction, and libgcc before GCC 13 lacks those of bf16. Weak, so
// that a process which has them already keeps its own.
//
// The 16-bit types travel in the low half of an SSE register, as the x86-64 ABI
// says; conversions go by integers, since a cast would call these functions.
//
//===----------------------------------------------------------------------===//

#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Runtime/Support/Rounding.h"

using namespace diffattn_rt;

namespace {

uint16_t toHalf(float f) {
  uint32_t bits = bitsOf<uint32_t>(f);
  uint32_t sign = bits >> 16 & 0x8000;
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000)
    return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) // rounds to 65536 or more
    return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) { // subnormal: adding 0.5 rounds to multiples
    float sum = bitsOf<float>(magnitude) + 0.5f; // of 2^-24
    return static_cast<uint16_t>(sign | (bitsOf<uint32_t>(sum) - 0x3f000000));
  }
  uint32_t odd = magnitude >> 13 & 1;
  return static_cast<uint16_t>(sign |
                               ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

float fromHalf(uint16_t half) {
  uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  uint32_t magnitude = half & 0x7fff;
  uint32_t bits;
  if (magnitude >= 0x7c00)
    bits = 0x7f800000 | (magnitude & 0x3ff) << 13;
  else if (magnitude >= 0x400)
    bits = (magnitude << 13) + 0x38000000;
  else
    bits = bitsOf<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  return bitsOf<float>(sign | bits);
}

} // namespace

void diffattn_rt_float_conversions(diffattn_named_function out[5]) {
  using Function = void (*)(void);
  __bf16 (*f32ToBF16)(float) = [](float f) {
    return bitsOf<__bf16>(toBFloat(f));
  };
  __bf16 (*f64ToBF16)(double) = [](double d) {
    return bitsOf<__bf16>(toBFloat(toOdd(d)));
  };
  _Float16 (*f32ToF16)(float) = [](float f) {
    return bitsOf<_Float16>(toHalf(f));
  };
  _Float16 (*f64ToF16)(double) = [](double d) {
    return bitsOf<_Float16>(toHalf(toOdd(d)));
  };
  float (*f16ToF32)(_Float16) = [](_Float16 h) {
    return fromHalf(bitsOf<uint16_t>(h));
  };
  out[0] = {"__truncsfbf2", reinterpret_cast<Function>(f32ToBF16)};
  out[1] = {"__truncdfbf2", reinterpret_cast<Function>(f64ToBF16)};
  out[2] = {"__truncsfhf2", reinterpret_cast<Function>(f32ToF16)};
  out[3] = {"__truncdfhf2", reinterpret_cast<Function>(f64ToF16)};
  out[4] = {"__extendhfsf2", reinterpret_cast<Function>(f16ToF32)};
}
