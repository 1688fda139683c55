//===- TileBuilder.h - tiles of a matrix unit in memory ----------*- C++
//-*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_TILEBUILDER_H
#define DIFFATTN_LIB_CODEGEN_CPU_TILEBUILDER_H

#include "KernelBuilder.h"

namespace mlir::diffattn {

/// Rows of a tile, numbers of 32 bits in a row, and of 16 bits in a row: one
/// product contracts as many.
constexpr int64_t kTileRows = 16, kTileLanes = 16, kTileDepth = 32;

/// AMX ops on raw pointers. A tile is 16 rows of 64 bytes: of A 32 numbers of
/// 16 bits, of B as many in pairs (row p holds numbers 2p and 2p + 1 of each of
/// 16 columns), of C 16 sums in f32. Strides count elements.
class TileBuilder {
public:
  /// A and B hold numbers of type `number`: bf16 or f16.
  TileBuilder(KernelBuilder &b, Type number) : b(b), number(number) {}

  /// 16 rows of 32 numbers, or of 16 pairs, from `base` on. `stride` counts
  /// numbers.
  Value loadFactor(Value base, Value stride);
  Value loadSums(Value base, Value stride);
  Value zeroSums();
  Value multiplyAdd(Value a, Value pairs, Value sums);
  void storeSums(Value sums, Value base, Value stride);

private:
  Value memory(Value base, Type element);

  KernelBuilder &b;
  const Type number;
};

/// 16 vectors of 16 lanes of 32 bits, as rows: their columns.
SmallVector<Value> emitTranspose16x16(KernelBuilder &b, ArrayRef<Value> rows);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_TILEBUILDER_H
