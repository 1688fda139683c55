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
#include <optional>

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
  /// Allocates the panels. False if there is no memory.
  bool allocate(int64_t bytes) {
    data = static_cast<char *>(allocatePanels(bytes));
    return data;
  }
};

/// A's block and B's panel stay in the L2. Sums of a block of k that is not the
/// last cost a load and a store.
constexpr int64_t kRows = 256, kColumns = 512, kDepth = 1024;
constexpr int64_t kStepBytes = 2 * kTileBytes;
constexpr int64_t kElementBytes = sizeof(uint16_t);
/// Sizes of a block that is multiplied at once: two by two tiles.
constexpr int64_t kBlockRows = 2 * kTileRows,
                  kBlockElements = kBlockRows * kTilePanelColumns;

/// op(B) of a product, as panels.
class RightSide {
public:
  explicit RightSide(const Product &p) : p(p), packed(findPacked()) {}

  int64_t panels() const { return divideCeil(p.N, kTilePanelColumns); }
  int64_t panelBytes() const {
    return divideCeil(p.K, kTileDepth) * kStepBytes;
  }
  bool isPacked() const { return packed; }

  /// Elements [k0, k0 + k) of the columns [j, j + n), n up to 32, as a panel,
  /// made in `scratch` unless it is packed. j is a multiple of 32, and k0 of
  /// kDepth.
  const char *getPanel(int64_t batch, int64_t k0, int64_t k, int64_t j,
                       int64_t n, char *scratch) const {
    if (packed)
      return packed + j / kTilePanelColumns * panelBytes() +
             k0 / kTileDepth * kStepBytes;
    packPanel(startOf(batch), k0, k, j, n, scratch);
    return scratch;
  }

private:
  const uint16_t *startOf(int64_t batch) const {
    return static_cast<const uint16_t *>(p.B) + batch * p.strideB;
  }

  /// Packs elements [k0, k0 + k) of the columns [j, j + n) of op(B), n up to
  /// 32, to a panel. k0 is a multiple of 32.
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
    auto tiles = new (std::nothrow) TilePanels(p);
    if (!tiles || !tiles->allocate(panels() * panelBytes())) {
      delete tiles;
      return nullptr; // packed at each use: the same numbers, slower
    }
    auto panel = [&](int64_t index) {
      const int64_t j = index * kTilePanelColumns;
      packPanel(startOf(0), 0, p.K, j, std::min(kTilePanelColumns, p.N - j),
                tiles->data + index * panelBytes());
    };
    parallelFor(panels(), p.maxThreads, panel);
    counters.packs.fetch_add(1, std::memory_order_relaxed);
    return tiles;
  }

  /// The weight's panels, made now if its slot is empty; null if it may not be
  /// packed, or is in another form.
  const char *findPacked() const {
    PackedWeight *tiles =
        packOnce(p, PackedWeight::Form::Tiles, [&] { return pack(); });
    return tiles ? static_cast<TilePanels *>(tiles)->data : nullptr;
  }

  const Product &p;
  const char *packed;
};

/// One product, or two of the same A of which the first gates the second.
class TiledProduct {
public:
  TiledProduct(const Product &p, const TileUnit &unit)
      : p(p), unit(unit), first(p) {}
  TiledProduct(const Product &gate, const Product &up, int32_t rounding,
               const TileUnit &unit)
      : p(up), unit(unit), first(gate), gated(up), rounding(rounding) {}

  void run() const {
    // Below this many operations the threads cost more than they save.
    const bool isSmall = 2.0 * p.batch * p.M * p.N * p.K * sides() < 1e6;
    const int64_t maxThreads = isSmall ? 1 : p.maxThreads;
    const int64_t rowItems = divideCeil(p.M, kRows);
    const int64_t width =
        kTilePanelColumns * panelsOfItem(rowItems, regionThreads(maxThreads));
    forTiles(p, kRows, width, maxThreads,
             [&](const Item &item) { multiply(item); });
  }

private:
  using Item = ProductTile;
  static int64_t rowTilesOf(const Item &item) {
    return divideCeil(item.m, kTileRows);
  }

  int64_t sides() const { return gated ? 2 : 1; }
  const RightSide &side(int64_t index) const { return index ? *gated : first; }

  /// Copies elements [k0, k0 + k) of an item's rows to tiles, with zeros beyond
  /// both.
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

