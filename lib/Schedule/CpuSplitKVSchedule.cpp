//===- CpuSplitKVSchedule.cpp - the CPU kernel for few queries ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/CpuSchedule.h"

using namespace mlir;
using namespace mlir::diffattn;

/// Rows to prefetch ahead where rows lie apart in memory. One query then takes
/// 0.6 of the time on a core of Zen 4. In a loop that does nothing but read
/// them, 16 rows gain less than half as much as 64.
static constexpr int64_t kPrefetchRows = 64;

/// Vectors of a row of values, as a power of two, where its width is known.
static int64_t getVectors(int64_t valueDim, int64_t lanes) {
  if (ShapedType::isDynamic(valueDim))
    return 0;
  return llvm::PowerOf2Ceil(llvm::divideCeil(valueDim, lanes));
}

/// The most vectors of a row of values that is read to its end before the next
/// one, though its sums be more than registers hold. Of those of 128 by 256 in
/// f32 a core of Zen 4 then reads 90 % of what a plain read loop does, and 55 %
/// where parts of rows are read in turns. Rows of outputs that share values
/// which have to be widened lose more by doing so once for each of them.
static int64_t getWidestRow(bool shares, int64_t bits, CpuProduct product,
                            int64_t registers) {
  if (!shares || bits == 32)
    return 32;
  return product == CpuProduct::Bf16Pairs ? registers : 0;
}

CpuSplitKVAttr mlir::diffattn::selectCpuSplitKV(const AttentionShape &shape,
                                                const CpuTarget &target) {
  // Few queries leave most of a tile of sums empty, but the tile of keys is
  // read as fast as memory allows.
  CpuProduct product = selectCpuMicroKernel(shape, target).product;
  const bool manyRegisters = target.vectorRegisters >= 32;
  const int64_t lanes = target.vectorBytes / 4;
  // Queries stay in registers beside the sums of scores; sums of outputs beside
  // weights and values.
  const int64_t half = target.vectorRegisters / 2;
  int64_t rowVectors = 8, outputVectors = half;
  // 4 KiB of values of width 128: while the other rows use a tile, the next one
  // is not read from memory.
  const int64_t bits = shape.elementType.getIntOrFloatBitWidth();
  int64_t queryRows = manyRegisters ? 4 : 2, valueRows = manyRegisters ? 2 : 1,
          valueKeys = 256 / bits, prefetchBytes = target.prefetchBytes;
  const bool shares = shape.group > 1;
  if (!manyRegisters && shares) {
    // Reading a key or a value again, and widening it, costs more than a few
    // more sums in memory. A tile of 2 KiB may be read in parts, while the next
    // one is prefetched in the order of its addresses.
    queryRows = 4;
    valueRows = 64 / bits;
    valueKeys = 128 / bits;
  }
  const int64_t vectors = getVectors(shape.valueDim, lanes);
  if (vectors > rowVectors &&
      vectors <= getWidestRow(shares, bits, product, half)) {
    rowVectors = vectors;
    outputVectors = std::max(half, vectors);
    valueRows = 1;
  } else if (vectors > rowVectors && (manyRegisters || !shares)) {
    // Parts of a row must follow each other at once.
    valueKeys = 2;
  }
  if (shares || bits < 32)
    prefetchBytes = target.getBusyPrefetchBytes();
  return CpuSplitKVAttr::get(
      shape.elementType.getContext(), target.name, lanes, /*kv_split_size=*/512,
      queryRows, /*q_vectors=*/half, valueRows, valueKeys, outputVectors,
      rowVectors, product, prefetchBytes, kPrefetchRows);
}
