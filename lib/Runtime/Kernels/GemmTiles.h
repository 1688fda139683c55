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

/// Count of bf16 numbers that add up to any normal number of type `dtype`, with
/// the highest digits in the first one: for f32, 8 + 8 + 8 of 24 digits.
inline int64_t getBf16Parts(int32_t dtype) {
  return dtype == DIFFATTN_BF16 ? 1 : dtype == DIFFATTN_F16 ? 2 : 3;
}

/// 32 columns of C in one or two tiles of rows:
/// to[16 rowTiles, 32] = from + A * B.
struct TileProduct {
  /// 1 or 2, and elements of k / 32.
  int64_t rowTiles, steps;
  /// An element of A is the sum of so many, whose tiles follow one another.
  int64_t parts;
  /// Tiles [rowTiles][...][parts][16 rows][32 of k], `strideA` bytes from one
  /// tile of rows to the next.
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

/// Integers of up to 32 columns of a weight, which become a panel of B.
struct IntegerPanel {
  /// The first integer of the first column. Each of the `columns` begins
  /// `columnBytes` behind the one before.
  const char *from;
  int64_t columnBytes, columns;
  /// 8, or 4 with the first of two in the low half of a byte.
  int64_t bits;
  /// Integers of each column, a multiple of 8.
  int64_t count;
};

/// A matrix unit. Between `begin` and `end` a thread computes products; tiles
/// of A and of sums have `rows` rows.
struct TileUnit {
  void (*begin)(int64_t rows);
  void (*multiply)(const TileProduct &product);
  void (*end)();
  /// The integers as bf16: tiles [ceil(count / 32)][2][16 pairs of k]
  /// [16 columns][2], with zeros beyond `count` and the columns.
  void (*widen)(const IntegerPanel &panel, char *to);
  /// `count` numbers of a row of A, a multiple of 8, as the sums of bf16 that
  /// they are: a row of each of the tiles [ceil(count / 32)][parts], with zeros
  /// beyond `count`.
  void (*split)(int32_t dtype, const void *row, int64_t count, char *to);
  /// totals[rows, 32] += sums[rows, 32] * scales[32], each rounded once.
  void (*addScaled)(int64_t rows, const float *sums, const float *scales,
                    float *totals);
  /// sums[count] = silu(gates[count]) * sums, for a multiple of 16; `rounding`
  /// is of diffattn_gate_rounding.
  void (*gateSums)(int32_t rounding, int64_t count, const float *gates,
                   float *sums);
};

/// The unit of AMX's tiles, or with `emulates` an emulation of it; null if this
/// CPU has neither tiles nor the vectors of their emulation, or if neither was
/// asked for.
const TileUnit *findTileUnit(bool tiles, bool emulates);

/// Fails the current call because `findTileUnit` found none.
inline void failWithoutTiles() {
  diffattn_rt_fail("expected a CPU with AMX's tiles that the system lets the "
                   "process use, or with AVX2 to emulate them, but this one "
                   "has neither what was asked for");
}

/// `p`, whose A and B are bf16, by the tiles of `unit`. Each element of C is
/// one chain of sums over steps of 32 elements of k (Intel's TDPBF16PS: a sum
/// of the products with k even, and one of those with k odd, are added up and
/// then added to C), so a row is the same for every M, place and number of
/// threads. K must not be 0.
void tileProduct(const Product &p, const TileUnit &unit);

/// The op gated_gemm by the tiles of `unit`: products `gate` and `up`, which
/// differ in their B alone, and whose result is `up`'s. Sums are those of
/// `tileProduct`.
void gatedTileProduct(const Product &gate, const Product &up, int32_t rounding,
                      const TileUnit &unit);

} // namespace diffattn_rt

#endif // DIFFATTN_LIB_RUNTIME_KERNELS_GEMMTILES_H
