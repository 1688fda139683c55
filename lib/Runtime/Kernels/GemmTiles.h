//===- GemmTiles.h - Matrix products by a matrix unit -----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_LIB_RUNTIME_KERNELS_GEMMTILES_H
#define DIFFATTN_LIB_RUNTIME_KERNELS_GEMMTILES_H

#include "../Support/Internal.h"

namespace diffattn_rt {

/// Rows of a tile, and the bytes of each.
constexpr int64_t kTileRows = 16, kTileRowBytes = 64,
                  kTileBytes = kTileRows * kTileRowBytes;
/// Elements of bf16 in a row of a tile of A, which one instruction contracts,
/// and columns of a tile of sums.
constexpr int64_t kTileDepth = 32, kTileColumns = 16;
/// Columns of a panel of B: two tiles side by side.
constexpr int64_t kTilePanelColumns = 2 * kTileColumns;

/// 32 columns of C in one or two tiles of rows:
/// to[16 rowTiles, 32] = from + A * B.
struct TileProduct {
  /// 1 or 2, and elements of k / 32.
  int64_t rowTiles, steps;
  /// Tiles [rowTiles][...][16 rows][32 of k], `strideA` bytes from one tile of
  /// rows to the next.
  const char *A;
  int64_t strideA;
  /// Tiles [steps][2][16 pairs of k][16 columns][2].
  const char *B;
  /// Whether B is yet to come from memory.
  bool isFirstRead;
  /// Sums, `ld` elements from row to row; null: 0.
  const float *from;
  int64_t ldFrom;
  float *to;
  int64_t ldTo;
};

/// A matrix unit. Between `begin` and `end` a thread computes products; tiles
/// of A and of sums have `rows` rows.
struct TileUnit {
  void (*begin)(int64_t rows);
  void (*multiply)(const TileProduct &product);
  void (*end)();
};

/// The unit that computes `p`, of which `p.tiles` or `p.emulatesTiles` is set;
/// null if A or B is not bf16, or this CPU has neither tiles nor what their
/// emulation needs.
const TileUnit *findTileUnit(const Product &p);

/// `p` by the tiles of `unit`. Each element of C is one chain of sums over
/// steps of 32 elements of k (Intel's TDPBF16PS: a sum of the products with k
/// even, and one of those with k odd, are added up and then added to C), so a
/// row is the same for every M, place and number of threads. K must not be 0.
void tileProduct(const Product &p, const TileUnit &unit);

} // namespace diffattn_rt

#endif // DIFFATTN_LIB_RUNTIME_KERNELS_GEMMTILES_H
