//===- Gemm.cpp - Entry points of matrix products -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../Support/Internal.h"

#include <cstdio>

using namespace diffattn_rt;

namespace {

std::atomic<int32_t> chosenBackend{DIFFATTN_GEMM_AUTO};

/// The most rows for which a product is bound by reading B once: the library's
/// f32 path then reads at a third of the machine's bandwidth. Its bf16 path, on
/// CPUs with bf16 dot products, does not have that weakness.
constexpr int64_t kFewRows = 8;
bool ownIsFaster(const GemmLibrary &library, const Product &p) {
  return p.M <= kFewRows && !library.hasFastTypes(p);
}

bool isSmallFloat(int32_t dtype) {
  return dtype == DIFFATTN_F32 || dtype == DIFFATTN_F16 ||
         dtype == DIFFATTN_BF16;
}

void checkTypes(const Product &p) {
  bool small =
      isSmallFloat(p.dtA) && isSmallFloat(p.dtB) && isSmallFloat(p.dtC);
  bool wide =
      p.dtA == DIFFATTN_F64 && p.dtB == DIFFATTN_F64 && p.dtC == DIFFATTN_F64;
  if (small || wide)
    return;
  char text[160];
  snprintf(text, sizeof text,
           "expected a matrix product of f32, f16 and bf16, or of f64 alone, "
           "but got element type codes %d, %d and %d",
           p.dtA, p.dtB, p.dtC);
  diffattn_rt_fail(text);
}

void product(const Product &p) {
  counters.gemmCalls.fetch_add(1, std::memory_order_relaxed);
  checkTypes(p);
  if (p.M <= 0 || p.N <= 0 || p.batch <= 0)
    return;
  int32_t backend = chosenBackend.load(std::memory_order_relaxed);
  // The library's order depends on the number of rows and of threads.
  bool mayTry = !p.inOrder && (backend == DIFFATTN_GEMM_LIBRARY ||
                               backend == DIFFATTN_GEMM_AUTO);
  const GemmLibrary *library = mayTry ? gemmLibrary() : nullptr;
  if (library && backend == DIFFATTN_GEMM_AUTO && ownIsFaster(*library, p))
    library = nullptr;
  if (library && p.K > 0 && library->product(p))
    return;
  ownProduct(p, backend);
}

Product makeProduct(int32_t dtA, int32_t dtB, int32_t dtC, int64_t M, int64_t N,
                    int64_t K, const void *A, int64_t lda, const void *B,
                    int64_t ldb, int32_t flags, void *C, int64_t ldc,
                    float beta, int64_t maxThreads) {
  Product p{dtA,
            dtB,
            dtC,
            M,
            N,
            K,
            A,
            lda,
            B,
            ldb,
            (flags & DIFFATTN_GEMM_TRANSPOSE_B) != 0,
            C,
            ldc,
            beta,
            maxThreads};
  p.inOrder = flags & DIFFATTN_GEMM_IN_ORDER;
  p.pairs = flags & DIFFATTN_GEMM_BF16_PAIRS;
  p.tiles = flags & DIFFATTN_GEMM_BF16_TILES;
  p.emulatesTiles = flags & DIFFATTN_GEMM_EMULATED_TILES;
  return p;
}

} // namespace

std::mutex diffattn_rt::packMutex;

size_t diffattn_rt::dtypeSize(int32_t dtype) {
  switch (dtype) {
  case DIFFATTN_F64:
  case DIFFATTN_I64:
    return 8;
  case DIFFATTN_F32:
  case DIFFATTN_I32:
    return 4;
  case DIFFATTN_F16:
  case DIFFATTN_BF16:
  case DIFFATTN_I16:
    return 2;
  default:
    return 1;
  }
}

void diffattn_rt_gemm(int32_t dtA, int32_t dtB, int32_t dtC, int64_t M,
                      int64_t N, int64_t K, const void *A, int64_t lda,
                      const void *B, int64_t ldb, int32_t flags, void *C,
                      int64_t ldc, float beta, diffattn_weight *w,
                      int64_t max_threads) {
  Product p = makeProduct(dtA, dtB, dtC, M, N, K, A, lda, B, ldb, flags, C, ldc,
                          beta, max_threads);
  p.weight = w;
  product(p);
}

void diffattn_rt_batch_gemm(int32_t dtA, int32_t dtB, int32_t dtC, int64_t M,
                            int64_t N, int64_t K, const void *A, int64_t lda,
                            const void *B, int64_t ldb, int32_t flags, void *C,
                            int64_t ldc, float beta, int64_t max_threads,
                            int64_t batch, int64_t strideA, int64_t strideB,
                            int64_t strideC) {
  Product p = makeProduct(dtA, dtB, dtC, M, N, K, A, lda, B, ldb, flags, C, ldc,
                          beta, max_threads);
  p.batch = batch;
  p.strideA = strideA;
  p.strideB = strideB;
  p.strideC = strideC;
  product(p);
}

void diffattn_rt_weight_release(diffattn_weight *w) {
  if (auto *packed = static_cast<PackedWeight *>(w->packed))
    packed->destroy(packed);
  w->packed = nullptr;
}

int32_t diffattn_rt_set_gemm_backend(int32_t backend) {
  bool known =
      backend >= DIFFATTN_GEMM_AUTO && backend <= DIFFATTN_GEMM_LIBRARY;
  if (!known || (backend == DIFFATTN_GEMM_LIBRARY && !gemmLibrary()))
    return 1;
  chosenBackend.store(backend);
  return 0;
}

const char *diffattn_rt_gemm_library(void) {
  const GemmLibrary *library = gemmLibrary();
  return library ? library->name : "none";
}
