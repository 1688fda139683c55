//===- WgmmaKernel.cpp - both maps of a block of queries, by warpgroups ---===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Warpgroup 0 brings tiles (TensorRing.h); 1 and 2 multiply 64 rows each
// (WgmmaTiles.h), of both maps or of one, and finish them.
//
//===----------------------------------------------------------------------===//
#include "MapCombiner.h"
#include "ResultTile.h"
#include "WgmmaTiles.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

using Values = GpuBuilder::Values;

/// Registers of a thread that brings and of one that multiplies: 128 and 256
/// threads of a block that has 168 for each. Bringing for a cluster takes more.
struct Registers {
  int64_t bringing, multiplying;
};
static constexpr Registers kOfBlock{24, 240}, kOfCluster{40, 232};
/// Elements that one instruction contracts.
static constexpr int64_t kStep = 16;

namespace {
class WgmmaKernel {
public:
  WgmmaKernel(AttentionKernel &kernel, const QueryBlock &place);
  void emit();

private:
  bool isApart() const { return placement == GpuPlacement::Apart; }
  bool isInCluster() const { return spec.getClusterBlocks() > 1; }
  /// Maps of a warpgroup; with one, it is the warpgroup's own.
  int64_t numMaps() const { return isApart() ? 1 : 2; }
  void multiplyTiles();
  void combine();
  void meetReaders() {
    b.namedBarrier(b.i32(WgmmaBarriers::kReaders),
                   WgmmaBarriers::kReadingThreads);
  }
  Value queryRow(int64_t half) {
    return b.add(b.add(warpRow, kernel.laneRow), 8 * half);
  }

  AttentionKernel &kernel;
  GpuBuilder &b;
  HopperBuilder hopper;
  const GpuKernelSpec &spec;
  const GpuSharedLayout &layout;
  GpuPlacement placement;
  int64_t keys;
  OnlineSoftmax softmax;
  MapSums maps;

  QueryBlock place;
  Value firstTile, endTile;
  std::optional<TensorRing> ring;
  /// Of the two warpgroups that multiply, this one; the first query of this
  /// warp; queries in shared memory, of each map of the warpgroup, as products
  /// take them.
  Value group, warpRow;
  SmallVector<Value> queries;
};
} // namespace

WgmmaKernel::WgmmaKernel(AttentionKernel &kernel, const QueryBlock &place)
    : kernel(kernel), b(kernel.b), hopper(kernel.b), spec(kernel.spec),
      layout(kernel.layout),
      placement(cast<GpuWgmmaAttr>(spec.schedule).getPlacement()),
      keys(cast<GpuWgmmaAttr>(spec.schedule).getKvBlockSize()), softmax(kernel),
      maps(b, numMaps(), numMaps(), /*rowTiles=*/1,
           llvm::alignTo(spec.valueDim, kStep) / 8),
      place(place) {}

void WgmmaKernel::multiplyTiles() {
  group = b.add(
      b.shuffle(b.divU(kernel.thread, GpuWgmmaAttr::kGroupThreads), b.i32(0)),
      -1);
  Value ofGroup = b.mul(group, isApart() ? 0 : GpuWgmmaAttr::kRows);
  warpRow =
      b.add(b.add(place.firstRow, ofGroup), b.mul(b.remU(kernel.warp, 4), 16));
  // Of both maps, rows of the warpgroup; of maps apart, all rows of its own.
  Value first = b.mul(group, isApart() ? layout.queryBytes
                                       : GpuWgmmaAttr::kRows * kGpuPanelPitch);
  for (int64_t map = 0; map < numMaps(); ++map)
    queries.push_back(
        hopper.describe(b.bytes(ring->queries(map * layout.queryBytes), first),
                        /*panelBytes=*/16));
  ring->waitForQueries();
  WgmmaTiles tiles(kernel, place, *ring, softmax, maps);
  tiles.group = group;
  tiles.warpRow = warpRow;
  tiles.queries = queries;
  tiles.multiply(firstTile, endTile, ring->begin());
  if (isInCluster())
    hopper.arriveAtCluster();
  combine();
}

void WgmmaKernel::combine() {
  MapCombiner combiner(kernel, softmax, place, placement, group);
  combiner.queryRow = [&](int64_t, int64_t half) { return queryRow(half); };
  combiner.getPassed = [&] {
    Value ofWarp = b.mul(b.remU(kernel.warp, 4), layout.combineGroupBytes);
    return b.bytes(
        b.bytes(b.bytes(kernel.shared, layout.combine.offset), ofWarp),
        b.mul(kernel.lane, 16));
  };
  combiner.meet = [&] { meetReaders(); };
  combiner.finishInMemory = true;
  if (spec.storesByMap())
    combiner.storeTile = [&](ArrayRef<Fragment> x,
                             std::array<Value, 2> factors) {
      // All warps of the warpgroup have read its queries.
      b.namedBarrier(b.add(group, WgmmaBarriers::kGroup),
                     GpuWgmmaAttr::kGroupThreads);
      ResultTile(kernel, place,
                 b.add(b.mul(group, GpuWgmmaAttr::kRows),
                       b.mul(b.remU(kernel.warp, 4), ResultTile::kRows)),
                 warpRow)
          .store(x, factors);
    };
  combiner.finish(maps);
}

void WgmmaKernel::emit() {
  kernel.enterSequence(place.sequence);
  std::tie(firstTile, endTile) = kernel.findTiles(place, keys);
  ring.emplace(kernel, place);
  Value isFirst = b.compare(LLVM::ICmpPredicate::eq, kernel.thread, b.i32(0));
  b.branch(isFirst, [&] { ring->initBarriers(); });
  ring->meet();
  // The same in all lanes of a warp, and known to be: products then take their
  // descriptions from uniform registers.
  const Registers &registers = isInCluster() ? kOfCluster : kOfBlock;
  Value warpgroup =
      b.shuffle(b.divU(kernel.thread, GpuWgmmaAttr::kGroupThreads), b.i32(0));
  b.choose(
      b.compare(LLVM::ICmpPredicate::eq, warpgroup, b.i32(0)),
      [&]() -> Values {
        hopper.setRegisters(registers.bringing, /*more=*/false);
        b.branch(isFirst, [&] {
          ring->bringQueries();
          ring->bring(firstTile, endTile);
        });
        if (isInCluster()) {
          b.warpBarrier();
          hopper.arriveAtCluster();
        }
        return {};
      },
      [&]() -> Values {
        hopper.setRegisters(registers.multiplying, /*more=*/true);
        multiplyTiles();
        return {};
      });
  // The other block may still arrive at barriers of this one.
  if (isInCluster())
    hopper.waitForCluster();
}

void mlir::diffattn::gpucode::emitWgmmaKernel(AttentionKernel &kernel) {
  kernel.forQueries(
      [&](const QueryBlock &place) { WgmmaKernel(kernel, place).emit(); });
}
