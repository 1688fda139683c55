//===- GemmOwn.cpp - Matrix products without a library --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Products of few rows read B once, where it lies. The rest are tiled: a tile
// of C is summed in f32 over blocks of K from packed panels and rounded once.
// A tile's sums depend on the shape alone, never on the number of threads.
//
//===----------------------------------------------------------------------===//

#include "Internal.h"

#include <cstring>

using namespace diffattn::rt;

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

#pragma clang attribute push(                                                  \
    __attribute__((                                                            \
        target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))),          \
    apply_to = function)
namespace v512 {
#define VECTOR_BYTES 64
#define TILE_ROWS 6
#define TILE_VECTORS 4
#include "GemmKernels.inc"
#undef VECTOR_BYTES
#undef TILE_ROWS
#undef TILE_VECTORS
} // namespace v512
#pragma clang attribute pop

#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))),         \
                             apply_to = function)
namespace v256 {
#define VECTOR_BYTES 32
#define TILE_ROWS 6
#define TILE_VECTORS 2
#include "GemmKernels.inc"
#undef VECTOR_BYTES
#undef TILE_ROWS
#undef TILE_VECTORS
} // namespace v256
#pragma clang attribute pop

namespace v128 {
#define VECTOR_BYTES 16
#define TILE_ROWS 4
#define TILE_VECTORS 2
#include "GemmKernels.inc"
#undef VECTOR_BYTES
#undef TILE_ROWS
#undef TILE_VECTORS
} // namespace v128

int vectorBytes(int32_t backend) {
  static const int best =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("avx512dq")
          ? 64
      : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 32
                                                                        : 16;
  int wanted = backend == DIFFATTN_GEMM_OWN_256   ? 32
               : backend == DIFFATTN_GEMM_OWN_128 ? 16
                                                  : 64;
  return wanted < best ? wanted : best;
}

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

/// Writes a tile of sums to C.
template <typename Acc, typename TC>
void store(long m, long n, const Acc *sums, long ldsums, float beta, TC *C,
           long ldc) {
  for (long i = 0; i < m; ++i)
    for (long j = 0; j < n; ++j) {
      Acc sum = sums[i * ldsums + j];
      if (beta != 0)
        sum += beta * toAcc(C + i * ldc + j);
      fromAcc(sum, C + i * ldc + j);
    }
}

template <typename Acc, typename TA, typename TB, typename TC>
struct OwnProduct {
  const Product &p;
  int bytes; // of a vector

  const TA *A(int64_t b) const {
    return static_cast<const TA *>(p.A) + b * p.strideA;
  }
  const TB *B(int64_t b) const {
    return static_cast<const TB *>(p.B) + b * p.strideB;
  }
  TC *C(int64_t b) const { return static_cast<TC *>(p.C) + b * p.strideC; }

  /// Below this many operations the threads cost more than they save.
  int64_t threads() const {
    double ops = 2.0 * p.batch * p.M * p.N * p.K;
    return ops < 1e5 ? 1 : p.maxThreads;
  }

