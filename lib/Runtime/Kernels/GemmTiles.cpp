//===- GemmTiles.cpp - Matrix products by a matrix unit -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// C is cut into work items of some rows and columns. An item copies its rows of
// A to tiles, a block of k at a time, and multiplies them with one panel of B
// after the other, 32 columns wide, by two by two tiles of sums. A weight's
// panels are kept; others are packed where they are used. Between blocks of k
// sums lie in memory in f32, which changes no bit.
//
//===----------------------------------------------------------------------===//
#include "GemmTiles.h"
#include "OwnProducts.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

using namespace diffattn_rt;

namespace {

/// A weight as panels of tiles, one after the other.
struct TilePanels final : PackedWeight {
  char *data = nullptr;
  TilePanels(const Product &p)
      : PackedWeight{
            Form::Tiles,
            [](PackedWeight *self) { delete static_cast<TilePanels *>(self); },
            p.N, p.K, p.transB} {}
  ~TilePanels() { free(data); }
  /// False if there is no memory.
  bool allocate(int64_t bytes) {
    data = static_cast<char *>(allocatePanels(bytes));
    return data;
  }
};

struct TiledProduct {
  const Product &p;
  const TileUnit &unit;

  /// A's block and B's panel stay in the L2. Sums of a block of k that is not
  /// the last cost a load and a store.
  static constexpr int64_t kRows = 256, kColumns = 512, kDepth = 1024;
  static constexpr int64_t kStepBytes = 2 * kTileBytes;
  static constexpr int64_t kElementBytes = sizeof(uint16_t);

  using Item = ProductTile;
  static int64_t rowTilesOf(const Item &item) {
    return divideCeil(item.m, kTileRows);
  }

  int64_t panels() const { return divideCeil(p.N, kTilePanelColumns); }
  int64_t panelBytes() const {
    return divideCeil(p.K, kTileDepth) * kStepBytes;
  }
  const uint16_t *startOfB(int64_t batch) const {
    return static_cast<const uint16_t *>(p.B) + batch * p.strideB;
  }

  /// Elements [k0, k0 + k) of the columns [j, j + n) of op(B), n up to 32, as a
  /// panel. k0 is a multiple of 32.
  void packPanel(const uint16_t *B, int64_t k0, int64_t k, int64_t j, int64_t n,
                 char *to) const {
    const int64_t ofK = p.transB ? 1 : p.ldb, ofColumn = p.transB ? p.ldb : 1;
    memset(to, 0, divideCeil(k, kTileDepth) * kStepBytes);
    B += k0 * ofK + j * ofColumn;
    for (int64_t column = 0; column < n; ++column) {
      const uint16_t *from = B + column * ofColumn;
      char *into = to + column / kTileColumns * kTileBytes +
                   column % kTileColumns * 2 * kElementBytes;
      for (int64_t pair = 0; pair < k / 2; ++pair, from += 2 * ofK) {
        const uint16_t both[] = {from[0], from[ofK]};
        memcpy(into + pair / kTileRows * kStepBytes +
                   pair % kTileRows * kTileRowBytes,
               both, sizeof both);
      }
      if (k % 2)
        memcpy(into + k / 2 / kTileRows * kStepBytes +
                   k / 2 % kTileRows * kTileRowBytes,
               from, sizeof *from);
    }
  }

  TilePanels *pack() const {
    auto made = new (std::nothrow) TilePanels(p);
    if (!made || !made->allocate(panels() * panelBytes())) {
      delete made;
      return nullptr; // packed at each use: the same numbers, slower
    }
    auto panel = [&](int64_t index) {
      const int64_t j = index * kTilePanelColumns;
      packPanel(startOfB(0), 0, p.K, j, std::min(kTilePanelColumns, p.N - j),
                made->data + index * panelBytes());
    };
    parallelFor(panels(), p.maxThreads, panel);
    counters.packs.fetch_add(1, std::memory_order_relaxed);
    return made;
  }

  /// The weight's panels, made now if its slot is empty; null if it may not be
  /// packed, or is in another form.
  const char *packedWeight() const {
    PackedWeight *packed =
        packOnce(p, PackedWeight::Form::Tiles, [&] { return pack(); });
    return packed ? static_cast<TilePanels *>(packed)->data : nullptr;
  }

