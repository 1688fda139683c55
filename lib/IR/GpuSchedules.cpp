//===- GpuSchedules.cpp - schedules of GPU kernels ------------------------===//
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

/// Checks a number of warps: threads must share the rows of a tile evenly,
/// whatever its width.
static LogicalResult verifyPowerOf2(EmitError emitError, StringRef name,
                                    int64_t value) {
  if (llvm::isPowerOf2_64(value))
    return success();
  return emitError() << "expected " << name << " to be a power of two, but got "
                     << value;
}

static LogicalResult verifyBetween(EmitError emitError, StringRef name,
                                   int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most)
    return success();
  return emitError() << "expected " << name << " to be between " << least
                     << " and " << most << ", but got " << value;
}

//===----------------------------------------------------------------------===//
// Blocks of queries
//===----------------------------------------------------------------------===//

ScheduleTarget GpuForwardAttr::getTarget() const { return ScheduleTarget::GPU; }

LogicalResult GpuForwardAttr::verify(EmitError emitError,
                                     GpuPlacement placement, int64_t warps,
                                     int64_t rowTiles, int64_t kvBlockSize,
                                     int64_t stages, bool qInRegisters) {
  // gpu_forward_c1
  if (failed(verifyBetween(emitError, "warps", warps, 1, 16)))
    return failure();
  // gpu_forward_c2
  if (kvBlockSize < 16 || kvBlockSize > 128 || kvBlockSize % 16)
    return emitError()
           << "expected kv_block_size to be a multiple of 16 up to 128, but "
              "got "
           << kvBlockSize;
  if (rowTiles < 1 || rowTiles > 2) // gpu_forward_c3
    return emitError() << "expected row_tiles to be 1 or 2, but got "
                       << rowTiles;
  // gpu_forward_c4
  if (failed(verifyBetween(emitError, "stages", stages, 2, 4)))
    return failure();
  if (placement != GpuPlacement::Both && warps % 2) // gpu_forward_c5
    return emitError() << "expected an even number of warps for placement "
                       << stringifyGpuPlacement(placement) << ", but got "
                       << warps;
  // gpu_forward_c6
  if (failed(verifyPowerOf2(emitError, "warps", warps)) ||
      failed(verifyPowerOf2(emitError, "kv_block_size", kvBlockSize)))
    return failure();
  return success();
}

//===----------------------------------------------------------------------===//
// Blocks of queries by warpgroups
//===----------------------------------------------------------------------===//

ScheduleTarget GpuWgmmaAttr::getTarget() const { return ScheduleTarget::GPU; }

LogicalResult GpuWgmmaAttr::verify(EmitError emitError, GpuPlacement placement,
                                   int64_t kvBlockSize, int64_t stages,
                                   int64_t cluster, bool overlap,
                                   int64_t persistentBlocks) {
  if (placement == GpuPlacement::Pair) // gpu_wgmma_c1
    return emitError() << "expected placement both or apart, but got pair";
  // gpu_wgmma_c2
  if (kvBlockSize < 16 || kvBlockSize > 256 || kvBlockSize % 16)
    return emitError()
           << "expected kv_block_size to be a multiple of 16 up to 256, but "
              "got "
           << kvBlockSize;
  // gpu_wgmma_c3
  if (failed(verifyBetween(emitError, "stages", stages, 2, 8)))
    return failure();
  // gpu_wgmma_c4
  if (cluster != 1 && cluster != 2)
    return emitError() << "expected cluster to be 1 or 2, but got " << cluster;
  if (cluster == 2 && (placement != GpuPlacement::Apart || kvBlockSize % 32))
    return emitError()
           << "expected placement apart and kv_block_size to be a multiple of "
              "32 for a cluster of 2, but got "
           << stringifyGpuPlacement(placement) << " and " << kvBlockSize;
  // gpu_wgmma_c5
  if (failed(verifyBetween(emitError, "persistent_blocks", persistentBlocks, 0,
                           65535)))
    return failure();
  if (persistentBlocks && (cluster != 1 || overlap))
    return emitError() << "expected a cluster of 1 and no overlap with "
                          "persistent_blocks, but got "
                       << cluster << " and " << (overlap ? "overlap" : "none");
  return success();
}