  void fewRows() const {
    // Strips of about 128 KiB of B: small enough to share out, large enough
    // for the prefetcher.
    int64_t width = (128 << 10) / ((p.K + 1) * int64_t(sizeof(TB)));
    width = width < 64 ? 64 : width > 1024 ? 1024 : width / 64 * 64;
    int64_t strips = (p.N + width - 1) / width;
    ArenaScope scope;
    // A cache line more than a multiple of lines: rows a power of two apart
    // would all lie in one set of the cache.
    constexpr int64_t kLine = 64 / sizeof(Acc);
    int64_t lda = (p.K + kLine - 1) / kLine * kLine + kLine;
    Acc *rows = static_cast<Acc *>(
        diffattn_rt_alloc(p.batch * p.M * lda * int64_t(sizeof(Acc))));
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t m = 0; m < p.M; ++m)
        for (int64_t k = 0; k < p.K; ++k)
          rows[(b * p.M + m) * lda + k] = toAcc(A(b) + m * p.lda + k);
    auto strip = [&](int64_t index) {
      int64_t b = index / strips;
      int64_t n0 = index % strips * width;
      int64_t n1 = n0 + width < p.N ? n0 + width : p.N;
      Acc sums[8 * 1024];
      const Acc *a = rows + b * p.M * lda;
      if (bytes == 64)
        v512::fewRows<Acc>(p.M, p.K, a, lda, B(b), p.ldb, p.transB, n0, n1,
                           sums, width);
      else if (bytes == 32)
        v256::fewRows<Acc>(p.M, p.K, a, lda, B(b), p.ldb, p.transB, n0, n1,
                           sums, width);
      else
        v128::fewRows<Acc>(p.M, p.K, a, lda, B(b), p.ldb, p.transB, n0, n1,
                           sums, width);
      store(p.M, n1 - n0, sums, width, p.beta, C(b) + n0, p.ldc);
    };
    parallelFor(p.batch * strips, threads(), strip);
  }

  template <int TileRows, int TileColumns, typename PackA, typename PackB,
            typename Multiply>
  void tiled(PackA packA, PackB packB, Multiply multiply) const {
    // Multiples of every register tile; A's block and B's stay in the L2.
    constexpr int64_t kRows = 192, kColumns = 256, kDepth = 256;
    static_assert(kRows % TileRows == 0 && kColumns % TileColumns == 0);
    int64_t rowTiles = (p.M + kRows - 1) / kRows;
    int64_t columnTiles = (p.N + kColumns - 1) / kColumns;
    auto tile = [&](int64_t index) {
      int64_t b = index / (rowTiles * columnTiles);
      int64_t i0 = index / columnTiles % rowTiles * kRows;
      int64_t j0 = index % columnTiles * kColumns;
      int64_t m = p.M - i0 < kRows ? p.M - i0 : kRows;
      int64_t n = p.N - j0 < kColumns ? p.N - j0 : kColumns;
      ArenaScope scope;
      auto allocate = [](int64_t count) {
        return static_cast<Acc *>(
            diffattn_rt_alloc(count * int64_t(sizeof(Acc))));
      };
      Acc *panelA = allocate(kRows * kDepth);
      Acc *panelB = allocate(kDepth * kColumns);
      Acc *sums = allocate(kRows * kColumns);
      memset(sums, 0, sizeof(Acc) * kRows * kColumns);
      for (int64_t k0 = 0; k0 < p.K; k0 += kDepth) {
        int64_t k = p.K - k0 < kDepth ? p.K - k0 : kDepth;
        packA(m, k, A(b) + i0 * p.lda + k0, p.lda, panelA);
        const TB *from = B(b) + (p.transB ? j0 * p.ldb + k0 : k0 * p.ldb + j0);
        packB(k, n, from, p.ldb, p.transB, panelB);
        multiply(m, n, k, panelA, panelB, sums, kColumns);
      }
      store(m, n, sums, kColumns, p.beta, C(b) + i0 * p.ldc + j0, p.ldc);
    };
    parallelFor(p.batch * rowTiles * columnTiles, threads(), tile);
  }

  void run() const {
    if (p.M <= 8)
      return fewRows();
#define TILED(NS)                                                              \
  return tiled<NS::kTileRows, NS::kTileColumns<Acc>>(                          \
      NS::packA<Acc, TA>, NS::packB<Acc, TB>, NS::multiplyPanels<Acc>)
    if (bytes == 64)
      TILED(v512);
    if (bytes == 32)
      TILED(v256);
    TILED(v128);
#undef TILED
  }
};

template <typename TA, typename TB>
void byC(const Product &p, int bytes) {
  switch (p.dtC) {
  case DIFFATTN_F32:
    return OwnProduct<float, TA, TB, float>{p, bytes}.run();
  case DIFFATTN_F16:
    return OwnProduct<float, TA, TB, Half>{p, bytes}.run();
  default:
    return OwnProduct<float, TA, TB, BFloat>{p, bytes}.run();
  }
}

template <typename TA>
void byB(const Product &p, int bytes) {
  switch (p.dtB) {
  case DIFFATTN_F32:
    return byC<TA, float>(p, bytes);
  case DIFFATTN_F16:
    return byC<TA, Half>(p, bytes);
  default:
    return byC<TA, BFloat>(p, bytes);
  }
}

} // namespace

void diffattn::rt::ownProduct(const Product &p, int32_t backend) {
  int bytes = vectorBytes(backend);
  switch (p.dtA) {
  case DIFFATTN_F64:
    return OwnProduct<double, double, double, double>{p, bytes}.run();
  case DIFFATTN_F32:
    return byB<float>(p, bytes);
  case DIFFATTN_F16:
    return byB<Half>(p, bytes);
  default:
    return byB<BFloat>(p, bytes);
  }
}

void diffattn::rt::storeSums(const Product &p, const float *sums,
                             int64_t maxThreads) {
  auto row = [&](int64_t i) {
    const float *from = sums + i * p.N;
    if (p.dtC == DIFFATTN_F16)
      store(1, p.N, from, p.N, p.beta, static_cast<Half *>(p.C) + i * p.ldc,
            p.ldc);
    else
      store(1, p.N, from, p.N, p.beta, static_cast<BFloat *>(p.C) + i * p.ldc,
            p.ldc);
  };
  parallelFor(p.M, maxThreads, row);
}
