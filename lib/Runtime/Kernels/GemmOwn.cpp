//===- GemmOwn.cpp - Matrix products without a library --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An element of C is one chain of fused multiply-adds in the order of k, in f32
// (f64 for f64), rounded once. So it depends on its row of A and its column of
// B alone: not on the number of rows, the threads or how either is stored. With
// pairs, a step of the chain adds two products of bf16 in one instruction.
//
// C is cut into tiles, B into panels as wide as the register tile. A panel is
// widened, or transposed, a block of k at a time, unless it can be read where
// it lies; a weight's panels are kept where the caller asked for sums in order.
//
//===----------------------------------------------------------------------===//

#include "../Support/Internal.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sys/mman.h>
#include <type_traits>
#include <utility>

using namespace diffattn_rt;

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
#define TILE_ROWS 6
#define TILE_VECTORS 4
#include "GemmKernels.inc"
#undef VECTOR_BYTES
#undef TILE_ROWS
#undef TILE_VECTORS
} // namespace v512
#pragma clang attribute pop

#pragma clang attribute push(                                                  \
    __attribute__((                                                            \
        target("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,"       \
               "f16c"))),                                                      \
    apply_to = function)
namespace v512bf16 {
#define VECTOR_BYTES 64
#define TILE_ROWS 6
#define TILE_VECTORS 4
#define BF16_PAIRS
#include "GemmKernels.inc"
#undef BF16_PAIRS
#undef VECTOR_BYTES
#undef TILE_ROWS
#undef TILE_VECTORS
} // namespace v512bf16
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
  int wanted = backend == DIFFATTN_GEMM_OWN_256   ? 32
               : backend == DIFFATTN_GEMM_OWN_128 ? 16
                                                  : 64;
  return wanted < best ? wanted : best;
}

/// The code of one vector size for A of TA, B of TB and C of TC, with sums of
/// Acc. X is what is multiplied: Acc, or Pair. Stored is what the panels of a
/// kept weight hold.
template <typename Acc, typename X, typename TA, typename TB, typename TC>
struct Kernels {
  using Stored = std::conditional_t<std::is_same_v<X, Pair>, Pair, TB>;
  int64_t columns; // of a panel
  void (*copyRows)(long, long, const TA *, long, X *, long);
  void (*packPanel)(long, long, const TB *, long, bool, X *);
  void (*packStored)(long, long, const TB *, long, bool, Stored *);
  void (*widenPanel)(long, const Stored *, X *);
  void (*multiply)(long, long, const X *, long, const X *, long, Acc *, long);
  void (*multiplyStored)(long, long, const X *, long, const Stored *, long,
                         Acc *, long);
  void (*multiplyRowsOfB)(long, long, long, const X *, long, const Stored *,
                          long, Acc *, long);
  void (*storeRow)(long, const Acc *, float, TC *);
};

