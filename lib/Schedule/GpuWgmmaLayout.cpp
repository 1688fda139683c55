//===- GpuWgmmaLayout.cpp - shared memory of a block of warpgroups --------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/GpuSharedLayout.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn;

GpuSharedLayout::GpuSharedLayout(GpuWgmmaAttr schedule, int64_t headDim,
                                 int64_t valueDim, bool sharedKeys) {
  const int64_t rows = schedule.getRows(), keys = schedule.getKvBlockSize();
  headPanels = llvm::divideCeil(headDim, kGpuPanelWidth);
  valuePanels = llvm::divideCeil(valueDim, kGpuPanelWidth);
  queryPanelBytes = rows * kGpuPanelPitch;
  keyPanelBytes = keys * kGpuPanelPitch;
  queryBytes = headPanels * queryPanelBytes;
  keyBytes = headPanels * keyPanelBytes;
  valueOffset = (sharedKeys ? 1 : 2) * keyBytes;
  stageBytes = llvm::alignTo(valueOffset + valuePanels * keyPanelBytes,
                             kSwizzleAlignment);

  queries.bytes = 2 * queryBytes;
  queries.phases = Load | Loop;
  pipeline.offset = queries.bytes;
  pipeline.bytes = schedule.getStages() * stageBytes;
  pipeline.phases = Loop;
  queries.alignment = pipeline.alignment = kSwizzleAlignment;
  barriers.offset = pipeline.end();
  barriers.bytes = barrierBytes(schedule.getStages());
  barriers.phases = Load | Loop;
  // The second map goes through the pipeline, of which nothing is under way
  // then.
  if (schedule.getPlacement() == GpuPlacement::Apart) {
    combineGroupBytes = 16 * llvm::alignTo(valueDim, 16) * 4;
    combine.offset = pipeline.offset;
    combine.bytes = 4 * combineGroupBytes;
    combine.phases = Finish;
  }
  // A warpgroup with both maps has the queries to itself; those of other
  // widths may leave no room.
  const int64_t resultBytes = valuePanels * queryPanelBytes;
  if (schedule.getPlacement() == GpuPlacement::Both &&
      resultBytes <= queries.bytes) {
    result.bytes = resultBytes;
    result.alignment = kSwizzleAlignment;
    result.phases = Finish;
  }
  for (const Region &region : getRegions())
    total = std::max(total, region.end());
}
