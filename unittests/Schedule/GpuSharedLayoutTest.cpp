//===- GpuSharedLayoutTest.cpp - shared memory of a GPU block -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/GpuSharedLayout.h"

#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {

using Layout = GpuSharedLayout;

std::vector<GpuTiles> allTiles() {
  std::vector<GpuTiles> all;
  for (GpuPlacement placement :
       {GpuPlacement::Both, GpuPlacement::Pair, GpuPlacement::Apart})
    for (int64_t warps : {2, 4, 8, 16})
      for (int64_t rowTiles : {1, 2})
        for (int64_t keys : {16, 32, 64, 128})
          for (int64_t stages : {2, 3, 4})
            for (bool qInRegisters : {false, true})
              all.push_back(
                  {placement, warps, rowTiles, keys, stages, qInRegisters, 0});
  for (int64_t warps : {1, 2, 4, 8})
    for (bool qInRegisters : {false, true})
      all.push_back(
          {GpuPlacement::Both, warps, 1, 16 * warps, 2, qInRegisters, 512});
  // With one map there are no warps that share out the maps.
  std::vector<GpuTiles> oneMap;
  llvm::copy_if(all, std::back_inserter(oneMap), [](const GpuTiles &tiles) {
    return tiles.placement == GpuPlacement::Both;
  });
  for (GpuTiles &tiles : oneMap)
    tiles.maps = 1;
  llvm::append_range(all, oneMap);
  return all;
}

template <typename Body>
void forEachLayout(Body body) {
  for (const GpuTiles &tiles : allTiles())
    for (int64_t d : {1, 32, 40, 64, 96, 256})
      for (int64_t dv : {1, 64, 80, 128, 256})
        for (bool sharedKeys : {false, true})
          body(tiles, Layout(tiles, d, dv, sharedKeys));
}

void expectApart(const Layout &layout) {
  auto regions = layout.getRegions();
  for (size_t i = 0; i < regions.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      const Layout::Region &a = regions[i], &b = regions[j];
      if (a.phases & b.phases)
        EXPECT_TRUE(a.end() <= b.offset || b.end() <= a.offset)
            << a.name.str() << " and " << b.name.str();
    }
}

TEST(GpuSharedLayoutTest, RegionsOfOnePhaseDoNotOverlap) {
  forEachLayout(
      [](const GpuTiles &, const Layout &layout) { expectApart(layout); });
}

/// Operands of a warpgroup begin where the swizzle does.
TEST(GpuSharedLayoutTest, WarpgroupsHavePanels) {
  MLIRContext context;
  context.loadDialect<DiffAttnDialect>();
  for (GpuPlacement placement : {GpuPlacement::Both, GpuPlacement::Apart})
    for (int64_t keys : {16, 64, 80, 128})
      for (int64_t d : {8, 64, 72, 128, 192})
        for (int64_t dv : {8, 64, 136, 256})
          for (auto [sharedKeys, isPersistent] :
               {std::pair(false, false), {true, false}, {false, true}}) {
            const int64_t stages = 3;
            auto schedule = GpuWgmmaAttr::get(
                &context, placement, keys, stages, /*cluster=*/1,
                /*overlap=*/false, /*persistent_blocks=*/isPersistent ? 9 : 0);
            Layout layout(schedule, d, dv, sharedKeys);
            expectApart(layout);
            EXPECT_EQ(layout.headPanels, (d + 63) / 64);
            EXPECT_EQ(layout.valuePanels, (dv + 63) / 64);
            const int64_t rows = schedule.getRows();
            EXPECT_EQ(layout.queries.bytes, 2 * layout.headPanels * rows * 128);
            // One map passes to the other through memory of its own phase, or a
            // stage that holds it.
            const int64_t passed = 64 * ((dv + 15) / 16 * 16) * 4;
            const bool isApart = placement == GpuPlacement::Apart;
            EXPECT_EQ(layout.combinesInStage,
                      isApart && isPersistent && passed > layout.queries.bytes);
            EXPECT_EQ(layout.combine.bytes,
                      isApart && !layout.combinesInStage ? passed : 0);
            EXPECT_EQ(layout.stageBytes,
                      std::max(keys * 128 *
                                   ((sharedKeys ? 1 : 2) * layout.headPanels +
                                    layout.valuePanels),
                               layout.combinesInStage ? passed : 0));
            for (int64_t start : {layout.queryPanelBytes, layout.keyPanelBytes,
                                  layout.pipeline.offset, layout.stageBytes})
              EXPECT_EQ(start % 1024, 0);
            EXPECT_EQ(layout.barriers.bytes,
                      8 * (1 + 3 * stages + isPersistent));
            EXPECT_EQ(layout.ticket.bytes, isPersistent ? 28 : 0);
            EXPECT_EQ(layout.ticket.offset % 16, 0);
            // Rows of the result where a warpgroup's own queries were.
            const bool fits = placement == GpuPlacement::Both &&
                              layout.valuePanels <= 2 * layout.headPanels;
            EXPECT_EQ(layout.result.bytes,
                      fits ? layout.valuePanels * layout.queryPanelBytes : 0);
          }
}

TEST(GpuSharedLayoutTest, RegionsAreAlignedAndWithinTheTotal) {
  forEachLayout([](const GpuTiles &, const Layout &layout) {
    int64_t end = 0;
    for (const Layout::Region &region : layout.getRegions()) {
      EXPECT_NE(region.phases, 0u) << region.name.str();
      EXPECT_EQ(region.offset % region.alignment, 0) << region.name.str();
      end = std::max(end, region.end());
    }
    EXPECT_EQ(layout.total, end);
  });
}

// The offset behind each part counts the whole part, and a tile begins at bank
// 0.
TEST(GpuSharedLayoutTest, PartsFillTheirRegions) {
  forEachLayout([](const GpuTiles &tiles, const Layout &layout) {
    bool split = tiles.splitKeys;
    EXPECT_EQ(layout.queries.bytes,
              (split ? 1 : tiles.maps) * layout.queryBytes);
    EXPECT_EQ(layout.queryBytes,
              (split ? 8 * tiles.maps : tiles.getRows()) * layout.headPitch);
    if (tiles.maps == 1)
      EXPECT_EQ(layout.valueOffset, layout.keyBytes);
    EXPECT_EQ(layout.pipeline.bytes, tiles.stages * layout.stageBytes);
    EXPECT_EQ(layout.stageBytes,
              layout.valueOffset + tiles.keys * layout.valuePitch);
    for (int64_t offset : {layout.queryBytes, layout.keyBytes,
                           layout.valueOffset, layout.stageBytes})
      EXPECT_EQ(offset % 128, 0);
    if (tiles.placement == GpuPlacement::Pair) {
      EXPECT_EQ(
          layout.exchange.bytes,
          tiles.warps * tiles.rowTiles *
              (tiles.keys / 16 * layout.fragmentBytes + layout.factorBytes));
      // After the loop a lane shows two numbers of each row of its tiles.
      EXPECT_LE(2 * tiles.rowTiles * 32 * 4, layout.exchangeWarpBytes);
    }
    if (tiles.placement == GpuPlacement::Apart)
      EXPECT_EQ(layout.combine.bytes,
                tiles.getRows() * layout.valuePitch * 2); // f32 for 16 bits
    if (split)
      EXPECT_EQ(layout.states.bytes,
                tiles.warps * 8 * tiles.maps * 4 * (layout.statePitch + 2));
  });
}

} // namespace
