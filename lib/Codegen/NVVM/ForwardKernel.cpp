//===- ForwardKernel.cpp - both maps of a block of queries ----------------===//
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
#include "MatrixAtom.h"
#include "PairExchange.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

using Values = GpuBuilder::Values;

namespace {
class ForwardKernel {
public:
  explicit ForwardKernel(AttentionKernel &kernel);
  void emit();

private:
  bool isPair() const { return placement == GpuPlacement::Pair; }
  /// Maps whose scores a warp computes, and maps that it accumulates. With more
  /// than one warp to a row, index 0 is the warp's own map, whichever that is.
  int64_t scoreMaps() const { return placement == GpuPlacement::Both ? 2 : 1; }
  int64_t sumMaps() const { return placement == GpuPlacement::Apart ? 1 : 2; }
  void locate();
  void loadQueries();
  Values computeTile(const KVPipeline::Tile &tile, ValueRange carried);
  ScoreTile scores(int64_t map, Value stage);
  void rescale(Accumulator &sums, ArrayRef<OnlineSoftmax::Step> steps);
  void accumulate(Value stage, SmallVector<Accumulator> &sums,
                  ArrayRef<SmallVector<OnlineSoftmax::Step>> steps);
  void combine(SmallVector<Accumulator> &sums,
               SmallVector<SmallVector<RowState>> &states);
  void finishRows(const Accumulator &x);
  Value queryRow(int64_t rowTile, int64_t half) {
    return b.add(b.add(warpRow, kernel.laneRow), 16 * rowTile + 8 * half);
  }
  Value mapOffset(int64_t bytes, int64_t map);
  /// Queries of this warp and map in shared memory.
  Value queryBase(int64_t map);

  Values flatten(const SmallVector<Accumulator> &sums,
                 const SmallVector<SmallVector<RowState>> &states);
  void unflatten(ValueRange values, SmallVector<Accumulator> &sums,
                 SmallVector<SmallVector<RowState>> &states);

  AttentionKernel &kernel;
  GpuBuilder &b;
  const GpuKernelSpec &spec;
  const GpuSharedLayout &layout;
  GpuPlacement placement;
  int64_t rowTiles, keys, sumTiles;
  OnlineSoftmax softmax;

  Value batch, head, noiseHead, firstRow;
  /// First query of this warp; the group of rows that it belongs to; its own
  /// map.
  Value warpRow, rowGroup, ownMap;
  Value firstTile, endTile;
  SmallVector<QueryRows> queries; // of each map, where they are in registers
  std::unique_ptr<MatrixAtom> atom;
  std::optional<KVPipeline> pipeline;
  std::optional<PairExchange> exchange;
};
} // namespace

ForwardKernel::ForwardKernel(AttentionKernel &kernel)
    : kernel(kernel), b(kernel.b), spec(kernel.spec), layout(kernel.layout),
      placement(spec.getTiles().placement), rowTiles(spec.getTiles().rowTiles),
      keys(spec.getTiles().keys),
      sumTiles(spec.getPaddedValueDim() / 8 /
               (placement == GpuPlacement::Pair ? 2 : 1)),
      softmax(kernel) {}

void ForwardKernel::locate() {
  using P = GpuParam;
  // Blocks start in order of their number: rows that see most keys come first.
  Value block = b.sub(b.add(b.gridSize(0), -1), b.blockId(0));
  head = b.blockId(1);
  batch = b.blockId(2);
  firstRow = b.mul(block, spec.getRows());
  noiseHead = b.divU(head, kernel.param(P::SignalPerNoise));
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
  warpRow = b.add(firstRow, b.mul(rowGroup, 16 * rowTiles));
  kernel.masks = std::make_unique<GpuMasks>(kernel, batch);

  pipeline.emplace(kernel, batch, head, noiseHead);
  if (isPair())
    exchange.emplace(kernel, rowGroup);

  // Keys that some row of the block sees, in whole tiles.
  Value lastRow =
      b.minS(b.add(firstRow, spec.getRows()), kernel.param(P::Queries));
  VisibleRange seen = kernel.masks->getRange({firstRow}, {lastRow, -1});
  Value end = kernel.masks->emit(seen.end);
  Value begin = b.maxS(kernel.masks->emit(seen.begin), b.i32(0));
  if (kernel.masks->hasTiles()) {
    kernel.masks->beginBlock(firstRow, spec.getRows());
    std::tie(begin, end) = kernel.masks->narrow(begin, end, spec.getThreads());
  }
  firstTile = b.divU(begin, keys);
  endTile = b.divU(b.add(b.maxS(end, b.i32(0)), keys - 1), keys);
}

