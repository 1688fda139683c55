//===- ForwardKernel.cpp - the maps of a block of queries -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Tiles of keys come through the pipeline of KVPipeline.h; where a pair of
// warps shares rows, PairExchange.h is how. What a pair exchanges is written
// after the tile's barrier and read after the pair's own.
//
//===----------------------------------------------------------------------===//
#include "KVPipeline.h"
#include "MapCombiner.h"
#include "MatrixAtom.h"
#include "PairExchange.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

using Values = GpuBuilder::Values;

namespace {
class ForwardKernel {
public:
  ForwardKernel(AttentionKernel &kernel, const QueryBlock &place);
  void emit();

private:
  bool isPair() const { return placement == GpuPlacement::Pair; }
  /// Maps whose scores a warp computes, and maps that it accumulates. With more
  /// than one warp to a row, index 0 is the warp's own map, whichever that is.
  int64_t scoreMaps() const {
    return placement == GpuPlacement::Both ? spec.maps : 1;
  }
  int64_t sumMaps() const {
    return placement == GpuPlacement::Apart ? 1 : spec.maps;
  }
  void locate();
  void bringQueries();
  void keepQueries();
  Values computeTile(const KVPipeline::Tile &tile, ValueRange carried);
  /// The products with K of each map that a warp scores. Shared keys are read
  /// once.
  SmallVector<ScoreTile> scores(Value stage);
  /// Adds biases and hides keys that are not seen.
  void hide(MutableArrayRef<ScoreTile> scored, const KVPipeline::Tile &tile);
  /// The sums of the maps that `steps` are of, by one vote.
  void rescale(ArrayRef<SmallVector<OnlineSoftmax::Step>> steps);
  void accumulate(Value stage,
                  ArrayRef<SmallVector<OnlineSoftmax::Step>> steps);
  void combine();
  Value queryRow(int64_t rowTile, int64_t half) {
    return b.add(b.add(warpRow, kernel.laneRow), 16 * rowTile + 8 * half);
  }
  Value mapOffset(int64_t bytes, int64_t map);
  /// Queries of this warp and map in shared memory.
  Value queryBase(int64_t map);

  AttentionKernel &kernel;
  GpuBuilder &b;
  const GpuKernelSpec &spec;
  const GpuSharedLayout &layout;
  GpuPlacement placement;
  int64_t rowTiles, keys;
  OnlineSoftmax softmax;
  MapSums maps;

  QueryBlock place;
  /// First query of this warp; the group of rows that it belongs to; its own
  /// map.
  Value warpRow, rowGroup, ownMap;
  Value firstTile, endTile;
  SmallVector<QueryRows> queries; // of each map that the warp scores
  std::unique_ptr<MatrixAtom> atom;
  std::optional<KVPipeline> pipeline;
  std::optional<PairExchange> exchange;
};
} // namespace

ForwardKernel::ForwardKernel(AttentionKernel &kernel, const QueryBlock &place)
    : kernel(kernel), b(kernel.b), spec(kernel.spec), layout(kernel.layout),
      placement(spec.getTiles().placement), rowTiles(spec.getTiles().rowTiles),
      keys(spec.getTiles().keys), softmax(kernel),
      maps(b, sumMaps(), scoreMaps(), rowTiles,
           spec.getPaddedValueDim() / 8 / (isPair() ? 2 : 1)),
      place(place) {}

void ForwardKernel::locate() {
  int64_t groups = spec.getRows() / (16 * rowTiles);
  rowGroup = kernel.warp;
  ownMap = b.i32(0);
  if (isPair()) {
    rowGroup = b.divU(kernel.warp, 2);
    ownMap = b.remU(kernel.warp, 2);
  } else if (placement == GpuPlacement::Apart) {
    rowGroup = b.remU(kernel.warp, groups);
    ownMap = b.divU(kernel.warp, groups);
  }
  warpRow = b.add(place.firstRow, b.mul(rowGroup, 16 * rowTiles));
  kernel.enterSequence(place.sequence);
  pipeline.emplace(kernel, place.batch, place.head, place.noiseHead);
  if (isPair())
    exchange.emplace(kernel, rowGroup);

  std::tie(firstTile, endTile) = kernel.findTiles(place, keys);
}