  /// Temporary memory of an item.
  struct Workspace {
    char *rows;
    /// A panel of each side that is not packed.
    char *panels[2];
    /// Sums of each side between blocks of k, `ld` elements from row to row;
    /// null if there is one block. Then those that are about to be stored.
    float *sums[2];
    int64_t ld;
    float *done[2];
  };

  Workspace allocateFor(const Item &item) const {
    Workspace w = {};
    const int64_t maxSteps = divideCeil(std::min(p.K, kDepth), kTileDepth);
    w.rows = allocate<char>(rowTilesOf(item) * maxSteps * kTileBytes);
    w.ld = divideCeil(item.n, kTilePanelColumns) * kTilePanelColumns;
    for (int64_t at = 0; at < sides(); ++at) {
      if (!side(at).isPacked())
        w.panels[at] = allocate<char>(maxSteps * kStepBytes);
      if (p.K > kDepth)
        w.sums[at] = allocate<float>(rowTilesOf(item) * kTileRows * w.ld);
      w.done[at] = allocate<float>(kBlockElements);
    }
    return w;
  }

  /// Stores the block of `done` whose first row is row `i` of the item.
  void store(const Item &item, int64_t i, int64_t j, int64_t n,
             const Workspace &w) const {
    float *sums = w.done[sides() - 1];
    if (gated)
      unit.gateSums(rounding,
                    std::min(kBlockRows, item.m - i) * kTilePanelColumns,
                    w.done[0], sums);
    storeRows(p, item, i, kBlockRows, j, n, sums, kTilePanelColumns);
  }

  void multiply(const Item &item) const {
    ArenaScope scope;
    const Workspace w = allocateFor(item);
    unit.begin(std::min(p.M, kTileRows));
    for (int64_t k0 = 0; k0 < p.K; k0 += kDepth) {
      const int64_t k = std::min(kDepth, p.K - k0);
      copyRows(item, k0, k, w.rows);
      for (int64_t j = 0; j < item.n; j += kTilePanelColumns)
        multiplyPanels(item, k0, k, j, w);
    }
    unit.end();
  }

  /// Multiplies the item's rows by 32 columns of each side, in a block of k.
  void multiplyPanels(const Item &item, int64_t k0, int64_t k, int64_t j,
                      const Workspace &w) const {
    const int64_t n = std::min(kTilePanelColumns, item.n - j),
                  steps = divideCeil(k, kTileDepth);
    const bool isLast = k0 + k == p.K;
    const char *panels[2];
    for (int64_t at = 0; at < sides(); ++at)
      panels[at] =
          side(at).getPanel(item.batch, k0, k, item.j + j, n, w.panels[at]);
    for (int64_t i = 0; i < rowTilesOf(item); i += 2) {
      for (int64_t at = 0; at < sides(); ++at) {
        float *sums =
            w.sums[at] ? w.sums[at] + i * kTileRows * w.ld + j : nullptr;
        unit.multiply({std::min<int64_t>(2, rowTilesOf(item) - i), steps,
                       /*parts=*/1, w.rows + i * steps * kTileBytes,
                       steps * kTileBytes, panels[at],
                       /*isFirstRead=*/side(at).isPacked() && i == 0,
                       k0 == 0 ? nullptr : sums, w.ld,
                       isLast ? w.done[at] : sums,
                       isLast ? kTilePanelColumns : w.ld});
      }
      if (isLast)
        store(item, i * kTileRows, j, n, w);
    }
  }

  /// Panels of an item. With few rows about 128 KiB of B: small enough to share
  /// out, large enough to be worth it. Else at least two items a thread.
  int64_t panelsOfItem(int64_t rowItems, int64_t threads) const {
    const int64_t wanted =
        p.M <= kTileRows
            ? (128 << 10) / (first.panelBytes() * sides())
            : std::min(p.batch * rowItems * first.panels() / (2 * threads),
                       kColumns / sides() / kTilePanelColumns);
    return std::max<int64_t>(1, wanted);
  }

  const Product &p;
  const TileUnit &unit;
  const RightSide first;
  /// The right side of the product that `first` gates.
  const std::optional<RightSide> gated;
  const int32_t rounding = 0;
};

} // namespace

void diffattn_rt::tileProduct(const Product &p, const TileUnit &unit) {
  TiledProduct(p, unit).run();
}

void diffattn_rt::gatedTileProduct(const Product &gate, const Product &up,
                                   int32_t rounding, const TileUnit &unit) {
  TiledProduct(gate, up, rounding, unit).run();
}
