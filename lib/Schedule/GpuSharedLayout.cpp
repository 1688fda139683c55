//===- GpuSharedLayout.cpp - shared memory of a GPU block -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/GpuSharedLayout.h"

#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn;

/// Bytes of an element, lanes of a warp, rows and keys of a fragment.
static constexpr int64_t kElement = 2, kLanes = 32, kFragment = 16;
/// Tiles begin where all banks do.
static constexpr int64_t kTileAlignment = 128;

GpuTiles GpuTiles::of(ScheduleAttrInterface schedule, int64_t maps) {
  return llvm::TypeSwitch<Attribute, GpuTiles>(schedule)
      .Case([&](GpuForwardAttr forward) {
        return GpuTiles{forward.getPlacement(), forward.getWarps(),
                        forward.getRowTiles(),  forward.getKvBlockSize(),
                        forward.getStages(),    forward.getQInRegisters(),
                        /*splitKeys=*/0,
                        /*bulk=*/false,         maps};
      })
      .Case([&](GpuSplitKVAttr split) {
        return GpuTiles{GpuPlacement::Both,
                        split.getWarps(),
                        /*rowTiles=*/1,
                        GpuSplitKVAttr::kKeysOfWarp * split.getWarps(),
                        split.getStages(),
                        split.getQInRegisters(),
                        split.getKvSplitSize(),
                        split.getBulkCopies(),
                        maps};
      });
}

GpuTiles GpuTiles::ofGradients(GpuBackwardAttr schedule, bool ofKeys,
                               int64_t maps, bool byWarpgroups) {
  GpuTiles tiles;
  tiles.maps = maps;
  if (byWarpgroups) {
    tiles.warps = GpuBackwardAttr::kWgmmaRows / kFragment;
    tiles.keys = schedule.getWgmmaBlockSize(ofKeys);
    tiles.stages = schedule.getWgmmaStages(ofKeys);
    return tiles;
  }
  tiles.warps = ofKeys ? schedule.getKeyWarps() : schedule.getQueryWarps();
  tiles.keys = ofKeys ? schedule.getQBlockSize() : schedule.getKvBlockSize();
  tiles.stages = schedule.getStages();
  return tiles;
}

int64_t GpuTiles::getRows() const {
  if (splitKeys)
    return kFragment / 2;
  int64_t groups = placement == GpuPlacement::Both ? warps : warps / 2;
  return groups * kFragment * rowTiles;
}

GpuSharedLayout::GpuSharedLayout(const GpuTiles &tiles, int64_t headDim,
                                 int64_t valueDim, bool sharedKeys) {
  const bool split = tiles.splitKeys;
  const int64_t d = llvm::alignTo(headDim, kGpuWidthMultiple),
                dv = llvm::alignTo(valueDim, kGpuWidthMultiple);
  headPitch = kElement * d;
  valuePitch = kElement * dv;
  // With split keys one fragment of rows holds all maps.
  const int64_t rows = tiles.getRows() * (split ? tiles.maps : 1);
  queryBytes = rows * headPitch;
  keyPitch = headPitch;
  int64_t tileKeyBytes = headPitch, tileValueBytes = valuePitch;
  if (tiles.bulk) {
    headPanels = llvm::divideCeil(headDim, kGpuPanelWidth);
    valuePanels = llvm::divideCeil(valueDim, kGpuPanelWidth);
    keyPanelBytes = tiles.keys * kGpuPanelPitch;
    keyPitch = valuePitch = kGpuPanelPitch;
    tileKeyBytes = headPanels * kGpuPanelPitch;
    tileValueBytes = valuePanels * kGpuPanelPitch;
  }
  keyBytes = tiles.keys * tileKeyBytes;
  valueOffset = (sharedKeys ? 1 : tiles.maps) * keyBytes;
  stageBytes = valueOffset + tiles.keys * tileValueBytes;

  // Queries that go to registers pass through the last stage of the pipeline,
  // while the first tiles come to the others.
  const bool stay = !tiles.qInRegisters || split;
  queries.bytes = (split ? 1 : tiles.maps) * queryBytes;
  queries.phases = stay ? Load | Loop : Load;
  pipeline.offset = stay ? queries.bytes : 0;
  ahead.bytes = stay ? 0 : (tiles.stages - 1) * stageBytes;
  ahead.phases = Load;
  queries.offset = ahead.bytes;
  if (tiles.bulk)
    pipeline.offset = llvm::alignTo(pipeline.offset, kSwizzleAlignment);
  pipeline.bytes = tiles.stages * stageBytes;
  pipeline.phases = Loop;
  queries.alignment = pipeline.alignment = kTileAlignment;
  if (tiles.bulk) {
    pipeline.alignment = kSwizzleAlignment;
    barriers.offset = pipeline.end();
    barriers.bytes = barrierBytes(tiles.stages);
    barriers.phases = Load | Loop;
  }
  const int64_t end = std::max(queries.end(), pipeline.end());

  if (tiles.placement == GpuPlacement::Pair) {
    fragmentBytes = kLanes * 16;
    factorBytes = kLanes * 8;
    exchangeTileBytes = tiles.keys / kFragment * fragmentBytes + factorBytes;
    exchangeWarpBytes = tiles.rowTiles * exchangeTileBytes;
    exchange.offset = end;
    exchange.bytes = tiles.warps * exchangeWarpBytes;
    exchange.phases = Loop | Finish;
  }
  // Regions used after the loop take memory that the loop no longer needs.
  if (tiles.placement == GpuPlacement::Apart) {
    combineGroupBytes = tiles.rowTiles * kFragment * dv * 4;
    combine.bytes = tiles.warps / 2 * combineGroupBytes;
    combine.phases = Finish;
  }
  if (split) {
    stateRows = rows;
    statePitch = dv + 8;
    stateWarpBytes = 4 * stateRows * (statePitch + 2);
    states.offset = pipeline.offset;
    states.bytes = tiles.warps * stateWarpBytes;
    states.phases = Finish;
  }
  for (const Region &region : getRegions())
    total = std::max(total, region.end());
}