Value ForwardKernel::mapOffset(int64_t bytes, int64_t map) {
  return placement == GpuPlacement::Both ? b.i32(map * bytes)
                                         : b.mul(ownMap, bytes);
}

void ForwardKernel::bringQueries() {
  using P = GpuParam;
  int64_t rows = spec.getRows();
  for (int64_t map = 0; map < spec.maps; ++map) {
    const P tensor = map ? P::Q2 : P::Q1;
    Value base = kernel.headBase(tensor, place.batch,
                                 map ? place.noiseHead : place.head);
    SharedTile tile{
        b.bytes(kernel.shared, layout.queries.offset + map * layout.queryBytes),
        rows, spec.getPaddedHeadDim(), layout.headPitch};
    kernel.loader->copy(tile, {base, kernel.rowStride(tensor),
                               kernel.columnStride(tensor), place.firstRow,
                               kernel.queries(), spec.headDim});
  }
  kernel.loader->commit();
}

void ForwardKernel::keepQueries() {
  const bool toRegisters = spec.getTiles().qInRegisters;
  atom = createMmaSync16816(kernel, isPair() ? b.mul(ownMap, 2) : Value());
  if (toRegisters) {
    // Tiles may still be under way. Their pipeline takes the place of the
    // queries behind its first barrier.
    kernel.loader->wait(spec.getTiles().stages - 1);
    b.barrier();
  }
  for (int64_t map = 0; map < scoreMaps(); ++map) {
    QueryRows &ofMap = queries.emplace_back();
    ofMap.tiles = rowTiles;
    ofMap.base = queryBase(map);
    for (int64_t rowTile = 0; toRegisters && rowTile < rowTiles; ++rowTile)
      ofMap.fragments.push_back(atom->loadQueries(ofMap.base, rowTile));
  }
}

Value ForwardKernel::queryBase(int64_t map) {
  Value first = b.bytes(kernel.shared, layout.queries.offset);
  return b.bytes(b.bytes(first, mapOffset(layout.queryBytes, map)),
                 b.mul(rowGroup, 16 * rowTiles * layout.headPitch));
}

SmallVector<ScoreTile> ForwardKernel::scores(Value stage) {
  Value base = pipeline->keys(stage);
  if (spec.sharedKeys)
    return atom->multiplyKeys(queries, base, keys);
  SmallVector<ScoreTile> all;
  for (int64_t map = 0; map < scoreMaps(); ++map)
    llvm::append_range(
        all, atom->multiplyKeys(queries[map],
                                b.bytes(base, mapOffset(layout.keyBytes, map)),
                                keys));
  return all;
}

void ForwardKernel::hide(MutableArrayRef<ScoreTile> scored,
                         const KVPipeline::Tile &tile) {
  Value firstKey = b.mul(tile.number, keys);
  Value partial = kernel.isSeenInPart(warpRow, 16 * rowTiles, firstKey, keys);
  if (tile.isPartial)
    partial = b.orI(partial, tile.isPartial);
  auto rowsOf = [&](size_t rowTile) -> std::array<Value, 2> {
    return {queryRow(rowTile, 0), queryRow(rowTile, 1)};
  };
  SmallVector<Fragment> all;
  for (ScoreTile &ofMap : scored)
    for (auto [rowTile, scores] : llvm::enumerate(ofMap)) {
      softmax.transform(scores, place.noiseHead, rowsOf(rowTile), firstKey);
      llvm::append_range(all, scores);
    }
  // One loop with a branch: two loops, with and without the mask, were seen to
  // spill.
  softmax.replaceIf(partial, all, [&] {
    SmallVector<Fragment> masked;
    for (ScoreTile &ofMap : scored)
      for (auto [rowTile, scores] : llvm::enumerate(ofMap)) {
        SmallVector<Fragment> inRange =
            softmax.mask(scores, rowsOf(rowTile), firstKey);
        llvm::append_range(masked, tile.isPartial
                                       ? softmax.maskPartialTile(
                                             inRange, rowsOf(rowTile), firstKey)
                                       : inRange);
      }
    return masked;
  });
  const Fragment *next = all.begin();
  for (ScoreTile &ofMap : scored)
    for (RowFragments &scores : ofMap)
      for (Fragment &fragment : scores)
        fragment = *next++;
}

