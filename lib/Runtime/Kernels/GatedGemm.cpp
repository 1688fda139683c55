//===- GatedGemm.cpp - Products of which one gates the other --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GemmTiles.h"

#include <cstdio>
#include <cstring>

using namespace diffattn_rt;

namespace {

void checkArguments(int32_t dtC, int32_t rounding) {
  constexpr int32_t kAll = 2 * DIFFATTN_ROUND_SILU - 1;
  const bool isFloat =
      dtC == DIFFATTN_F32 || dtC == DIFFATTN_F16 || dtC == DIFFATTN_BF16;
  if (isFloat && (rounding & ~kAll) == 0)
    return;
  char text[160];
  snprintf(text, sizeof text,
           "expected a result of f32, f16 or bf16 and roundings from 0 to %d, "
           "but got element type code %d and %d",
           kAll, dtC, rounding);
  diffattn_rt_fail(text);
}

/// silu(0) * 0.
void clear(const Product &p) {
  const auto size = static_cast<int64_t>(dtypeSize(p.dtC));
  for (int64_t i = 0; i < p.M; ++i)
    memset(static_cast<char *>(p.C) + i * p.ldc * size, 0, p.N * size);
}

} // namespace

void diffattn_rt_gated_gemm(int32_t dtC, int64_t M, int64_t N, int64_t K,
                            const void *A, int64_t lda, const void *gate,
                            int64_t ldgate, const void *up, int64_t ldup,
                            int32_t flags, int32_t rounding, void *C,
                            int64_t ldc, diffattn_weight *gate_weight,
                            diffattn_weight *up_weight, int64_t max_threads) {
  counters.gemmCalls.fetch_add(1, std::memory_order_relaxed);
  checkArguments(dtC, rounding);
  if (M <= 0 || N <= 0)
    return;
  const bool transposes = flags & DIFFATTN_GEMM_TRANSPOSE_B;
  Product first{
      DIFFATTN_BF16, DIFFATTN_BF16, dtC,    M,          N, K,   A,
      lda,           gate,          ldgate, transposes, C, ldc, /*beta=*/0,
      max_threads};
  Product second = first;
  second.B = up;
  second.ldb = ldup;
  first.weight = gate_weight;
  second.weight = up_weight;
  const TileUnit *unit = findTileUnit(flags & DIFFATTN_GEMM_BF16_TILES,
                                      flags & DIFFATTN_GEMM_EMULATED_TILES);
  if (!unit)
    failWithoutTiles();
  if (K <= 0)
    return clear(second);
  gatedTileProduct(first, second, rounding, *unit);
}
