//===- WgmmaKernel.cpp - the maps of a block of queries, by warpgroups ----===//
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
#include "TileQueue.h"
#include "WgmmaTiles.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

using Values = GpuBuilder::Values;

/// Bringing for a cluster, or one tile of queries after the other, takes more.
static constexpr WarpgroupRegisters kOfOneTile{24, 240}, kOfMore{40, 232};

namespace {
class WgmmaKernel {
public:
  explicit WgmmaKernel(AttentionKernel &kernel);
  /// Emits the code of a block that has one tile of queries.
  void emitBlock(const QueryBlock &block);
  /// Emits the code of a block that takes tiles until there are none left.
  void emitPersistent();

private:
  using Emit = function_ref<void()>;
  bool isApart() const { return placement == GpuPlacement::Apart; }
  bool isInCluster() const { return spec.getClusterBlocks() > 1; }
  /// Maps of a warpgroup; with one of two, it is the warpgroup's own.
  int64_t numMaps() const { return isApart() ? 1 : spec.maps; }
  /// Emits `bring` for the warpgroup that brings tiles, `multiply` for those
  /// that multiply them.
  void emitRoles(Emit bring, Emit multiply);
  void bringAll();
  void multiplyAll();
  /// Set the thread's warpgroup, and the rows of its warp and their queries.
  void locateGroup() { group = getReadingGroup(kernel); }
  void locateWarp();
  void locateQueries();
  /// Multiplies all tiles of keys of a tile of queries, from the stage `start`
  /// on; returns the stage behind the last.
  TensorRing::Position multiplyTiles(TensorRing::Position start);
  /// Combines the maps and stores rows. Maps that are apart may be passed
  /// through the stage `position`.
  void combine(TensorRing::Position position);
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
  /// The number of this warpgroup among the two that multiply; the first query
  /// of this warp; descriptions of the queries in shared memory, one for each
  /// map of the warpgroup.
  Value group, warpRow;
  SmallVector<Value> queries;
};
} // namespace

WgmmaKernel::WgmmaKernel(AttentionKernel &kernel)
    : kernel(kernel), b(kernel.b), hopper(kernel.b), spec(kernel.spec),
      layout(kernel.layout),
      placement(cast<GpuWgmmaAttr>(spec.schedule).getPlacement()),
      keys(cast<GpuWgmmaAttr>(spec.schedule).getKvBlockSize()), softmax(kernel),
      maps(b, numMaps(), numMaps(), /*rowTiles=*/1,
           llvm::alignTo(spec.valueDim, kWgmmaDepth) / 8) {}

void WgmmaKernel::locateWarp() {
  locateGroup();
  Value ofGroup = b.mul(group, isApart() ? 0 : GpuWgmmaAttr::kRows);
  warpRow =
      b.add(b.add(place.firstRow, ofGroup), b.mul(b.remU(kernel.warp, 4), 16));
}

void WgmmaKernel::locateQueries() {
  // A warpgroup reads its rows of all maps or, with maps apart, all rows of its
  // own map.
  Value first = b.mul(group, isApart() ? layout.queryBytes
                                       : GpuWgmmaAttr::kRows * kGpuPanelPitch);
  for (int64_t map = 0; map < numMaps(); ++map)
    queries.push_back(
        hopper.describe(b.bytes(ring->queries(map * layout.queryBytes), first),
                        /*panelBytes=*/16));
}

TensorRing::Position WgmmaKernel::multiplyTiles(TensorRing::Position start) {
  WgmmaTiles tiles(kernel, place, *ring, softmax, maps);
  tiles.group = group;
  tiles.warpRow = warpRow;
  tiles.queries = queries;
  return tiles.multiply(firstTile, endTile, start);
}