void ForwardKernel::rescale(ArrayRef<SmallVector<OnlineSoftmax::Step>> steps) {
  Accumulator sums;
  SmallVector<OnlineSoftmax::Step> all;
  for (auto [map, ofMap] : llvm::enumerate(steps)) {
    llvm::append_range(sums, maps.sums[map]);
    llvm::append_range(all, ofMap);
  }
  rescaleSums(softmax, sums, all);
  for (auto [i, ofTile] : llvm::enumerate(sums))
    maps.sums[i / rowTiles][i % rowTiles] = std::move(ofTile);
}

void ForwardKernel::accumulate(
    Value stage, ArrayRef<SmallVector<OnlineSoftmax::Step>> steps) {
  SmallVector<Probabilities> probabilities;
  for (const auto &ofMap : steps) {
    Probabilities &ofTiles = probabilities.emplace_back();
    for (const OnlineSoftmax::Step &step : ofMap)
      ofTiles.push_back(step.probabilities);
  }
  atom->multiplyValues(pipeline->values(stage), probabilities, maps.sums);
}

// Products with K of all maps first, then one branch for hidden keys and one
// for sums that grew: between branches ptxas may overlap instructions freely.
Values ForwardKernel::computeTile(const KVPipeline::Tile &tile,
                                  ValueRange carried) {
  maps.assign(carried);
  SmallVector<ScoreTile> scored = scores(tile.stage);
  hide(scored, tile);
  SmallVector<SmallVector<OnlineSoftmax::Step>> steps;
  for (auto [map, ofMap] : llvm::enumerate(scored)) {
    auto &ofTiles = steps.emplace_back();
    for (auto [scores, state] : llvm::zip(ofMap, maps.states[map])) {
      ofTiles.push_back(softmax.step(scores, state));
      state = ofTiles.back().state;
    }
  }
  rescale(steps);
  if (isPair()) {
    steps.push_back(exchange->steps(steps[0]));
    rescaleSums(softmax, maps.sums[1], steps[1]);
  }
  accumulate(tile.stage, steps);
  return maps.flatten();
}

void ForwardKernel::combine() {
  MapCombiner combiner(kernel, softmax, place, placement, ownMap);
  combiner.exchange = exchange ? &*exchange : nullptr;
  combiner.queryRow = [&](int64_t rowTile, int64_t half) {
    return queryRow(rowTile, half);
  };
  combiner.getPassed = [&] {
    Value base =
        b.bytes(kernel.shared, b.mul(rowGroup, layout.combineGroupBytes));
    return b.bytes(base, b.mul(kernel.lane, 16));
  };
  combiner.meet = [&, first = true]() mutable {
    // No copy may still come to the pipeline's place.
    if (std::exchange(first, false))
      kernel.loader->wait(0);
    b.barrier();
  };
  combiner.finish(maps);
}

void ForwardKernel::emit() {
  locate();
  bringQueries();
  // Copies by element are synchronous: to start those of tiles first would gain
  // nothing, and was seen to spill.
  if (spec.elementwise)
    keepQueries();
  pipeline->start(firstTile, endTile);
  if (!spec.elementwise)
    keepQueries();
  Values final = pipeline->loop(
      maps.flatten(), [&](const KVPipeline::Tile &tile, ValueRange carried) {
        return computeTile(tile, carried);
      });
  maps.assign(final);
  combine();
}

void mlir::diffattn::gpucode::emitForwardKernel(AttentionKernel &kernel) {
  kernel.forQueries(
      [&](const QueryBlock &place) { ForwardKernel(kernel, place).emit(); });
}
