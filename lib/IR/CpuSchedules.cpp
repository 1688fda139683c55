//===- CpuSchedules.cpp - schedules of CPU kernels ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/DiffAttn.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn;

using EmitError = function_ref<InFlightDiagnostic()>;

ScheduleTarget LinalgAttr::getTarget() const { return ScheduleTarget::Any; }

static LogicalResult verifyAtMost(EmitError emitError, const Twine &name,
                                  int64_t value, int64_t most) {
  if (value <= most)
    return success();
  return emitError() << "expected " << name << " of at most " << most
                     << ", but got " << value;
}

static LogicalResult verifyPowerOf2(EmitError emitError, StringRef name,
                                    int64_t value, int64_t most) {
  if (value >= 1 && value <= most &&
      llvm::isPowerOf2_64(static_cast<uint64_t>(value)))
    return success();
  return emitError() << "expected " << name << " to be a power of two up to "
                     << most << ", but got " << value;
}

/// Checks the vector lanes, and the product that they can make.
static LogicalResult verifyVectors(EmitError emitError, int64_t lanes,
                                   CpuProduct product) {
  // cpu_prefill_c1, cpu_split_kv_c1
  if (lanes != 4 && lanes != 8 && lanes != 16)
    return emitError() << "expected lanes to be 4, 8 or 16, but got " << lanes;
  // cpu_prefill_c2, cpu_split_kv_c2
  if (product == CpuProduct::Bf16Pairs && lanes != 16)
    return emitError() << "expected 16 lanes with product bf16_pairs, but got "
                       << lanes;
  return success();
}

/// Checks that the sums fit in the unit's eight tiles, beside two tiles of
/// operands.
static LogicalResult verifyTiles(EmitError emitError, CpuProduct product,
                                 int64_t lanes, RegisterTile qk,
                                 RegisterTile pv, int64_t kvBlockSize) {
  constexpr int64_t rows = 16, depth = 32, maxSums = 6;
  if (lanes != rows) // cpu_prefill_c13
    return emitError() << "expected 16 lanes with product "
                       << stringifyCpuProduct(product) << ", but got " << lanes;
  if (qk.height != rows || qk.unroll != 1 ||
      qk.vectors > maxSums) // cpu_prefill_c14
    return emitError() << "expected the qk_tile of product "
                       << stringifyCpuProduct(product)
                       << " to be [16, up to 6, 1], but got [" << qk.height
                       << ", " << qk.vectors << ", " << qk.unroll << "]";
  if (pv.height % rows || pv.height > maxSums * rows || pv.vectors != 1 ||
      pv.unroll != 1) // cpu_prefill_c15
    return emitError() << "expected the pv_tile of product "
                       << stringifyCpuProduct(product)
                       << " to be [a multiple of 16 up to 96, 1, 1], but got ["
                       << pv.height << ", " << pv.vectors << ", " << pv.unroll
                       << "]";
  if (kvBlockSize % depth) // cpu_prefill_c16
    return emitError() << "expected kv_block_size to be a multiple of 32 with "
                          "product "
                       << stringifyCpuProduct(product) << ", but got "
                       << kvBlockSize;
  return success();
}

//===----------------------------------------------------------------------===//
// Blocks of queries
//===----------------------------------------------------------------------===//

static RegisterTile toTile(DenseI64ArrayAttr tile) {
  return {tile[0], tile[1], tile[2]};
}

ScheduleTarget CpuPrefillAttr::getTarget() const { return ScheduleTarget::CPU; }
RegisterTile CpuPrefillAttr::getQk() const { return toTile(getQkTile()); }
RegisterTile CpuPrefillAttr::getPv() const { return toTile(getPvTile()); }

LogicalResult CpuPrefillAttr::verify(EmitError emitError, StringRef isa,
                                     int64_t lanes, int64_t qBlockSize,
                                     DenseI64ArrayAttr qkTile,
                                     DenseI64ArrayAttr pvTile,
                                     int64_t kvBlockSize, int64_t twoPassKeys,
                                     CpuProduct product) {
  if (failed(verifyVectors(emitError, lanes, product)))
    return failure();
  // cpu_prefill_c3
  if (failed(verifyAtMost(emitError, "q_block_size", qBlockSize, 1024)) ||
      failed(verifyAtMost(emitError, "kv_block_size", kvBlockSize, 1 << 16)))
    return failure();
  if (qBlockSize <= 0 || qBlockSize % lanes) // cpu_prefill_c4
    return emitError()
           << "expected q_block_size to be a positive multiple of lanes, but "
              "got "
           << qBlockSize;
  for (auto [name, tile] :
       {std::pair<StringRef, DenseI64ArrayAttr>{"qk_tile", qkTile},
        {"pv_tile", pvTile}}) {
    if (tile.size() != 3) // cpu_prefill_c5
      return emitError() << "expected " << name
                         << " to hold 3 numbers, but got " << tile.size();
    for (int64_t n : tile.asArrayRef())
      if (n < 1 || n > 64) // cpu_prefill_c6
        return emitError() << "expected the numbers of " << name
                           << " to be between 1 and 64, but got " << n;
    // cpu_prefill_c7
    if (failed(verifyAtMost(emitError, "a product of the numbers of " + name,
                            tile[0] * tile[1] * tile[2], 512)))
      return failure();
  }
  RegisterTile qk = toTile(qkTile), pv = toTile(pvTile);
  if (!llvm::isPowerOf2_64(pv.vectors)) // cpu_prefill_c8
    return emitError() << "expected the vectors of pv_tile to be a power "
                          "of two, but got "
                       << pv.vectors;
  if (qBlockSize % (qk.vectors * lanes)) // cpu_prefill_c9
    return emitError()
           << "expected q_block_size to be a multiple of the qk_tile's "
           << qk.vectors * lanes << ", but got " << qBlockSize;
  if (qBlockSize % pv.height) // cpu_prefill_c10
    return emitError()
           << "expected q_block_size to be a multiple of the pv_tile's "
           << pv.height << ", but got " << qBlockSize;
  if (kvBlockSize < qk.height || kvBlockSize % qk.height ||
      kvBlockSize % lanes) // cpu_prefill_c11
    return emitError()
           << "expected kv_block_size to be a multiple of lanes and of the "
              "qk_tile's "
           << qk.height << ", but got " << kvBlockSize;
  if (twoPassKeys < 0) // cpu_prefill_c12
    return emitError() << "expected two_pass_keys not to be negative, but got "
                       << twoPassKeys;
  if (usesTiles(product))
    return verifyTiles(emitError, product, lanes, qk, pv, kvBlockSize);
  return success();
}