  /// Elements [k0, k0 + k) of an item's rows as tiles, zeros beyond both.
  void copyRows(const Item &item, int64_t k0, int64_t k, char *to) const {
    const int64_t steps = divideCeil(k, kTileDepth);
    auto *A = static_cast<const uint16_t *>(p.A) + item.batch * p.strideA +
              item.i * p.lda + k0;
    for (int64_t row = 0; row < rowTilesOf(item) * kTileRows; ++row) {
      char *into = to + row / kTileRows * steps * kTileBytes +
                   row % kTileRows * kTileRowBytes;
      for (int64_t first = 0; first < k; first += kTileDepth) {
        const int64_t count =
            row < item.m ? std::min(kTileDepth, k - first) : 0;
        const int64_t bytes = count * kElementBytes;
        if (count > 0)
          memcpy(into, A + row * p.lda + first, bytes);
        memset(into + bytes, 0, kTileRowBytes - bytes);
        into += kTileBytes;
      }
    }
  }

  void multiply(const Item &item, const char *packed) const {
    ArenaScope scope;
    const int64_t mostSteps = divideCeil(std::min(p.K, kDepth), kTileDepth);
    char *rows = allocate<char>(rowTilesOf(item) * mostSteps * kTileBytes);
    char *scratch = packed ? nullptr : allocate<char>(mostSteps * kStepBytes);
    // Sums between blocks of k, and those that are about to be stored.
    const int64_t ld =
        divideCeil(item.n, kTilePanelColumns) * kTilePanelColumns;
    float *sums = p.K > kDepth
                      ? allocate<float>(rowTilesOf(item) * kTileRows * ld)
                      : nullptr;
    float *done = allocate<float>(2 * kTileRows * kTilePanelColumns);
    unit.begin(std::min(p.M, kTileRows));
    for (int64_t k0 = 0; k0 < p.K; k0 += kDepth) {
      const int64_t k = std::min(kDepth, p.K - k0);
      const bool isLast = k0 + k == p.K;
      copyRows(item, k0, k, rows);
      for (int64_t j = 0; j < item.n; j += kTilePanelColumns) {
        const int64_t n = std::min(kTilePanelColumns, item.n - j);
        const char *panel = scratch;
        if (packed)
          panel = packed + (item.j + j) / kTilePanelColumns * panelBytes() +
                  k0 / kTileDepth * kStepBytes;
        else
          packPanel(startOfB(item.batch), k0, k, item.j + j, n, scratch);
        for (int64_t i = 0; i < rowTilesOf(item); i += 2) {
          const int64_t steps = divideCeil(k, kTileDepth);
          float *at = sums ? sums + i * kTileRows * ld + j : nullptr;
          unit.multiply(
              {std::min<int64_t>(2, rowTilesOf(item) - i), steps,
               /*parts=*/1, rows + i * steps * kTileBytes, steps * kTileBytes,
               panel, /*isFirstRead=*/packed && i == 0, k0 == 0 ? nullptr : at,
               ld, isLast ? done : at, isLast ? kTilePanelColumns : ld});
          if (isLast)
            storeRows(p, item, i * kTileRows, 2 * kTileRows, j, n, done,
                      kTilePanelColumns);
        }
      }
    }
    unit.end();
  }

  /// Panels of an item. With few rows about 128 KiB of B: small enough to share
  /// out, large enough to be worth it. Else at least two items a thread.
  int64_t panelsOfItem(int64_t rowItems, int64_t threads) const {
    const int64_t wanted =
        p.M <= kTileRows
            ? (128 << 10) / panelBytes()
            : std::min(p.batch * rowItems * panels() / (2 * threads),
                       kColumns / kTilePanelColumns);
    return std::max<int64_t>(1, wanted);
  }

  void run() const {
    // Below this many operations the threads cost more than they save.
    const bool isSmall = 2.0 * p.batch * p.M * p.N * p.K < 1e6;
    const int64_t maxThreads = isSmall ? 1 : p.maxThreads;
    const char *packed = packedWeight();
    const int64_t rowItems = divideCeil(p.M, kRows);
    const int64_t width =
        kTilePanelColumns * panelsOfItem(rowItems, regionThreads(maxThreads));
    forTiles(p, kRows, width, maxThreads,
             [&](const Item &item) { multiply(item, packed); });
  }
};

} // namespace

void diffattn_rt::tileProduct(const Product &p, const TileUnit &unit) {
  TiledProduct{p, unit}.run();
}
