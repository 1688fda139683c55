//===- QuantizedTiles.cpp - Products with quantized weights by tiles ------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// bf16 holds the integers of a weight exactly, so they are multiplied as they
// are, and the scale of a group is applied in f32 to what the tiles summed. An
// element of A is one, two or three bf16, whose sum it is, so that neither
// operand is rounded.
//
// C is cut into work items of some rows and columns. An item copies its rows of
// A to tiles, a block of k at a time, and widens one panel of B after the
// other, 32 columns wide, in memory that stays in the L2. A panel serves all
// rows of the item, and is forgotten: kept, it would take two or four times the
// memory that the weight was narrowed to.
//
//===----------------------------------------------------------------------===//
#include "GemmTiles.h"
#include "OwnProducts.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

using namespace diffattn_rt;

namespace {

struct QuantizedProduct {
  /// A product whose B is the integers, N rows of them.
  const Product &p;
  const TileUnit &unit;
  const int64_t bits, group;
  const float *scales;

  /// Sizes of an item. The more rows, the fewer times B is widened; sums of the
  /// columns, A's block and B's panel stay in the L2.
  static constexpr int64_t kRows = 512, kMinRows = 64, kColumns = 256,
                           kBlockSteps = 32;
  /// Integers of a group that are summed before their scale is applied. It
  /// decides the order of sums, and so does not depend on anything else.
  static constexpr int64_t kRun = 256;
  /// Rows of A and columns of B whose sums are computed together.
  static constexpr int64_t kBlockRows = 2 * kTileRows,
                           kBlockElements = kBlockRows * kTilePanelColumns;

  const int64_t parts = getBf16Parts(p.dtA);
  const int64_t runsOfGroup = divideCeil(group, kRun),
                runs = p.K / group * runsOfGroup;
  /// The most steps of a run; each run gets memory for so many.
  const int64_t stepsOfRun = divideCeil(std::min(group, kRun), kTileDepth);
  const int64_t runsOfBlock =
      std::max<int64_t>(1, kBlockSteps / parts / stepsOfRun);
  const int64_t runBytesOfA = stepsOfRun * parts * kTileBytes,
                runBytesOfB = stepsOfRun * 2 * kTileBytes;

  /// Some integers of a group, of all that lie in the order of k.
  struct Run {
    int64_t group, k0, k;
  };
  Run getRun(int64_t index) const {
    const int64_t first = index % runsOfGroup * kRun;
    const int64_t g = index / runsOfGroup;
    return {g, g * group + first, std::min(kRun, group - first)};
  }

  /// Copies rows of A in a block of k to tiles [rows / 16][runsOfBlock][...].
  void copyRows(const ProductTile &item, int64_t firstRun, int64_t lastRun,
                char *to) const {
    const int64_t size = static_cast<int64_t>(dtypeSize(p.dtA));
    for (int64_t row = 0; row < item.m; ++row)
      for (int64_t index = firstRun; index < lastRun; ++index) {
        const Run run = getRun(index);
        unit.split(p.dtA,
                   static_cast<const char *>(p.A) +
                       ((item.i + row) * p.lda + run.k0) * size,
                   run.k,
                   to +
                       (row / kTileRows * runsOfBlock + index - firstRun) *
                           runBytesOfA +
                       row % kTileRows * kTileRowBytes);
      }
  }

  /// Widens columns [j, j + n) in a block of k to tiles, and copies their
  /// scales.
  void widenPanel(int64_t j, int64_t n, int64_t firstRun, int64_t lastRun,
                  char *to, float *toScales) const {
    const int64_t columnBytes = p.K * bits / 8, groups = p.K / group;
    for (int64_t index = firstRun; index < lastRun; ++index) {
      const Run run = getRun(index);
      unit.widen(
          {static_cast<const char *>(p.B) + j * columnBytes + run.k0 * bits / 8,
           columnBytes, n, bits, run.k},
          to);
      for (int64_t column = 0; column < kTilePanelColumns; ++column)
        *toScales++ =
            column < n ? scales[(j + column) * groups + run.group] : 0.0f;
      to += runBytesOfB;
    }
  }

