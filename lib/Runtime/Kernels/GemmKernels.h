//===- GemmKernels.h - Product kernels of every vector size -----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// GemmKernels.inc, compiled for each vector size, and the choice between them.
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_LIB_RUNTIME_KERNELS_GEMMKERNELS_H
#define DIFFATTN_LIB_RUNTIME_KERNELS_GEMMKERNELS_H

#include "DiffAttn/Runtime/ABI/Runtime.h"

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

// All of it is the including file's own.
namespace {

struct Half {
  _Float16 value;
  explicit operator float() const { return value; }
};
struct BFloat {
  unsigned short bits;
  explicit operator float() const {
    unsigned wide = static_cast<unsigned>(bits) << 16;
    float f;
    memcpy(&f, &wide, sizeof f);
    return f;
  }
};
/// Two bf16 that lie side by side.
struct Pair {
  unsigned short first, second;
};

/// out[m, W] = A[m, k] * B[k, W], W being the width of a panel, of which `n`
/// columns count; added to `out` unless this is the `first` block of k. `out`
/// has whole panels.
template <typename Acc, typename X, typename TB>
struct PanelProduct {
  long m, n, k;
  const X *A;
  long lda;
  const TB *B;
  long ldb;
  bool first;
  Acc *out;
  long ldout;
  /// Memory that is read after this product, to be fetched into the L2
  /// meanwhile.
  const char *next;
  long nextBytes;
};

float toAcc(const Half *p) { return static_cast<float>(*p); }
float toAcc(const BFloat *p) { return static_cast<float>(*p); }
float toAcc(const float *p) { return *p; }
double toAcc(const double *p) { return *p; }

void fromAcc(float f, float *p) { *p = f; }
void fromAcc(double f, double *p) { *p = f; }
void fromAcc(float f, Half *p) { p->value = static_cast<_Float16>(f); }
void fromAcc(float f, BFloat *p) {
  unsigned bits;
  memcpy(&bits, &f, sizeof bits);
  if (f != f)
    p->bits = static_cast<unsigned short>(bits >> 16 | 0x40); // stay a NaN
  else
    p->bits =
        static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#pragma clang attribute push(                                                  \
    __attribute__((                                                            \
        target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))),          \
    apply_to = function)
namespace v512 {
#define VECTOR_BYTES 64
#define TILE_ROWS 14
#define TILE_VECTORS 2
#define PANEL_VECTORS 4
#include "GemmKernels.inc"
#undef VECTOR_BYTES
#undef TILE_ROWS
#undef TILE_VECTORS
#undef PANEL_VECTORS
} // namespace v512
#pragma clang attribute pop

#pragma clang attribute push(                                                  \
    __attribute__((                                                            \
        target("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,"       \
               "f16c"))),                                                      \
    apply_to = function)
namespace v512bf16 {
#define VECTOR_BYTES 64
#define TILE_ROWS 14
#define TILE_VECTORS 2
#define PANEL_VECTORS 4
#define BF16_PAIRS
#include "GemmKernels.inc"
#undef BF16_PAIRS
#undef VECTOR_BYTES
#undef TILE_ROWS
#undef TILE_VECTORS
#undef PANEL_VECTORS
} // namespace v512bf16
#pragma clang attribute pop

#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))),         \
                             apply_to = function)
namespace v256 {
#define VECTOR_BYTES 32
#define TILE_ROWS 6
#define TILE_VECTORS 2
#define PANEL_VECTORS 2
#include "GemmKernels.inc"
#undef VECTOR_BYTES
#undef TILE_ROWS
#undef TILE_VECTORS
#undef PANEL_VECTORS
} // namespace v256
#pragma clang attribute pop

namespace v128 {
#define VECTOR_BYTES 16
#define TILE_ROWS 4
#define TILE_VECTORS 2
#define PANEL_VECTORS 2
#include "GemmKernels.inc"
#undef VECTOR_BYTES
#undef TILE_ROWS
#undef TILE_VECTORS
#undef PANEL_VECTORS
} // namespace v128

bool hasBf16Pairs() {
  static const bool has = __builtin_cpu_supports("avx512bf16");
  return has;
}

int vectorBytes(int32_t backend) {
  static const int best =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("avx512dq")
          ? 64
      : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 32
                                                                        : 16;
  int requested = backend == DIFFATTN_GEMM_OWN_256   ? 32
                  : backend == DIFFATTN_GEMM_OWN_128 ? 16
                                                     : 64;
  return requested < best ? requested : best;
}

/// The code of one vector size for A of TA, B of TB and C of TC, with sums of
/// Acc. X is the type of factors, Acc or Pair; Stored that of the panels of a
/// kept weight.
template <typename Acc, typename X, typename TA, typename TB, typename TC>
struct Kernels {
  using Stored = std::conditional_t<std::is_same_v<X, Pair>, Pair, TB>;
  int64_t columns; // of a panel
  void (*copyRows)(long, long, const TA *, long, X *, long);
  void (*packPanel)(long, long, const TB *, long, bool, X *);
  void (*packStored)(long, long, const TB *, long, bool, Stored *);
  void (*widenPanel)(long, const Stored *, X *);
  void (*multiply)(PanelProduct<Acc, X, X>);
  void (*multiplyStored)(PanelProduct<Acc, X, Stored>);
  void (*multiplyRowsOfB)(long, long, long, long, const X *, long,
                          const Stored *, long, Acc *, long);
  void (*storeRow)(long, const Acc *, float, TC *);
};

#define KERNELS(NS)                                                            \
  {NS::kPanelColumns<Acc>,                                                     \
   NS::copyRows<X, TA>,                                                        \
   NS::packPanel<Acc, TB>,                                                     \
   NS::packStored<TB>,                                                         \
   NS::widen<Acc, TB>,                                                         \
   NS::multiplyPanel<Acc, X, X>,                                               \
   NS::multiplyPanel<Acc, X, TB>,                                              \
   NS::multiplyRowsOfB<Acc, X, TB>,                                            \
   NS::storeRow<Acc, TC>}
template <typename Acc, typename X, typename TA, typename TB, typename TC>
Kernels<Acc, X, TA, TB, TC> chooseKernels(int bytes) {
  if constexpr (std::is_same_v<X, Pair>)
    return {v512bf16::kPanelColumns<Acc>,
            v512bf16::copyRows<X, TA>,
            v512bf16::packPanel,
            v512bf16::packPanel,
            v512bf16::widen,
            v512bf16::multiplyPanel<Acc, X, X>,
            v512bf16::multiplyPanel<Acc, X, X>,
            v512bf16::multiplyRowsOfB<Acc, X, X>,
            v512bf16::storeRow<Acc, TC>};
  else if (bytes == 64)
    return KERNELS(v512);
  else if (bytes == 32)
    return KERNELS(v256);
  else
    return KERNELS(v128);
}
#undef KERNELS

} // namespace

#endif // DIFFATTN_LIB_RUNTIME_KERNELS_GEMMKERNELS_H