Value ForwardKernel::mapOffset(int64_t bytes, int64_t map) {
  return placement == GpuPlacement::Both ? b.i32(map * bytes)
                                         : b.mul(ownMap, bytes);
}

void ForwardKernel::loadQueries() {
  using P = GpuParam;
  int64_t rows = spec.getRows();
  for (int64_t map = 0; map < 2; ++map) {
    const P tensor = map ? P::Q2 : P::Q1;
    Value base = kernel.headBase(tensor, batch, map ? noiseHead : head);
    SharedTile tile{b.bytes(kernel.shared, map * layout.queryBytes), rows,
                    spec.getPaddedHeadDim(), layout.headPitch};
    kernel.loader->copy(tile, {base, kernel.rowStride(tensor),
                               kernel.columnStride(tensor), firstRow,
                               kernel.param(P::Queries), spec.headDim});
  }
  kernel.loader->commit();
  atom = createMmaSync16816(kernel, isPair() ? b.mul(ownMap, 2) : Value());
  if (!spec.getTiles().qInRegisters)
    return;
  kernel.loader->wait(0);
  b.barrier();
  for (int64_t map = 0; map < scoreMaps(); ++map) {
    QueryRows &ofMap = queries.emplace_back();
    ofMap.tiles = rowTiles;
    ofMap.base = queryBase(map);
    for (int64_t rowTile = 0; rowTile < rowTiles; ++rowTile)
      ofMap.fragments.push_back(atom->loadQueries(ofMap.base, rowTile));
  }
  // The pipeline takes the place of the queries.
  b.barrier();
}

Value ForwardKernel::queryBase(int64_t map) {
  return b.bytes(b.bytes(kernel.shared, mapOffset(layout.queryBytes, map)),
                 b.mul(rowGroup, 16 * rowTiles * layout.headPitch));
}

ScoreTile ForwardKernel::scores(int64_t map, Value stage) {
  Value keyBase = pipeline->keys(stage);
  if (!spec.sharedKeys)
    keyBase = b.bytes(keyBase, mapOffset(layout.keyBytes, map));
  if (!queries.empty())
    return atom->multiplyKeys(queries[map], keyBase, keys).front();
  QueryRows inMemory;
  inMemory.tiles = rowTiles;
  inMemory.base = queryBase(map);
  return atom->multiplyKeys(inMemory, keyBase, keys).front();
}

void ForwardKernel::rescale(Accumulator &sums,
                            ArrayRef<OnlineSoftmax::Step> steps) {
  Values flat;
  for (auto &tile : sums)
    for (Fragment &fragment : tile)
      flat.append(fragment.begin(), fragment.end());
  Values scaled = softmax.rescale(flat, steps);
  size_t next = 0;
  for (auto &tile : sums)
    for (Fragment &fragment : tile)
      for (Value &value : fragment)
        value = scaled[next++];
}

void ForwardKernel::accumulate(
    Value stage, SmallVector<Accumulator> &sums,
    ArrayRef<SmallVector<OnlineSoftmax::Step>> steps) {
  SmallVector<Probabilities> probabilities;
  for (const auto &ofMap : steps) {
    Probabilities &ofTiles = probabilities.emplace_back();
    for (const OnlineSoftmax::Step &step : ofMap)
      ofTiles.push_back(step.probabilities);
  }
  atom->multiplyValues(pipeline->values(stage), probabilities, sums);
}

Values
ForwardKernel::flatten(const SmallVector<Accumulator> &sums,
                       const SmallVector<SmallVector<RowState>> &states) {
  Values flat;
  for (const Accumulator &map : sums)
    for (const auto &tile : map)
      for (const Fragment &fragment : tile)
        flat.append(fragment.begin(), fragment.end());
  for (const auto &map : states)
    for (const RowState &state : map) {
      flat.append(state.max.begin(), state.max.end());
      flat.append(state.sum.begin(), state.sum.end());
    }
  return flat;
}