//===----------------------------------------------------------------------===//
// Gradients
//===----------------------------------------------------------------------===//

ScheduleTarget CpuBackwardAttr::getTarget() const {
  return ScheduleTarget::CPU;
}
bool CpuBackwardAttr::computesGradients() const { return true; }

CpuPrefillAttr CpuBackwardAttr::getPhases() const {
  return CpuPrefillAttr::get(getContext(), getIsa(), getLanes(),
                             getQBlockSize(), getQkTile(), getPvTile(),
                             getKvBlockSize(), getTwoPassKeys(), getProduct());
}

LogicalResult CpuBackwardAttr::verify(EmitError emitError, StringRef isa,
                                      int64_t lanes, int64_t qBlockSize,
                                      DenseI64ArrayAttr qkTile,
                                      DenseI64ArrayAttr pvTile,
                                      int64_t kvBlockSize, int64_t twoPassKeys,
                                      int64_t qSliceSize, CpuProduct product) {
  // cpu_backward_c1
  if (failed(CpuPrefillAttr::verify(emitError, isa, lanes, qBlockSize, qkTile,
                                    pvTile, kvBlockSize, twoPassKeys, product)))
    return failure();
  if (qSliceSize <= 0 || qSliceSize % qBlockSize) // cpu_backward_c2
    return emitError() << "expected q_slice_size to be a positive multiple of "
                          "q_block_size, but got "
                       << qSliceSize;
  // cpu_backward_c3: products contract queries by whole tiles.
  if (usesTiles(product) && qBlockSize % 32)
    return emitError() << "expected q_block_size to be a multiple of 32 with "
                          "product "
                       << stringifyCpuProduct(product) << ", but got "
                       << qBlockSize;
  return success();
}

//===----------------------------------------------------------------------===//
// Few queries
//===----------------------------------------------------------------------===//

ScheduleTarget CpuSplitKVAttr::getTarget() const { return ScheduleTarget::CPU; }

LogicalResult CpuSplitKVAttr::verify(EmitError emitError, StringRef isa,
                                     int64_t lanes, int64_t kvSplitSize,
                                     int64_t qkRows, int64_t qVectors,
                                     int64_t pvRows, int64_t pvKeys,
                                     int64_t oVectors, int64_t oRowVectors,
                                     CpuProduct product, int64_t prefetchBytes,
                                     int64_t prefetchRows) {
  if (failed(verifyVectors(emitError, lanes, product)))
    return failure();
  if (prefetchBytes < 0 || prefetchBytes > 1 << 16) // cpu_split_kv_c10
    return emitError()
           << "expected prefetch_bytes to be between 0 and 65536, but got "
           << prefetchBytes;
  if (prefetchRows < 0 || prefetchRows > 4096) // cpu_split_kv_c11
    return emitError()
           << "expected prefetch_rows to be between 0 and 4096, but got "
           << prefetchRows;
  if (usesTiles(product) && lanes != 16) // cpu_split_kv_c9
    return emitError() << "expected 16 lanes with product "
                       << stringifyCpuProduct(product) << ", but got " << lanes;
  if (kvSplitSize <= 0 || kvSplitSize % lanes) // cpu_split_kv_c3
    return emitError()
           << "expected kv_split_size to be a positive multiple of lanes, but "
              "got "
           << kvSplitSize;
  // cpu_split_kv_c4
  if (failed(verifyAtMost(emitError, "kv_split_size", kvSplitSize, 1 << 16)))
    return failure();
  // cpu_split_kv_c5: the sums of rows and keys fill one vector.
  if (failed(verifyPowerOf2(emitError, "qk_rows", qkRows, lanes)))
    return failure();
  if (qVectors < 0 || qVectors > 64) // cpu_split_kv_c6
    return emitError() << "expected q_vectors to be between 0 and 64, but got "
                       << qVectors;
  // cpu_split_kv_c7
  if (failed(verifyPowerOf2(emitError, "o_vectors", oVectors, 64)) ||
      failed(verifyPowerOf2(emitError, "o_row_vectors", oRowVectors, 64)) ||
      failed(verifyPowerOf2(emitError, "pv_rows", pvRows, oVectors)))
    return failure();
  // cpu_split_kv_c8: a pair of keys does not lie in two tiles.
  if (pvKeys < 2 || pvKeys > 4096 || pvKeys % 2)
    return emitError()
           << "expected pv_keys to be even and between 2 and 4096, but got "
           << pvKeys;
  return success();
}
