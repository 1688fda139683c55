//===- GemmOwn.cpp - Matrix products without a library --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// k is cut into blocks of a fixed size. The sum of a block is one chain of
// fused multiply-adds in the order of k, in f32 (f64 for f64); the blocks are
// added up in their order, and an element of C is rounded once. (One chain over
// all of a long k would round equal terms alike, and be off by their number.)
// So it depends on its row of A and its column of B alone: not on the number of
// rows, the threads or how either is stored. With pairs, a step of the chain
// adds two products of bf16 in one instruction; where a matrix unit has tiles,
// GemmTiles.h says what a step is.
//
// C is cut into tiles, B into panels. A panel is widened, or transposed, a
// block of k at a time, unless it can be read where it lies; a weight's panels
// are kept where the caller asked for sums in order. Between blocks of k sums
// lie in C itself where it can hold them.
//
//===----------------------------------------------------------------------===//

#include "../Support/Internal.h"
#include "GemmKernels.h"
#include "GemmTiles.h"
#include "OwnProducts.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

using namespace diffattn_rt;

namespace {

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
  /// Allocates the panels. False if there is no memory.
  bool allocate(int64_t bytes) { return data = allocatePanels(bytes); }
};

template <typename Acc, typename X, typename TA, typename TB, typename TC>
struct OwnProduct {
  const Product &p;
  const Kernels<Acc, X, TA, TB, TC> kernels;