//===----------------------------------------------------------------------===//
// Few queries
//===----------------------------------------------------------------------===//

ScheduleTarget GpuSplitKVAttr::getTarget() const { return ScheduleTarget::GPU; }

std::optional<int64_t> GpuSplitKVAttr::getMaxQueries() const {
  return kMaxQueries;
}

LogicalResult GpuSplitKVAttr::verify(EmitError emitError, int64_t warps,
                                     int64_t stages, bool qInRegisters,
                                     bool bulkCopies, int64_t kvSplitSize) {
  // gpu_split_kv_c1
  if (failed(verifyBetween(emitError, "warps", warps, 1, 8)) ||
      failed(verifyPowerOf2(emitError, "warps", warps)))
    return failure();
  // gpu_split_kv_c2
  if (failed(verifyBetween(emitError, "stages", stages, 2, 4)))
    return failure();
  const int64_t keys = kKeysOfWarp * warps;
  if (kvSplitSize <= 0 || kvSplitSize % keys) // gpu_split_kv_c3
    return emitError() << "expected kv_split_size to be a positive multiple of "
                       << keys << ", but got " << kvSplitSize;
  if (kvSplitSize > (1 << 20)) // gpu_split_kv_c4
    return emitError() << "expected kv_split_size of at most 1048576, but got "
                       << kvSplitSize;
  return success();
}

//===----------------------------------------------------------------------===//
// Ordinary instructions
//===----------------------------------------------------------------------===//

ScheduleTarget GpuPlainAttr::getTarget() const { return ScheduleTarget::GPU; }

LogicalResult GpuPlainAttr::verify(EmitError emitError, int64_t warps) {
  // gpu_plain_c1
  if (failed(verifyBetween(emitError, "warps", warps, 1, 16)))
    return failure();
  return verifyPowerOf2(emitError, "warps", warps);
}

//===----------------------------------------------------------------------===//
// Gradients
//===----------------------------------------------------------------------===//

ScheduleTarget GpuBackwardAttr::getTarget() const {
  return ScheduleTarget::GPU;
}

bool GpuBackwardAttr::computesGradients() const { return true; }

LogicalResult GpuBackwardAttr::verify(EmitError emitError, int64_t keyWarps,
                                      int64_t qBlockSize, int64_t queryWarps,
                                      int64_t kvBlockSize, int64_t stages,
                                      int64_t wgmmaQBlockSize,
                                      int64_t wgmmaQStages,
                                      int64_t wgmmaKvBlockSize,
                                      int64_t wgmmaKvStages) {
  // gpu_backward_c1
  for (auto [name, warps] : {std::pair(StringRef("key_warps"), keyWarps),
                             std::pair(StringRef("query_warps"), queryWarps)})
    if (failed(verifyBetween(emitError, name, warps, 1, 8)) ||
        failed(verifyPowerOf2(emitError, name, warps)))
      return failure();
  // gpu_backward_c2
  for (auto [name, rows] : {std::pair(StringRef("q_block_size"), qBlockSize),
                            std::pair(StringRef("kv_block_size"), kvBlockSize)})
    if (failed(verifyBetween(emitError, name, rows, 16, 64)) ||
        failed(verifyPowerOf2(emitError, name, rows)))
      return failure();
  // gpu_backward_c3
  if (failed(verifyBetween(emitError, "stages", stages, 2, 4)))
    return failure();
  const std::tuple<StringRef, int64_t, StringRef, int64_t> byWarpgroups[] = {
      {"wgmma_q_block_size", wgmmaQBlockSize, "wgmma_q_stages", wgmmaQStages},
      {"wgmma_kv_block_size", wgmmaKvBlockSize, "wgmma_kv_stages",
       wgmmaKvStages}};
  for (auto [sizeName, size, stagesName, stages] : byWarpgroups) {
    // gpu_backward_c4
    if (size < 0 || size > 128 || size % 16)
      return emitError() << "expected " << sizeName
                         << " to be a multiple of 16 up to 128, but got "
                         << size;
    // gpu_backward_c5
    if (failed(verifyBetween(emitError, stagesName, stages, size ? 2 : 0,
                             size ? 8 : 0)))
      return failure();
  }
  return success();
}
