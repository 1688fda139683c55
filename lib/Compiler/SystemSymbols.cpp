//===- SystemSymbols.cpp - functions of libc and libm ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SystemSymbols.h"

using namespace mlir::diffattn;
using llvm::StringRef;

static constexpr StringRef kBase = "GLIBC_2.2.5"; // the first for x86-64
static constexpr StringRef kLibc = "libc.so.6", kLibm = "libm.so.6";

static constexpr SystemSymbol kSymbols[] = {
    // memcpy of the first version is memmove; this one is what glibc calls
    // memcpy since.
    {"memcpy", kLibc, "GLIBC_2.14"},
    {"memmove", kLibc, kBase},
    {"memset", kLibc, kBase},
    {"memcmp", kLibc, kBase},
    {"bcmp", kLibc, kBase},
    {"acos", kLibm, kBase},
    {"acosf", kLibm, kBase},
    {"acosh", kLibm, kBase},
    {"acoshf", kLibm, kBase},
    {"asin", kLibm, kBase},
    {"asinf", kLibm, kBase},
    {"asinh", kLibm, kBase},
    {"asinhf", kLibm, kBase},
    {"atan", kLibm, kBase},
    {"atanf", kLibm, kBase},
    {"atan2", kLibm, kBase},
    {"atan2f", kLibm, kBase},
    {"atanh", kLibm, kBase},
    {"atanhf", kLibm, kBase},
    {"cbrt", kLibm, kBase},
    {"cbrtf", kLibm, kBase},
    {"ceil", kLibm, kBase},
    {"ceilf", kLibm, kBase},
    {"copysign", kLibm, kBase},
    {"copysignf", kLibm, kBase},
    {"cos", kLibm, kBase},
    {"cosf", kLibm, kBase},
    {"cosh", kLibm, kBase},
    {"coshf", kLibm, kBase},
    {"erf", kLibm, kBase},
    {"erff", kLibm, kBase},
    {"erfc", kLibm, kBase},
    {"erfcf", kLibm, kBase},
    {"exp", kLibm, kBase},
    {"expf", kLibm, kBase},
    {"exp10", kLibm, kBase},
    {"exp10f", kLibm, kBase},
    {"exp2", kLibm, kBase},
    {"exp2f", kLibm, kBase},
    {"expm1", kLibm, kBase},
    {"expm1f", kLibm, kBase},
    {"fabs", kLibm, kBase},
    {"fabsf", kLibm, kBase},
    {"floor", kLibm, kBase},
    {"floorf", kLibm, kBase},
    {"fma", kLibm, kBase},
    {"fmaf", kLibm, kBase},
    {"fmax", kLibm, kBase},
    {"fmaxf", kLibm, kBase},
    {"fmin", kLibm, kBase},
    {"fminf", kLibm, kBase},
    {"fmod", kLibm, kBase},
    {"fmodf", kLibm, kBase},
    {"frexp", kLibm, kBase},
    {"frexpf", kLibm, kBase},
    {"hypot", kLibm, kBase},
    {"hypotf", kLibm, kBase},
    {"ldexp", kLibm, kBase},
    {"ldexpf", kLibm, kBase},
    {"llrint", kLibm, kBase},
    {"llrintf", kLibm, kBase},
    {"llround", kLibm, kBase},
    {"llroundf", kLibm, kBase},
    {"log", kLibm, kBase},
    {"logf", kLibm, kBase},
    {"log10", kLibm, kBase},
    {"log10f", kLibm, kBase},
    {"log1p", kLibm, kBase},
    {"log1pf", kLibm, kBase},
    {"log2", kLibm, kBase},
    {"log2f", kLibm, kBase},
    {"lrint", kLibm, kBase},
    {"lrintf", kLibm, kBase},
    {"lround", kLibm, kBase},
    {"lroundf", kLibm, kBase},
    {"nearbyint", kLibm, kBase},
    {"nearbyintf", kLibm, kBase},
    {"pow", kLibm, kBase},
    {"powf", kLibm, kBase},
    {"rint", kLibm, kBase},
    {"rintf", kLibm, kBase},
    {"round", kLibm, kBase},
    {"roundf", kLibm, kBase},
    {"roundeven", kLibm, "GLIBC_2.25"},
    {"roundevenf", kLibm, "GLIBC_2.25"},
    {"sin", kLibm, kBase},
    {"sinf", kLibm, kBase},
    {"sincos", kLibm, kBase},
    {"sincosf", kLibm, kBase},
    {"sinh", kLibm, kBase},
    {"sinhf", kLibm, kBase},
    {"sqrt", kLibm, kBase},
    {"sqrtf", kLibm, kBase},
    {"tan", kLibm, kBase},
    {"tanf", kLibm, kBase},
    {"tanh", kLibm, kBase},
    {"tanhf", kLibm, kBase},
    {"trunc", kLibm, kBase},
    {"truncf", kLibm, kBase},
};

std::optional<SystemSymbol> mlir::diffattn::findSystemSymbol(StringRef name) {
  for (const SystemSymbol &symbol : kSymbols)
    if (symbol.name == name)
      return symbol;
  return std::nullopt;
}

std::vector<SystemSymbol> mlir::diffattn::getSystemSymbols() {
  return {std::begin(kSymbols), std::end(kSymbols)};
}
