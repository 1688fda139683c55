//===- ScheduleAttr.cpp - #diffattn.schedule ------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/DiffAttn.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn;

LogicalResult ScheduleAttr::verify(
    function_ref<InFlightDiagnostic()> emitError, SchedulePath path,
    StringRef isa, int64_t lanes, int64_t rows, DenseI64ArrayAttr scoreTile,
    DenseI64ArrayAttr productTile, int64_t kvBlockSize, int64_t twoPassKeys,
    int64_t splitRows, int64_t splitKeys, bool bf16Dot) {
  if (path == SchedulePath::Linalg)
    return success();
  if (lanes != 4 && lanes != 8 && lanes != 16) // schedule_c1
    return emitError() << "expected lanes to be 4, 8 or 16, but got " << lanes;
  auto verifyAtMost = [&](StringRef name, int64_t value, int64_t most) {
    if (value <= most)
      return success();
    return LogicalResult(emitError() << "expected " << name << " of at most "
                                     << most << ", but got " << value);
  };
  // schedule_c11
  if (failed(verifyAtMost("rows", rows, 1024)) ||
      failed(verifyAtMost("kv_block_size", kvBlockSize, 1 << 16)) ||
      failed(verifyAtMost("split_keys", splitKeys, 1 << 16)))
    return failure();
  if (rows <= 0 || rows % lanes) // schedule_c2
    return emitError()
           << "expected rows to be a positive multiple of lanes, but got "
           << rows;
  for (auto [name, tile] :
       {std::pair<StringRef, DenseI64ArrayAttr>{"qk_tile", scoreTile},
        {"pv_tile", productTile}}) {
    if (!tile || tile.size() != 3) // schedule_c3
      return emitError() << "expected " << name
                         << " to hold 3 numbers, but got "
                         << (tile ? tile.size() : 0);
    for (int64_t n : tile.asArrayRef())
      if (n < 1 || n > 64) // schedule_c4
        return emitError() << "expected the numbers of " << name
                           << " to be between 1 and 64, but got " << n;
    // schedule_c12
    if (failed(verifyAtMost("a product of the numbers of " + name.str(),
                            tile[0] * tile[1] * tile[2], 512)))
      return failure();
  }
  if (!llvm::isPowerOf2_64(productTile[1])) // schedule_c13
    return emitError() << "expected the vectors of pv_tile to be a power "
                          "of two, but got "
                       << productTile[1];
  if (bf16Dot && lanes != 16) // schedule_c14
    return emitError() << "expected 16 lanes with bf16_dot, but got " << lanes;
  if (rows % (scoreTile[1] * lanes)) // schedule_c5
    return emitError() << "expected rows to be a multiple of the qk_tile's "
                       << scoreTile[1] * lanes << ", but got " << rows;
  if (rows % productTile[0]) // schedule_c6
    return emitError() << "expected rows to be a multiple of the pv_tile's "
                       << productTile[0] << ", but got " << rows;
  if (kvBlockSize < scoreTile[0] || kvBlockSize % scoreTile[0] ||
      kvBlockSize % lanes) // schedule_c7
    return emitError()
           << "expected kv_block_size to be a multiple of lanes and of the "
              "qk_tile's "
           << scoreTile[0] << ", but got " << kvBlockSize;
  if (splitRows < 0) // schedule_c8
    return emitError() << "expected split_rows not to be negative, but got "
                       << splitRows;
  if (splitKeys <= 0 || splitKeys % lanes) // schedule_c9
    return emitError()
           << "expected split_keys to be a positive multiple of lanes, but got "
           << splitKeys;
  if (twoPassKeys < 0) // schedule_c10
    return emitError() << "expected two_pass_keys not to be negative, but got "
                       << twoPassKeys;
  return success();
}
