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
                                 int64_t valueDim, bool sharedKeys,
                                 int64_t maps) {
  const int64_t rows = schedule.getRows(), keys = schedule.getKvBlockSize();
  headPanels = llvm::divideCeil(headDim, kGpuPanelWidth);
  valuePanels = llvm::divideCeil(valueDim, kGpuPanelWidth);
  queryPanelBytes = rows * kGpuPanelPitch;
  keyPanelBytes = keys * kGpuPanelPitch;
  queryBytes = headPanels * queryPanelBytes;
  keyBytes = headPanels * keyPanelBytes;
  valueOffset = (sharedKeys ? 1 : maps) * keyBytes;
  stageBytes = llvm::alignTo(valueOffset + valuePanels * keyPanelBytes,
                             kSwizzleAlignment);

  queries.bytes = maps * queryBytes;
  queries.phases = Load | Loop;
  const bool isPersistent = schedule.getPersistentBlocks() != 0;
  const bool isApart = schedule.getPlacement() == GpuPlacement::Apart;
  combineGroupBytes = isApart ? 16 * llvm::alignTo(valueDim, 16) * 4 : 0;
  const int64_t combineBytes = 4 * combineGroupBytes;
  combinesInStage = isPersistent && combineBytes > queries.bytes;
  if (combinesInStage)
    stageBytes = std::max(stageBytes, combineBytes);

  pipeline.offset = queries.bytes;
  pipeline.bytes = schedule.getStages() * stageBytes;
  pipeline.phases = Loop;
  queries.alignment = pipeline.alignment = kSwizzleAlignment;
  barriers.offset = pipeline.end();
  barriers.bytes = barrierBytes(schedule.getStages());
  barriers.phases = Load | Loop;
  if (isPersistent) {
    pipeline.phases |= Finish;
    barriers.bytes += kBarrierBytes;
    barriers.phases |= Finish;
    ticket.offset = llvm::alignTo(barriers.end(), ticket.alignment);
    ticket.bytes = kTicketWords * 4;
    ticket.phases = Load | Loop | Finish;
  }
  // The second map goes through the pipeline where nothing of it is under way
  // then.
  if (isApart && !combinesInStage) {
    combine.offset = isPersistent ? queries.offset : pipeline.offset;
    combine.bytes = combineBytes;
    combine.phases = Finish;
  }
  // A warpgroup with all maps has the queries to itself; those of other
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

GpuSharedLayout GpuSharedLayout::ofWgmmaGradients(const GpuTiles &tiles,
                                                  int64_t headDim,
                                                  int64_t valueDim,
                                                  bool sharedKeys,
                                                  bool ofKeys) {
  GpuSharedLayout layout;
  const int64_t keyTensors = sharedKeys ? 1 : tiles.maps;
  layout.headPanels = llvm::divideCeil(headDim, kGpuPanelWidth);
  layout.valuePanels = llvm::divideCeil(valueDim, kGpuPanelWidth);
  layout.queryPanelBytes = tiles.getRows() * kGpuPanelPitch;
  layout.keyPanelBytes = tiles.keys * kGpuPanelPitch;
  layout.queryBytes = layout.headPanels * layout.queryPanelBytes;
  layout.rowValueOffset =
      (ofKeys ? keyTensors : tiles.maps) * layout.queryBytes;
  layout.queries.bytes =
      layout.rowValueOffset + layout.valuePanels * layout.queryPanelBytes;
  layout.queries.phases = Load | Loop;
  layout.queries.alignment = layout.pipeline.alignment = kSwizzleAlignment;
  layout.keyBytes = layout.headPanels * layout.keyPanelBytes;
  layout.valueOffset = (ofKeys ? tiles.maps : keyTensors) * layout.keyBytes;
  layout.statisticsOffset =
      layout.valueOffset + layout.valuePanels * layout.keyPanelBytes;
  layout.stageBytes = layout.statisticsOffset;
  if (ofKeys)
    layout.stageBytes += getStatisticsBytes(tiles.keys, tiles.maps);
  layout.stageBytes = llvm::alignTo(layout.stageBytes, kSwizzleAlignment);
  layout.pipeline.offset = layout.queries.bytes;
  layout.pipeline.bytes = tiles.stages * layout.stageBytes;
  layout.pipeline.phases = Loop;
  layout.parked.offset = layout.pipeline.end();
  if (ofKeys && tiles.maps == 2)
    layout.parked.bytes =
        tiles.keys / 8 * 2 * GpuWgmmaAttr::kGroupThreads * kParkedBytes;
  layout.parked.phases = Loop;
  layout.barriers.offset = layout.parked.end();
  layout.barriers.bytes =
      barrierBytes(tiles.stages) + (ofKeys ? tiles.stages : 1) * kBarrierBytes;
  layout.barriers.phases = Load | Loop;
  layout.total = layout.barriers.end();
  return layout;
}