GpuSharedLayout GpuSharedLayout::ofGradients(const GpuTiles &tiles,
                                             int64_t headDim, int64_t valueDim,
                                             bool sharedKeys, bool ofKeys) {
  GpuSharedLayout layout;
  layout.headPitch = layout.keyPitch =
      kElement * llvm::alignTo(headDim, kGpuWidthMultiple);
  layout.valuePitch = kElement * llvm::alignTo(valueDim, kGpuWidthMultiple);
  const int64_t rows = tiles.getRows(),
                keyTensors = sharedKeys ? 1 : tiles.maps;
  layout.queryBytes = rows * layout.headPitch;
  layout.rowValueOffset =
      (ofKeys ? keyTensors : tiles.maps) * layout.queryBytes;
  layout.queries.bytes = layout.rowValueOffset + rows * layout.valuePitch;
  layout.queries.phases = Load | Loop;
  layout.queries.alignment = layout.pipeline.alignment = kTileAlignment;
  layout.keyBytes = tiles.keys * layout.headPitch;
  layout.valueOffset = (ofKeys ? tiles.maps : keyTensors) * layout.keyBytes;
  layout.statisticsOffset = layout.valueOffset + tiles.keys * layout.valuePitch;
  layout.stageBytes = layout.statisticsOffset;
  if (ofKeys)
    layout.stageBytes += llvm::alignTo(
        getStatisticsBytes(tiles.keys, tiles.maps), kTileAlignment);
  layout.pipeline.offset = layout.queries.bytes;
  layout.pipeline.bytes = tiles.stages * layout.stageBytes;
  layout.pipeline.phases = Loop;
  layout.total = layout.pipeline.end();
  return layout;
}

GpuSharedLayout GpuSharedLayout::ofMerge(int64_t valueDim, int64_t maps) {
  const auto ofMaps = static_cast<int64_t>(maps * sizeof(float));
  GpuSharedLayout layout;
  layout.mergeMaxima = layout.mergeWeights + kMergeWarps * kLanes * ofMaps;
  layout.mergeSums = layout.mergeMaxima + kMergeWarps * ofMaps;
  layout.mergeColumns = layout.mergeSums + kMergeWarps * ofMaps;
  layout.merge.bytes =
      layout.mergeColumns +
      kMergeWarps * static_cast<int64_t>(llvm::alignTo(valueDim, kLanes)) *
          ofMaps;
  layout.merge.phases = Loop | Finish;
  layout.total = layout.merge.end();
  return layout;
}

GpuSharedLayout GpuSharedLayout::ofSums() {
  GpuSharedLayout layout;
  layout.sums.bytes = kSumWarps * kLanes * static_cast<int64_t>(sizeof(float));
  layout.sums.phases = Finish;
  layout.total = layout.sums.end();
  return layout;
}

SmallVector<GpuSharedLayout::Region> GpuSharedLayout::getRegions() const {
  SmallVector<Region> used;
  for (const Region &region :
       {queries, ahead, pipeline, exchange, combine, states, merge, sums,
        result, parked, barriers, ticket})
    if (region.bytes)
      used.push_back(region);
  return used;
}