void WgmmaKernel::combine(TensorRing::Position position) {
  MapCombiner combiner(kernel, softmax, place, placement, group);
  combiner.queryRow = [&](int64_t, int64_t half) { return queryRow(half); };
  combiner.getPassed = [&] {
    Value ofWarp = b.mul(b.remU(kernel.warp, 4), layout.combineGroupBytes);
    Value all = layout.combinesInStage
                    ? ring->keys(position)
                    : b.bytes(kernel.shared, layout.combine.offset);
    return b.bytes(b.bytes(all, ofWarp), b.mul(kernel.lane, 16));
  };
  combiner.meet = [&] { meetReaders(b); };
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

void WgmmaKernel::emitRoles(Emit bring, Emit multiply) {
  ring.emplace(kernel);
  emitWarpgroups(kernel, *ring,
                 isInCluster() || spec.isPersistent() ? kOfMore : kOfOneTile,
                 bring, multiply);
}

void WgmmaKernel::emitBlock(const QueryBlock &block) {
  place = block;
  kernel.enterSequence(place.sequence);
  std::tie(firstTile, endTile) = kernel.findTiles(place, keys);
  emitRoles(
      [&] {
        ring->enter(place);
        Value isFirst =
            b.compare(LLVM::ICmpPredicate::eq, kernel.thread, b.i32(0));
        b.branch(isFirst, [&] {
          ring->bringQueries();
          ring->bring(firstTile, endTile, ring->beginBringing());
        });
        if (isInCluster()) {
          b.warpBarrier();
          hopper.arriveAtCluster();
        }
      },
      [&] {
        ring->enter(place);
        locateWarp();
        locateQueries();
        ring->waitForQueries(b.i32(0));
        beginTurns(kernel, group);
        TensorRing::Position end = multiplyTiles(ring->begin());
        endTurns(kernel, group);
        if (isInCluster())
          hopper.arriveAtCluster();
        combine(end);
      });
  // The other block may still arrive at barriers of this one.
  if (isInCluster())
    hopper.waitForCluster();
}

void WgmmaKernel::emitPersistent() {
  emitRoles(
      [&] {
        Value isFirst =
            b.compare(LLVM::ICmpPredicate::eq, kernel.warp, b.i32(0));
        b.branch(isFirst, [&] { bringAll(); });
      },
      [&] { multiplyAll(); });
}

void WgmmaKernel::bringAll() {
  TileQueue queue(kernel);
  TensorRing::Position start = ring->beginBringing();
  Value isFirst = b.compare(LLVM::ICmpPredicate::eq, kernel.lane, b.i32(0));
  auto bringTile = [&](TensorRing::Position position, Value parity) {
    ring->enter(place);
    ring->prefetchQueries();
    // Stages are filled while the tile before is finished, whose result may
    // lie where the queries go.
    Value ahead = b.maxS(b.add(endTile, -spec.getStages()), firstTile);
    position = ring->bring(ahead, endTile, position);
    ring->waitForQueryPlace(parity);
    queue.publish(place);
    ring->bringQueries();
    position = ring->bring(firstTile, ahead, position);
    return layout.combinesInStage ? ring->lend(position) : position;
  };
  Values end = b.loopUntil(
      {queue.first(), start.stage, start.parity, start.parity},
      [&](ValueRange carried) -> Values {
        Value number = b.shuffle(carried[0], b.i32(0));
        Value exists = queue.exists(number);
        Values next = b.branch(
            exists,
            [&]() -> Values {
              // Asked for a tile ahead, as the answer takes its time.
              Value following = queue.next();
              place = queue.locate(number);
              kernel.enterSequence(place.sequence);
              std::tie(firstTile, endTile) = kernel.findTiles(place, keys);
              Value brings = isFirst;
              if (spec.isPacked())
                brings = b.andI(isFirst,
                                b.compare(LLVM::ICmpPredicate::slt,
                                          place.firstRow, kernel.queries()));
              Values after = b.branch(
                  brings,
                  [&]() -> Values {
                    TensorRing::Position position =
                        bringTile({carried[1], carried[2]}, carried[3]);
                    return {position.stage, position.parity,
                            b.xorI(carried[3], 1)};
                  },
                  carried.drop_front());
              after.insert(after.begin(), following);
              return after;
            },
            carried);
        next.insert(next.begin(), b.xorI(exists, b.i1(true)));
        return next;
      });
  b.branch(isFirst, [&] {
    ring->waitForQueryPlace(end[3]);
    queue.publishEnd();
    ring->endQueries();
  });
}

void WgmmaKernel::multiplyAll() {
  TileQueue queue(kernel);
  TensorRing::Position start = ring->begin();
  // Numbers of threads and rows are computed again for each tile, and once more
  // for its end: kept values would take registers, which products need.
  auto locate = [&] {
    kernel.setThread(hopper.renew(kernel.thread));
    place = queue.read();
    locateWarp();
  };
  const Value thread = kernel.thread;
  auto multiplyTile = [&](TensorRing::Position position) {
    locate();
    kernel.enterSequence(place.sequence);
    std::tie(firstTile, endTile) = kernel.findTiles(place, keys);
    locateQueries();
    position = multiplyTiles(position);
    locate();
    const bool needsPlace = spec.storesByMap() || layout.combine.bytes;
    if (!needsPlace)
      ring->releaseQueries(/*wroteThere=*/false);
    // Waits at both barriers, although nothing was brought: no phase may begin
    // before the one before has been waited for.
    if (layout.combinesInStage) {
      ring->waitForKeys(position);
      ring->waitForValues(position);
    }
    combine(position);
    // Rows stored by a tensor map are published already, before their copy.
    if (needsPlace)
      ring->releaseQueries(/*wroteThere=*/isApart());
    if (!layout.combinesInStage)
      return position;
    hopper.publishToCopies();
    b.warpBarrier();
    ring->release(position);
    return ring->following(position);
  };
  locateGroup();
  // Turns go on from tile to tile: both have the same.
  beginTurns(kernel, group);
  b.loopUntil({start.stage, start.parity, start.parity},
              [&](ValueRange carried) -> Values {
                ring->waitForQueries(carried[2]);
                Value isEnd = queue.readEnd();
                Values next = b.branch(
                    b.xorI(isEnd, b.i1(true)),
                    [&]() -> Values {
                      TensorRing::Position position =
                          multiplyTile({carried[0], carried[1]});
                      return {position.stage, position.parity,
                              b.xorI(carried[2], 1)};
                    },
                    carried);
                next.insert(next.begin(), isEnd);
                return next;
              });
  kernel.setThread(thread);
  locateGroup();
  endTurns(kernel, group);
}

void mlir::diffattn::gpucode::emitWgmmaKernel(AttentionKernel &kernel) {
  if (kernel.spec.isPersistent())
    return WgmmaKernel(kernel).emitPersistent();
  kernel.forQueries(
      [&](const QueryBlock &place) { WgmmaKernel(kernel).emitBlock(place); });
}