  static constexpr bool kPairs = std::is_same_v<X, Pair>;
  using Stored = typename Kernels<Acc, X, TA, TB, TC>::Stored;
  /// Elements of k in one step of a sum.
  static constexpr int64_t kStep = kPairs ? 2 : 1;
  /// A's block and B's panel stay in the L2, for as many columns as make the
  /// copy of A cheap. Each block of k costs a load and a store of all sums.
  static constexpr int64_t kRows = 196, kColumns = 1024, kDepth = 512 * kStep;
  /// Beside a row of A's copy: rows a power of two apart would all lie in one
  /// set of the cache.
  static constexpr int64_t kPadOfA = 64 / sizeof(X);
  /// The most rows for which a panel is read once, so that nothing is won by
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
    if (!p.inOrder)
      return nullptr;
    PackedWeight *packed =
        packOnce(p, PackedWeight::Form::Panels, [&] { return pack(); });
    if (!packed)
      return nullptr;
    auto *panels = static_cast<Panels *>(packed);
    bool fits = panels->columns == kernels.columns && panels->pairs == kPairs;
    return fits ? static_cast<const Stored *>(panels->data) : nullptr;
  }

  Panels *pack() const {
    auto packed = new (std::nothrow) Panels(p, kernels.columns, kPairs);
    int64_t size = steps(p.K) * kernels.columns;
    if (!packed ||
        !packed->allocate(panels() * size * int64_t(sizeof(Stored)))) {
      delete packed;
      return nullptr; // read where it lies: the same numbers, slower
    }
    auto panel = [&](int64_t index) {
      int64_t j = index * kernels.columns;
      kernels.packStored(p.K, std::min(kernels.columns, p.N - j),
                         columnsOfB(static_cast<const TB *>(p.B), j), p.ldb,
                         p.transB,
                         static_cast<Stored *>(packed->data) + index * size);
    };
    parallelFor(panels(), p.maxThreads, panel);
    counters.packs.fetch_add(1, std::memory_order_relaxed);
    return packed;
  }

  using Tile = ProductTile;

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

  /// Memory of the sums of some columns.
  struct Sums {
    Acc *data;
    int64_t ld;
  };

  void multiply(const Tile &tile, const Stored *packed) const {
    const int64_t W = kernels.columns, ldsums = (tile.n + W - 1) / W * W;
    ArenaScope scope;
    // C may be the place of whole panels, since nothing is read beside them.
    const bool inPlace = std::is_same_v<TC, Acc> && p.beta == 0 && p.K > 0 &&
                         !readsRowsOfB(tile, packed);
    const int64_t done = inPlace ? tile.n / W * W : 0;
    TC *C = startOfC(tile);
    Sums sums{nullptr, ldsums - done};
    if (done < tile.n)
      sums.data = allocate<Acc>(tile.m * sums.ld);
    if (p.K <= 0)
      memset(sums.data, 0, sizeof(Acc) * tile.m * sums.ld);
    if (readsRowsOfB(tile, packed))
      addRowsOfB(tile, sums.data, sums.ld);
    else
      multiplyPanels(tile, packed, [&](int64_t j) {
        if constexpr (std::is_same_v<TC, Acc>)
          if (j < done)
            return Sums{C + j, p.ldc};
        return Sums{sums.data + (j - done), sums.ld};
      });
    for (int64_t i = 0; i < tile.m && done < tile.n; ++i)
      kernels.storeRow(tile.n - done, sums.data + i * sums.ld, p.beta,
                       C + i * p.ldc + done);
  }

  void addRowsOfB(const Tile &tile, Acc *sums, int64_t ldsums) const {
    const int64_t lda = steps(p.K) + kPadOfA;
    auto *rows = allocate<X>(tile.m * lda);
    kernels.copyRows(tile.m, p.K, startOfA(tile), p.lda, rows, lda);
    auto *B =
        reinterpret_cast<const Stored *>(startOfB(tile.batch) + tile.j * p.ldb);
    kernels.multiplyRowsOfB(tile.m, steps(p.K), steps(kDepth), tile.n, rows,
                            lda, B, p.ldb / kStep, sums, ldsums);
  }

  /// `sumsAt` returns the address of the sums from column j on, of a whole
  /// panel.
  template <typename SumsAt>
  void multiplyPanels(const Tile &tile, const Stored *packed,
                      SumsAt sumsAt) const {
    const int64_t W = kernels.columns;
    const TA *A = startOfA(tile);
    // Rows of the type that is multiplied are read where they lie.
    constexpr bool kCopies = !std::is_same_v<X, TA>;
    const int64_t lda = kCopies ? kDepth / kStep + kPadOfA : p.lda;
    X *copied = kCopies ? allocate<X>(tile.m * lda) : nullptr;
    X *panel = allocate<X>(kDepth / kStep * W);
    for (int64_t k0 = 0; k0 < p.K; k0 += kDepth) {
      const int64_t k = std::min(p.K - k0, kDepth), s = steps(k);
      const X *rows = copied;
      if constexpr (kCopies)
        kernels.copyRows(tile.m, k, A + k0, p.lda, copied, lda);
      else
        rows = A + k0;
      for (int64_t j = 0; j < tile.n; j += W) {
        const int64_t n = std::min(W, tile.n - j);
        const Sums to = sumsAt(j);
        auto multiply = [&](auto function, const auto *B, int64_t ldb) {
          const auto [next, nextBytes] = nextPanel(tile, packed, k0, j);
          function({tile.m, n, s, rows, lda, B, ldb, k0 == 0, to.data, to.ld,
                    next, nextBytes});
        };
        int64_t ldb = W;
        const Stored *asIs = panelAsItLies(tile, packed, k0, j, ldb);
        if (asIs && (tile.m <= kFewRows || std::is_same_v<X, Stored>)) {
          multiply(kernels.multiplyStored, asIs, ldb);
          continue;
        }
        if (asIs)
          kernels.widenPanel(s * W, asIs, panel);
        else
          kernels.packPanel(k, n, partOfB(tile, k0, j), p.ldb, p.transB, panel);
        multiply(kernels.multiply, panel, W);
      }
    }
  }

  /// op(B) from row k0 and the tile's column j on.
  const TB *partOfB(const Tile &tile, int64_t k0, int64_t j) const {
    return columnsOfB(startOfB(tile.batch), tile.j + j) +
           (p.transB ? k0 : k0 * p.ldb);
  }

  /// The panel from row k0 and the tile's column j on, if it is somewhere in
  /// memory with rows that lie `ldb` apart; else null.
  const Stored *panelAsItLies(const Tile &tile, const Stored *packed,
                              int64_t k0, int64_t j, int64_t &ldb) const {
    const int64_t W = kernels.columns;
    if (packed)
      return packed + ((tile.j + j) / W * steps(p.K) + k0 / kStep) * W;
    if (kPairs || p.transB || tile.m > kFewRows || tile.n - j < W)
      return nullptr;
    ldb = p.ldb;
    return reinterpret_cast<const Stored *>(partOfB(tile, k0, j));
  }

  /// The packed panel that is read after this one, and its bytes.
  std::pair<const char *, int64_t> nextPanel(const Tile &tile,
                                             const Stored *packed, int64_t k0,
                                             int64_t j) const {
    j += kernels.columns;
    if (j >= tile.n) {
      j = 0;
      k0 += kDepth;
    }
    // A fetch from where nothing is mapped would be slow.
    if (!packed || k0 >= p.K)
      return {static_cast<const char *>(p.B), 0};
    int64_t ldb;
    const Stored *panel = panelAsItLies(tile, packed, k0, j, ldb);
    const int64_t size = steps(std::min(p.K - k0, kDepth)) * kernels.columns;
    return {reinterpret_cast<const char *>(panel),
            size * int64_t(sizeof(Stored))};
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
    forTiles(p, kRows, width, maxThreads,
             [&](const Tile &tile) { multiply(tile, packed); });
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
  if (p.dtA == DIFFATTN_BF16 && p.dtB == DIFFATTN_BF16 && p.K > 0) {
    if (const TileUnit *unit = findTileUnit(p.tiles, p.emulatesTiles))
      return tileProduct(p, *unit);
    if (p.pairs && bytes == 64 && hasBf16Pairs())
      return pairsByC(p, bytes);
  }
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

void diffattn_rt::storeRow(const Product &p, int64_t n, const float *sums,
                           void *C) {
  auto store = [&](auto *C) {
    using TC = std::remove_pointer_t<decltype(C)>;
    auto kernels = chooseKernels<float, float, float, float, TC>(
        vectorBytes(DIFFATTN_GEMM_OWN));
    kernels.storeRow(n, sums, p.beta, C);
  };
  switch (p.dtC) {
  case DIFFATTN_F32:
    return store(static_cast<float *>(C));
  case DIFFATTN_F16:
    return store(static_cast<Half *>(C));
  default:
    return store(static_cast<BFloat *>(C));
  }
}

void diffattn_rt::storeSums(const Product &p, const float *sums,
                            int64_t maxThreads) {
  const int64_t size = static_cast<int64_t>(dtypeSize(p.dtC));
  auto row = [&](int64_t i) {
    storeRow(p, p.N, sums + i * p.N,
             static_cast<char *>(p.C) + i * p.ldc * size);
  };
  parallelFor(p.M, maxThreads, row);
}
