//===- TileBuilder.h - tiles of a matrix unit in memory ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_TILEBUILDER_H
#define DIFFATTN_LIB_CODEGEN_CPU_TILEBUILDER_H

#include "DiffAttn/Codegen/CPU/KernelBuilder.h"

namespace mlir::diffattn {

/// Rows of a tile, numbers of 32 bits in a row, and of 16 bits in a row: one
/// product contracts as many.
constexpr int64_t kTileRows = 16, kTileLanes = 16, kTileDepth = 32;

/// AMX ops on raw pointers. A tile has up to 16 rows of up to 64 bytes: of A 32
/// numbers of 16 bits, of B as many in pairs (row p holds numbers 2p and 2p + 1
/// of each of 16 columns), of C 16 sums in f32. Strides count elements.
class TileBuilder {
public:
  /// A and B hold numbers of type `number`: bf16 or f16.
  TileBuilder(KernelBuilder &b, Type number) : b(b), number(number) {}

  /// `rows` rows of `numbers` numbers, or of half as many pairs, from `base`
  /// on. `stride` counts numbers.
  Value loadFactor(Value base, Value stride, int64_t rows = kTileRows,
                   int64_t numbers = kTileDepth);
  Value loadSums(Value base, Value stride);
  Value zeroSums(int64_t columns = kTileLanes);
  Value multiplyAdd(Value a, Value pairs, Value sums);
  void storeSums(Value sums, Value base, Value stride);

  /// Two vectors of f32 as pairs of numbers, rounded to nearest, halves away
  /// from 0. A NaN stays one if its lower 16 bits are 0, as in numbers widened
  /// from 16 bits and in the NaN that a CPU makes of numbers; all ones become
  /// -0. And two vectors of f32 from pairs.
  Value makePairs(Value first, Value second);
  std::pair<Value, Value> splitPairs(Value pairs);

private:
  Value integer(int64_t value);
  Value memory(Value base, Type element);

  KernelBuilder &b;
  const Type number;
};

/// Rows of numbers of 16 bits, of which `rowOf` gives the addresses. Columns
/// lie `columnStride` apart, or side by side where it is null.
struct TileSource {
  function_ref<Value(Value row)> rowOf;
  Value columns, columnStride;
};

/// `count` such rows as rows of `depth` numbers at `panel`, with zeros behind
/// the last column and up to a multiple of 16 rows. `depth` is a multiple of
/// 16.
void packTileRows(KernelBuilder &b, const TileSource &source, Value count,
                  Value depth, Value panel);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_TILEBUILDER_H