void ForwardKernel::unflatten(ValueRange values, SmallVector<Accumulator> &sums,
                              SmallVector<SmallVector<RowState>> &states) {
  size_t next = 0;
  sums.assign(sumMaps(),
              Accumulator(rowTiles, SmallVector<Fragment>(sumTiles)));
  for (Accumulator &map : sums)
    for (auto &tile : map)
      for (Fragment &fragment : tile)
        for (Value &value : fragment)
          value = values[next++];
  states.assign(scoreMaps(), SmallVector<RowState>(rowTiles));
  for (auto &map : states)
    for (RowState &state : map) {
      for (Value &value : state.max)
        value = values[next++];
      for (Value &value : state.sum)
        value = values[next++];
    }
}

Values ForwardKernel::computeTile(const KVPipeline::Tile &tile,
                                  ValueRange carried) {
  Value stage = tile.stage;
  SmallVector<Accumulator> sums;
  SmallVector<SmallVector<RowState>> states;
  unflatten(carried, sums, states);

  Value firstKey = b.mul(tile.number, keys);
  // Whether any row of the warp does not see any key of the tile.
  VisibleRange seen =
      kernel.masks->getRange({warpRow}, {warpRow, 16 * rowTiles - 1});
  Value lastSeen = kernel.masks->emit(seen.wholeEnd, -1);
  Value firstSeen = kernel.masks->emit(seen.wholeBegin);
  Value partial = b.orI(
      b.compare(LLVM::ICmpPredicate::sgt, b.add(firstKey, keys - 1), lastSeen),
      b.compare(LLVM::ICmpPredicate::slt, firstKey, firstSeen));
  if (tile.isPartial)
    partial = b.orI(partial, tile.isPartial);

  SmallVector<SmallVector<OnlineSoftmax::Step>> steps;
  for (int64_t map = 0; map < scoreMaps(); ++map) {
    auto all = scores(map, stage);
    auto &ofMap = steps.emplace_back();
    for (int64_t rowTile = 0; rowTile < rowTiles; ++rowTile) {
      auto &tileScores = all[rowTile];
      std::array<Value, 2> rows{queryRow(rowTile, 0), queryRow(rowTile, 1)};
      softmax.transform(tileScores, noiseHead, rows, firstKey);
      // One loop with a branch: two loops, with and without the mask, were seen
      // to spill.
      softmax.replaceIf(partial, tileScores, [&] {
        SmallVector<Fragment> seen = softmax.mask(tileScores, rows, firstKey);
        return tile.isPartial ? softmax.maskPartialTile(seen, rows, firstKey)
                              : seen;
      });
      ofMap.push_back(softmax.step(tileScores, states[map][rowTile]));
      states[map][rowTile] = ofMap.back().state;
    }
    rescale(sums[map], ofMap);
  }
  if (isPair()) {
    steps.push_back(exchange->steps(steps[0]));
    rescale(sums[1], steps[1]);
  }
  accumulate(stage, sums, steps);
  return flatten(sums, states);
}

void ForwardKernel::finishRows(const Accumulator &x) {
  Epilogue epilogue(kernel, batch, head);
  SmallVector<Value> squares;
  for (const auto &tile : x) {
    std::array<Value, 2> sums{b.f32(0.0), b.f32(0.0)};
    for (const Fragment &fragment : tile)
      for (int64_t i = 0; i < 4; ++i)
        sums[i / 2] = b.fma(fragment[i], fragment[i], sums[i / 2]);
    for (Value sum : sums)
      squares.push_back(softmax.reduceQuad(sum));
  }
  if (exchange) // the other half of the columns
    for (auto [sum, other] : llvm::zip(squares, exchange->numbers(squares)))
      sum = b.addF(sum, other);
  QuadColumns columns{isPair() ? b.mul(ownMap, 16) : b.i32(0), isPair()};
  for (int64_t rowTile = 0; rowTile < rowTiles; ++rowTile)
    for (int64_t h = 0; h < 2; ++h) {
      SmallVector<std::array<Value, 2>> pairs;
      for (const Fragment &fragment : x[rowTile])
        pairs.push_back({fragment[2 * h], fragment[2 * h + 1]});
      epilogue.storeRow(pairs, epilogue.rowFactor(squares[2 * rowTile + h]),
                        queryRow(rowTile, h), columns);
    }
}

