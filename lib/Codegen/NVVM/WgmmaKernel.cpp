//===- WgmmaKernel.cpp - both maps of a block of queries, by warpgroups ---===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Warpgroup 0 brings tiles (TensorRing.h); 1 and 2 multiply 64 rows each, of
// both maps or of one. An iteration: the products with K of all maps of the
// warpgroup, their end, exponentials, the products with V, their end. No
// product is under way at a branch, and nothing reads a register of one that
// is: else ptxas makes the products wait for each other (C7510 to C7515).
//
// The two take turns at exponentials, so that the products of one run beside
// those of the other: each waits for its turn and then gives the other its own.
//
//===----------------------------------------------------------------------===//
#include "MapCombiner.h"
#include "ResultTile.h"
#include "TensorRing.h"

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
/// The named barrier of the two warpgroups that multiply, and their threads.
static constexpr int64_t kReadersBarrier = 1,
                         kReaders = 2 * GpuWgmmaAttr::kGroupThreads;
/// The named barriers at which they wait for their turns, one each, and those
/// of their own threads.
static constexpr int64_t kTurnBarrier = 2, kGroupBarrier = 4;
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
  Values computeTile(Value tile, TensorRing::Position position,
                     ValueRange carried);
  ScoreTile multiplyKeys(TensorRing::Position position);
  void multiplyValues(TensorRing::Position position,
                      ArrayRef<OnlineSoftmax::Step> steps);
  void combine();
  void meetReaders() { b.namedBarrier(b.i32(kReadersBarrier), kReaders); }
  void waitForTurn() { b.namedBarrier(b.add(group, kTurnBarrier), kReaders); }
  void passTurn() {
    hopper.arriveAtBarrier(b.sub(b.i32(kTurnBarrier + 1), group), kReaders);
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

ScoreTile WgmmaKernel::multiplyKeys(TensorRing::Position position) {
  Value base = ring->keys(position);
  if (isApart() && !spec.sharedKeys)
    base = b.bytes(base, b.mul(group, layout.keyBytes));
  Value described = hopper.describe(base, /*panelBytes=*/16);
  ScoreTile scores;
  SmallVector<HopperBuilder::Sums *> pending;
  scores.reserve(numMaps());
  hopper.fence();
  for (int64_t map = 0; map < numMaps(); ++map) {
    HopperBuilder::Sums &sums = scores.emplace_back(hopper.undefined(keys / 8));
    pending.push_back(&sums);
    const int64_t keyOffset = spec.sharedKeys ? 0 : map * layout.keyBytes;
    const int64_t steps = llvm::divideCeil(spec.headDim, kStep);
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t panel = step * kStep / kGpuPanelWidth,
                    column = step * kStep % kGpuPanelWidth * 2;
      hopper.multiply(
          sums,
          hopper.advance(queries[map], panel * layout.queryPanelBytes + column),
          hopper.advance(described,
                         keyOffset + panel * layout.keyPanelBytes + column),
          kernel.element, /*add=*/step > 0);
    }
  }
  hopper.commit();
  hopper.wait(pending);
  return scores;
}

void WgmmaKernel::multiplyValues(TensorRing::Position position,
                                 ArrayRef<OnlineSoftmax::Step> steps) {
  SmallVector<HopperBuilder::Sums *> sums;
  SmallVector<Fragment> probabilities;
  for (int64_t map = 0; map < numMaps(); ++map) {
    sums.push_back(&maps.sums[map].front());
    llvm::append_range(probabilities, steps[map].probabilities);
  }
  Value values = hopper.describe(ring->values(position), layout.keyPanelBytes);
  // What was written to these registers lies before the fence.
  hopper.tie(sums, probabilities);
  hopper.fence();
  const int64_t blocks = keys / kStep;
  for (int64_t map = 0; map < numMaps(); ++map)
    for (int64_t block = 0; block < blocks; ++block)
      hopper.multiply(*sums[map], probabilities[map * blocks + block],
                      hopper.advance(values, block * kStep * kGpuPanelPitch),
                      kernel.element);
  hopper.commit();
  hopper.wait(sums, probabilities);
}

Values WgmmaKernel::computeTile(Value tile, TensorRing::Position position,
                                ValueRange carried) {
  maps.assign(carried);
  Value firstKey = b.mul(tile, keys);
  Value partial = kernel.isSeenInPart(warpRow, 16, firstKey, keys);
  std::array<Value, 2> rows{queryRow(0), queryRow(1)};
  ring->waitForKeys(position);
  ScoreTile scores = multiplyKeys(position);
  waitForTurn();
  SmallVector<OnlineSoftmax::Step> steps;
  for (int64_t map = 0; map < numMaps(); ++map) {
    softmax.transform(scores[map], place.noiseHead, rows, firstKey);
    softmax.replaceIf(partial, scores[map], [&] {
      return softmax.mask(scores[map], rows, firstKey);
    });
    RowState &state = maps.states[map].front();
    steps.push_back(softmax.step(scores[map], state));
    state = steps.back().state;
    rescaleSums(softmax, maps.sums[map], steps.back());
  }
  passTurn();
  ring->waitForValues(position);
  ring->clearHiddenValues(position, firstKey, [&] { meetReaders(); });
  multiplyValues(position, steps);
  ring->release(position);
  return maps.flatten();
}

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
  // Both have the same tiles. The first begins, and takes the turn that the
  // second passes last.
  Value isFirst = b.compare(LLVM::ICmpPredicate::eq, group, b.i32(0));
  Value isSecond = b.compare(LLVM::ICmpPredicate::ne, group, b.i32(0));
  b.branch(isSecond, [&] { passTurn(); });
  TensorRing::Position start = ring->begin();
  Values initial{start.stage, start.parity};
  llvm::append_range(initial, maps.flatten());
  Values final = b.loop(
      firstTile, endTile, 1, initial,
      [&](Value tile, ValueRange carried) -> Values {
        TensorRing::Position position{carried[0], carried[1]};
        Values sums = computeTile(tile, position, carried.drop_front(2));
        position = ring->following(position);
        Values next{position.stage, position.parity};
        llvm::append_range(next, sums);
        return next;
      },
      /*mayUnroll=*/false);
  b.branch(isFirst, [&] { waitForTurn(); });
  if (isInCluster())
    hopper.arriveAtCluster();
  maps.assign(ValueRange(final).drop_front(2));
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
      b.namedBarrier(b.add(group, kGroupBarrier), GpuWgmmaAttr::kGroupThreads);
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
