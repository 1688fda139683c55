//===- GpuScheduleAttr.cpp - #diffattn.gpu_schedule -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/DiffAttn.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn;

LogicalResult
GpuScheduleAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                        GpuPlacement placement, int64_t warps, int64_t rowTiles,
                        int64_t keys, int64_t stages, bool qInRegisters,
                        int64_t splitKeys) {
  if (warps < 1 || warps > 16) // gpu_schedule_c1
    return emitError() << "expected warps to be between 1 and 16, but got "
                       << warps;
  if (keys < 16 || keys > 128 || keys % 16) // gpu_schedule_c2
    return emitError()
           << "expected keys to be a multiple of 16 up to 128, but got "
           << keys;
  if (rowTiles < 1 || rowTiles > 2) // gpu_schedule_c3
    return emitError() << "expected row_tiles to be 1 or 2, but got "
                       << rowTiles;
  if (stages < 2 || stages > 4) // gpu_schedule_c4
    return emitError() << "expected stages to be between 2 and 4, but got "
                       << stages;
  bool inPairs =
      placement == GpuPlacement::Pair || placement == GpuPlacement::Apart;
  if (inPairs && warps % 2) // gpu_schedule_c5
    return emitError() << "expected an even number of warps for placement "
                       << stringifyGpuPlacement(placement) << ", but got "
                       << warps;
  if (splitKeys && placement != GpuPlacement::Both) // gpu_schedule_c6
    return emitError() << "expected placement both with split_keys, but got "
                       << stringifyGpuPlacement(placement);
  if (splitKeys < 0 || splitKeys % keys) // gpu_schedule_c7
    return emitError()
           << "expected split_keys to be a multiple of keys, but got "
           << splitKeys;
  if (splitKeys > (1 << 20)) // gpu_schedule_c9
    return emitError() << "expected split_keys of at most 1048576, but got "
                       << splitKeys;
  if (splitKeys && keys != 16 * warps) // gpu_schedule_c8
    return emitError() << "expected 16 keys a warp with split_keys, but got "
                       << keys << " keys and " << warps << " warps";
  // Threads share out the rows of a tile evenly, whatever its width.
  for (auto [name, value] :
       {std::pair<StringRef, int64_t>{"warps", warps}, {"keys", keys}})
    if (!llvm::isPowerOf2_64(value)) // gpu_schedule_c10
      return emitError() << "expected " << name
                         << " to be a power of two, but got " << value;
  return success();
}