void ForwardKernel::combine(SmallVector<Accumulator> &sums,
                            SmallVector<SmallVector<RowState>> &states) {
  Epilogue epilogue(kernel, batch, head);
  Value lastRow = b.add(kernel.param(GpuParam::Queries), -1);
  // What each map's sums are multiplied by: 1 / l1 and -lambda / l2.
  SmallVector<SmallVector<std::array<Value, 2>>> factors(
      sums.size(), SmallVector<std::array<Value, 2>>(rowTiles));
  for (int64_t rowTile = 0; rowTile < rowTiles; ++rowTile)
    for (int64_t h = 0; h < 2; ++h) {
      Value row = b.minS(queryRow(rowTile, h), lastRow);
      Value minusLambda =
          b.mulF(kernel.loadLambda(batch, row, head), b.f32(-1.0));
      for (int64_t map = 0; map < scoreMaps(); ++map) {
        Value sum = softmax.reduceQuad(states[map][rowTile].sum[h]);
        Value weight = minusLambda;
        if (placement == GpuPlacement::Both)
          weight = map ? minusLambda : b.f32(1.0);
        else
          weight =
              b.select(b.compare(LLVM::ICmpPredicate::eq, ownMap, b.i32(0)),
                       b.f32(1.0), minusLambda);
        factors[map][rowTile][h] = epilogue.divideBySum(weight, sum);
      }
    }
  if (exchange) {
    SmallVector<Value> flat;
    for (auto &ofTile : factors[0])
      flat.append(ofTile.begin(), ofTile.end());
    for (auto [i, factor] : llvm::enumerate(exchange->numbers(flat)))
      factors[1][i / 2][i % 2] = factor;
  }
  Accumulator x(rowTiles, SmallVector<Fragment>(sumTiles));
  for (int64_t rowTile = 0; rowTile < rowTiles; ++rowTile)
    for (int64_t n = 0; n < sumTiles; ++n)
      for (int64_t i = 0; i < 4; ++i) {
        Value sum = b.mulF(sums[0][rowTile][n][i], factors[0][rowTile][i / 2]);
        if (sums.size() > 1)
          sum = b.fma(sums[1][rowTile][n][i], factors[1][rowTile][i / 2], sum);
        x[rowTile][n][i] = sum;
      }
  if (placement != GpuPlacement::Apart) {
    finishRows(x);
    return;
  }
  // Warps of the second map leave their part in shared memory, each lane in
  // places of its own.
  kernel.loader->wait(0);
  b.barrier();
  Value base =
      b.bytes(kernel.shared, b.mul(rowGroup, layout.combineGroupBytes));
  base = b.bytes(base, b.mul(kernel.lane, 16));
  Value second = b.compare(LLVM::ICmpPredicate::ne, ownMap, b.i32(0));
  b.branch(second, [&] {
    for (int64_t i = 0; i < rowTiles * sumTiles; ++i)
      b.store(b.pack(x[i / sumTiles][i % sumTiles]), b.bytes(base, 512 * i),
              16);
  });
  b.barrier();
  b.branch(b.compare(LLVM::ICmpPredicate::eq, ownMap, b.i32(0)), [&] {
    auto vector = VectorType::get(4, b.f32());
    for (int64_t i = 0; i < rowTiles * sumTiles; ++i) {
      Value packed = b.load(vector, b.bytes(base, 512 * i), 16);
      for (auto [sum, part] :
           llvm::zip(x[i / sumTiles][i % sumTiles], b.unpack(packed)))
        sum = b.addF(sum, part);
    }
    finishRows(x);
  });
}

void ForwardKernel::emit() {
  locate();
  loadQueries();
  Value zero = b.f32(0.0);
  SmallVector<Accumulator> sums(
      sumMaps(),
      Accumulator(rowTiles, SmallVector<Fragment>(
                                sumTiles, Fragment{zero, zero, zero, zero})));
  RowState empty{{b.minusInfinity(), b.minusInfinity()}, {zero, zero}};
  SmallVector<SmallVector<RowState>> states(
      scoreMaps(), SmallVector<RowState>(rowTiles, empty));
  Values final =
      pipeline->loop(firstTile, endTile, flatten(sums, states),
                     [&](const KVPipeline::Tile &tile, ValueRange carried) {
                       return computeTile(tile, carried);
                     });
  unflatten(final, sums, states);
  combine(sums, states);
}

void mlir::diffattn::gpucode::emitForwardKernel(AttentionKernel &kernel) {
  ForwardKernel(kernel).emit();
}