#define KERNELS(NS)                                                            \
  {NS::kTileColumns<Acc>,                                                      \
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
    return {v512bf16::kTileColumns<Acc>,
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

/// A weight as panels, k x columns each, one after the other.
struct Panels final : PackedWeight {
  void *data = nullptr;
  int64_t columns;
  bool pairs;
  Panels(const Product &p, int64_t columns, bool pairs)
      : PackedWeight{
            Form::Panels,
            [](PackedWeight *self) { delete static_cast<Panels *>(self); }, p.N,
            p.K, p.transB},
        columns(columns), pairs(pairs) {}
  ~Panels() { free(data); }
  /// False if there is no memory.
  bool allocate(int64_t bytes) {
    constexpr int64_t kHugePage = 2 << 20;
    int64_t unit = bytes >= kHugePage ? kHugePage : 64;
    bytes = (bytes + unit - 1) / unit * unit;
    data = aligned_alloc(unit, bytes);
    if (data && unit == kHugePage)
      madvise(data, bytes, MADV_HUGEPAGE);
    return data;
  }
};

template <typename Acc, typename X, typename TA, typename TB, typename TC>
struct OwnProduct {
  const Product &p;
  const Kernels<Acc, X, TA, TB, TC> kernels;

  static constexpr bool kPairs = std::is_same_v<X, Pair>;
  using Stored = typename Kernels<Acc, X, TA, TB, TC>::Stored;
  /// Elements of k in one step of a sum.
  static constexpr int64_t kStep = kPairs ? 2 : 1;
  /// A's block and B's panel stay in the L2.
  static constexpr int64_t kRows = 192, kColumns = 256, kDepth = 256 * kStep;
  /// Beside a row of A's copy: rows a power of two apart would all lie in one
  /// set of the cache.
  static constexpr int64_t kPadOfA = 64 / sizeof(X);
  /// Up to this many rows a panel is read once, so that nothing is won by
  /// widening it first.
  static constexpr int64_t kFewRows = 8;

  int64_t steps(int64_t k) const { return (k + kStep - 1) / kStep; }
  int64_t panels() const {
    return (p.N + kernels.columns - 1) / kernels.columns;
  }
  const TB *columnsOfB(const TB *B, int64_t j) const {
    return B + (p.transB ? j * p.ldb : j);
  }

  /// The weight's panels, made now if its slot is empty; null if it may not be
  /// packed, or is in another form.
  const Stored *packedWeight() const {
    if (!p.inOrder || !p.weight || p.weight->flags & DIFFATTN_WEIGHT_NO_PACK)
      return nullptr;
    diffattn_weight &w = *p.weight;
    std::lock_guard<std::mutex> lock(packMutex);
    if (!w.packed)
      w.packed = static_cast<PackedWeight *>(pack());
    auto *packed = static_cast<PackedWeight *>(w.packed);
    if (!packed || !packed->fits(PackedWeight::Form::Panels, p))
      return nullptr;
    auto *panels = static_cast<Panels *>(packed);
    bool fits = panels->columns == kernels.columns && panels->pairs == kPairs;
    return fits ? static_cast<const Stored *>(panels->data) : nullptr;
  }

  Panels *pack() const {
    auto made = new (std::nothrow) Panels(p, kernels.columns, kPairs);
    int64_t size = steps(p.K) * kernels.columns;
    if (!made || !made->allocate(panels() * size * int64_t(sizeof(Stored)))) {
      delete made;
      return nullptr; // read where it lies: the same numbers, slower
    }
    auto panel = [&](int64_t index) {
      int64_t j = index * kernels.columns;
      kernels.packStored(p.K, std::min(kernels.columns, p.N - j),
                         columnsOfB(static_cast<const TB *>(p.B), j), p.ldb,
                         p.transB,
                         static_cast<Stored *>(made->data) + index * size);
    };
    parallelFor(panels(), p.maxThreads, panel);
    counters.packs.fetch_add(1, std::memory_order_relaxed);
    return made;
  }

  /// What one work item computes: rows [i, i + m) and columns [j, j + n) of one
  /// of the batch.
  struct Tile {
    int64_t batch, i, m, j, n;
  };

  TC *startOfC(const Tile &tile) const {
    return static_cast<TC *>(p.C) + tile.batch * p.strideC + tile.i * p.ldc +
           tile.j;
  }
  const TA *startOfA(const Tile &tile) const {
    return static_cast<const TA *>(p.A) + tile.batch * p.strideA +
           tile.i * p.lda;
  }
  const TB *startOfB(int64_t batch) const {
    return static_cast<const TB *>(p.B) + batch * p.strideB;
  }

  /// Whether `tile` reads rows of B in the order of their addresses. Pairs must
  /// lie in pairs.
  bool readsRowsOfB(const Tile &tile, const Stored *packed) const {
    return !packed && p.transB && tile.m <= kFewRows &&
           (!kPairs || (p.K % 2 == 0 && p.ldb % 2 == 0));
  }

  void multiply(const Tile &tile, const Stored *packed) const {
    const int64_t W = kernels.columns, ldsums = (tile.n + W - 1) / W * W;
    ArenaScope scope;
    auto *sums = allocate<Acc>(tile.m * ldsums);
    memset(sums, 0, sizeof(Acc) * tile.m * ldsums);
    if (readsRowsOfB(tile, packed))
      addRowsOfB(tile, sums, ldsums);
    else
      addPanels(tile, packed, sums, ldsums);
    TC *C = startOfC(tile);
    for (int64_t i = 0; i < tile.m; ++i)
      kernels.storeRow(tile.n, sums + i * ldsums, p.beta, C + i * p.ldc);
  }

  void addRowsOfB(const Tile &tile, Acc *sums, int64_t ldsums) const {
    const int64_t lda = steps(p.K) + kPadOfA;
    auto *rows = allocate<X>(tile.m * lda);
    kernels.copyRows(tile.m, p.K, startOfA(tile), p.lda, rows, lda);
    auto *B =
        reinterpret_cast<const Stored *>(startOfB(tile.batch) + tile.j * p.ldb);
    kernels.multiplyRowsOfB(tile.m, steps(p.K), tile.n, rows, lda, B,
                            p.ldb / kStep, sums, ldsums);
  }

  void addPanels(const Tile &tile, const Stored *packed, Acc *sums,
                 int64_t ldsums) const {
    const int64_t W = kernels.columns, lda = kDepth / kStep + kPadOfA;
    const TA *A = startOfA(tile);
    const TB *B = startOfB(tile.batch);
    auto *rows = allocate<X>(tile.m * lda);
    auto *panel = allocate<X>(kDepth / kStep * W);
    for (int64_t k0 = 0; k0 < p.K; k0 += kDepth) {
      const int64_t k = std::min(p.K - k0, kDepth), s = steps(k);
      kernels.copyRows(tile.m, k, A + k0, p.lda, rows, lda);
      for (int64_t j = 0; j < tile.n; j += W) {
        const int64_t column = tile.j + j, n = std::min(W, tile.n - j);
        const Stored *asIs = nullptr;
        int64_t ldb = W;
        if (packed) {
          asIs = packed + (column / W * steps(p.K) + k0 / kStep) * W;
        } else {
          const TB *from = columnsOfB(B, column) + (p.transB ? k0 : k0 * p.ldb);
          if (!kPairs && !p.transB && tile.m <= kFewRows && n == W) {
            asIs = reinterpret_cast<const Stored *>(from);
            ldb = p.ldb;
          } else {
            kernels.packPanel(k, n, from, p.ldb, p.transB, panel);
          }
        }
        if (asIs && tile.m > kFewRows && !std::is_same_v<X, Stored>) {
          kernels.widenPanel(s * W, asIs, panel);
          asIs = nullptr;
        }
        if (asIs)
          kernels.multiplyStored(tile.m, s, rows, lda, asIs, ldb, sums + j,
                                 ldsums);
        else
          kernels.multiply(tile.m, s, rows, lda, panel, W, sums + j, ldsums);
      }
    }
  }

  template <typename T>
  static T *allocate(int64_t count) {
    return static_cast<T *>(diffattn_rt_alloc(count * int64_t(sizeof(T))));
  }

  /// Panels of a tile. With few rows about 128 KiB of B: small enough to share
  /// out, large enough to be worth it. Else at least two tiles a thread.
  int64_t panelsOfTile(int64_t rowTiles, int64_t threads) const {
    const int64_t W = kernels.columns;
    const int64_t panelBytes = (p.K + 1) * W * int64_t(sizeof(TB));
    const int64_t wanted =
        p.M <= kFewRows
            ? std::min((128 << 10) / panelBytes, 1024 / W)
            : std::min(p.batch * rowTiles * panels() / (2 * threads),
                       kColumns / W);
    return std::max<int64_t>(1, wanted);
  }

  void run() const {
    // Below this many operations the threads cost more than they save.
    const bool small = 2.0 * p.batch * p.M * p.N * p.K < 1e5;
    const int64_t maxThreads = small ? 1 : p.maxThreads;
    const Stored *packed = packedWeight();
    const int64_t W = kernels.columns, rowTiles = (p.M + kRows - 1) / kRows;
    const int64_t width = W * panelsOfTile(rowTiles, regionThreads(maxThreads));
    const int64_t columnTiles = (p.N + width - 1) / width;
    auto tile = [&](int64_t index) {
      Tile t;
      t.batch = index / (rowTiles * columnTiles);
      t.i = index / columnTiles % rowTiles * kRows;
      t.j = index % columnTiles * width;
      t.m = std::min(p.M - t.i, kRows);
      t.n = std::min(p.N - t.j, width);
      multiply(t, packed);
    };
    parallelFor(p.batch * rowTiles * columnTiles, maxThreads, tile);
  }
};

template <typename Acc, typename X, typename TA, typename TB, typename TC>
void runOwn(const Product &p, int bytes) {
  OwnProduct<Acc, X, TA, TB, TC>{p, chooseKernels<Acc, X, TA, TB, TC>(bytes)}
      .run();
}

template <typename TA, typename TB>
void byC(const Product &p, int bytes) {
  switch (p.dtC) {
  case DIFFATTN_F32:
    return runOwn<float, float, TA, TB, float>(p, bytes);
  case DIFFATTN_F16:
    return runOwn<float, float, TA, TB, Half>(p, bytes);
  default:
    return runOwn<float, float, TA, TB, BFloat>(p, bytes);
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

void pairsByC(const Product &p, int bytes) {
  switch (p.dtC) {
  case DIFFATTN_F32:
    return runOwn<float, Pair, BFloat, BFloat, float>(p, bytes);
  case DIFFATTN_F16:
    return runOwn<float, Pair, BFloat, BFloat, Half>(p, bytes);
  default:
    return runOwn<float, Pair, BFloat, BFloat, BFloat>(p, bytes);
  }
}

} // namespace

void diffattn_rt::ownProduct(const Product &p, int32_t backend) {
  int bytes = vectorBytes(backend);
  if (p.pairs && bytes == 64 && p.dtA == DIFFATTN_BF16 &&
      p.dtB == DIFFATTN_BF16 && hasBf16Pairs())
    return pairsByC(p, bytes);
  switch (p.dtA) {
  case DIFFATTN_F64:
    return runOwn<double, double, double, double, double>(p, bytes);
  case DIFFATTN_F32:
    return byB<float>(p, bytes);
  case DIFFATTN_F16:
    return byB<Half>(p, bytes);
  default:
    return byB<BFloat>(p, bytes);
  }
}

void diffattn_rt::storeSums(const Product &p, const float *sums,
                            int64_t maxThreads) {
  const int bytes = vectorBytes(DIFFATTN_GEMM_OWN);
  auto row = [&](int64_t i) {
    const float *from = sums + i * p.N;
    auto store = [&](auto *C) {
      using TC = std::remove_pointer_t<decltype(C)>;
      auto kernels = chooseKernels<float, float, float, float, TC>(bytes);
      kernels.storeRow(p.N, from, p.beta, C + i * p.ldc);
    };
    if (p.dtC == DIFFATTN_F16)
      store(static_cast<Half *>(p.C));
    else
      store(static_cast<BFloat *>(p.C));
  };
  parallelFor(p.M, maxThreads, row);
}