  void multiply(const ProductTile &item) const {
    ArenaScope scope;
    const int64_t rowTiles = divideCeil(item.m, kTileRows),
                  rowBlocks = divideCeil(item.m, kBlockRows),
                  panels = divideCeil(item.n, kTilePanelColumns);
    // The last tile's rows beyond the item are whatever lies there: so are
    // their sums, which are not stored.
    char *rows = allocate<char>(rowTiles * runsOfBlock * runBytesOfA);
    char *panel = allocate<char>(runsOfBlock * runBytesOfB);
    float *panelScales = allocate<float>(runsOfBlock * kTilePanelColumns);
    float *sums = allocate<float>(kBlockElements);
    float *totals = allocate<float>(panels * rowBlocks * kBlockElements);
    unit.begin(kTileRows);
    for (int64_t first = 0; first < runs; first += runsOfBlock) {
      const int64_t last = std::min(first + runsOfBlock, runs);
      copyRows(item, first, last, rows);
      for (int64_t j = 0; j < panels; ++j) {
        const int64_t column = j * kTilePanelColumns,
                      n = std::min(kTilePanelColumns, item.n - column);
        widenPanel(item.j + column, n, first, last, panel, panelScales);
        for (int64_t i = 0; i < rowBlocks; ++i) {
          float *total = totals + (j * rowBlocks + i) * kBlockElements;
          if (first == 0)
            memset(total, 0, kBlockElements * sizeof(float));
          const int64_t tiles = std::min<int64_t>(2, rowTiles - 2 * i);
          const char *A = rows + 2 * i * runsOfBlock * runBytesOfA;
          for (int64_t run = first; run < last; ++run) {
            const int64_t at = run - first;
            unit.multiply({tiles, divideCeil(getRun(run).k, kTileDepth), parts,
                           A + at * runBytesOfA, runsOfBlock * runBytesOfA,
                           panel + at * runBytesOfB, /*isFirstRead=*/false,
                           /*from=*/nullptr, 0, sums, kTilePanelColumns});
            unit.addScaled(tiles * kTileRows, sums,
                           panelScales + at * kTilePanelColumns, total);
          }
          if (last == runs)
            storeRows(p, item, i * kBlockRows, kBlockRows, column, n, total,
                      kTilePanelColumns);
        }
      }
    }
    unit.end();
  }

  void run() const {
    // At least two items a thread, if that leaves each some rows to share a
    // panel.
    const int64_t panels = divideCeil(p.N, kTilePanelColumns),
                  items = 2 * regionThreads(p.maxThreads);
    int64_t rows = kRows;
    while (rows > kMinRows && divideCeil(p.M, rows) * panels < items)
      rows /= 2;
    const int64_t wanted = std::min(divideCeil(p.M, rows) * panels / items,
                                    kColumns / kTilePanelColumns);
    forTiles(p, rows, kTilePanelColumns * std::max<int64_t>(1, wanted),
             p.maxThreads, [&](const ProductTile &item) { multiply(item); });
  }
};

void checkArguments(const Product &p, int64_t bits, int64_t group) {
  const bool areTypes = p.dtA >= 0 && p.dtA <= DIFFATTN_BF16 && p.dtC >= 0 &&
                        p.dtC <= DIFFATTN_BF16;
  if (areTypes && (bits == 4 || bits == 8) && group > 0 && group % 8 == 0 &&
      p.K > 0 && p.K % group == 0)
    return;
  char text[256];
  snprintf(text, sizeof text,
           "expected f32, f16 or bf16, integers of 4 or 8 bits, and groups of "
           "a multiple of 8 that divides %lld, but got element type codes %d "
           "and %d, %lld bits and groups of %lld",
           (long long)p.K, p.dtA, p.dtC, (long long)bits, (long long)group);
  diffattn_rt_fail(text);
}

} // namespace

void diffattn_rt_quantized_gemm(int32_t dtA, int32_t dtC, int32_t bits,
                                int64_t group, int64_t M, int64_t N, int64_t K,
                                const void *A, int64_t lda, const void *B,
                                const void *scales, int32_t flags, void *C,
                                int64_t ldc, float beta, int64_t max_threads) {
  counters.gemmCalls.fetch_add(1, std::memory_order_relaxed);
  const Product p{dtA, DIFFATTN_I8,  dtC,  M, N,   K,    A,          lda,
                  B,   K * bits / 8, true, C, ldc, beta, max_threads};
  checkArguments(p, bits, group);
  if (M <= 0 || N <= 0)
    return;
  const TileUnit *unit = findTileUnit(flags & DIFFATTN_GEMM_BF16_TILES,
                                      flags & DIFFATTN_GEMM_EMULATED_TILES);
  if (!unit)
    failWithoutTiles();
  QuantizedProduct{p, *unit, bits, group, static_cast<const float *>(scales)}
      .run();
}
