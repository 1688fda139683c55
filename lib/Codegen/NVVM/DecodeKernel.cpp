//===- DecodeKernel.cpp - few queries against a block of keys -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// diffattn.online_attention with kv_split_size: a block for each range.
//
// One tile of 16 rows holds both maps of up to 8 rows (queries times the signal
// heads that share keys and values): rows 0-7 are the first map, 8-15 the
// second. The product with K1 gives the upper scores, that with K2 the lower
// ones, and one product with V serves both maps. Warps take 16 keys each; their
// states are joined at the end, and the block leaves those of its rows.
//
//===----------------------------------------------------------------------===//
#include "GpuMath.h"
#include "KVPipeline.h"
#include "MatrixAtom.h"

#include "DiffAttn/Schedule/GpuSchedule.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

using Values = GpuBuilder::Values;

namespace {
class DecodeKernel {
public:
  explicit DecodeKernel(AttentionKernel &kernel)
      : kernel(kernel), b(kernel.b), spec(kernel.spec), layout(kernel.layout),
        keys(spec.getTiles().keys), sumTiles(spec.getPaddedValueDim() / 8),
        softmax(kernel) {}
  void emit();

private:
  void locate();
  void loadQueries();
  RowFragments scores(Value stage);
  Values computeTile(const KVPipeline::Tile &tile, ValueRange carried);
  /// Leaves the warp's state in shared memory.
  void leaveState(ValueRange values);
  /// Joins the warps' states and stores those of the rows that exist.
  void storeStates();
  struct MapParams {
    GpuParam max, sum, acc;
  };
  /// A place among the states of a map, and whether this lane's row has it.
  struct Target {
    Value place, isStored;
  };
  void storeMap(Value row, const MapParams &params, const Target &state,
                const Target &accumulator);

  AttentionKernel &kernel;
  GpuBuilder &b;
  const GpuKernelSpec &spec;
  const GpuSharedLayout &layout;
  int64_t keys, sumTiles;
  OnlineSoftmax softmax;

  Value batch, headBlock, split, firstHead;
  /// Query and noise head of this lane's rows g and g + 8.
  Value query, noiseHead;
  Value firstTile, endTile;
  QueryRows queries;
  std::unique_ptr<MatrixAtom> atom;
  std::optional<KVPipeline> pipeline;
};
} // namespace

void DecodeKernel::locate() {
  using P = GpuParam;
  split = b.blockId(0);
  headBlock = b.blockId(1);
  batch = b.blockId(2);
  Value group = kernel.param(P::Group);
  firstHead = b.mul(headBlock, group);
  kernel.masks = std::make_unique<GpuMasks>(kernel, batch);
  query = b.divU(kernel.laneRow, group);
  Value head = b.add(firstHead, b.sub(kernel.laneRow, b.mul(query, group)));
  noiseHead = b.divU(head, kernel.param(P::SignalPerNoise));
  Value firstNoise = b.divU(firstHead, kernel.param(P::SignalPerNoise));
  pipeline.emplace(kernel, batch, firstHead, firstNoise);

  VisibleRange seen =
      kernel.masks->getRange({}, {kernel.param(P::Queries), -1});
  Value end = b.maxS(kernel.masks->emit(seen.end), b.i32(0));
  Value begin = b.maxS(kernel.masks->emit(seen.begin), b.i32(0));
  const int64_t splitKeys = spec.getTiles().splitKeys;
  if (kernel.masks->hasTiles()) {
    Value first = b.mul(split, splitKeys);
    kernel.masks->beginBlock(b.i32(0), kGpuDecodeRows);
    std::tie(begin, end) = kernel.masks->narrow(
        b.maxS(begin, first), b.minS(end, b.add(first, splitKeys)),
        spec.getThreads());
  }
  int64_t tiles = splitKeys / keys;
  firstTile = b.maxS(b.mul(split, tiles), b.divU(begin, keys));
  endTile =
      b.minS(b.mul(b.add(split, 1), tiles), b.divU(b.add(end, keys - 1), keys));
}

void DecodeKernel::loadQueries() {
  using P = GpuParam;
  // Each row has a head and a query of its own, so elements are copied one by
  // one: there are few.
  int64_t width = spec.getPaddedHeadDim();
  Type half = b.getI16Type();
  Value group = kernel.param(P::Group);
  Value rows = b.mul(kernel.param(P::Queries), group);
  for (int64_t map = 0; map < 2; ++map) {
    const P tensor = map ? P::Q2 : P::Q1;
    b.loop(
        kernel.thread, b.i32(8 * width), spec.getThreads(), ValueRange(),
        [&](Value at, ValueRange) -> Values {
          Value row = b.divU(at, width);
          Value column = b.remU(at, width);
          Value inside = b.andI(
              b.compare(LLVM::ICmpPredicate::slt, row, rows),
              b.compare(LLVM::ICmpPredicate::slt, column, b.i32(spec.headDim)));
          // What lies outside reads element 0 and is thrown away.
          Value readRow = b.select(inside, row, b.i32(0));
          Value readColumn = b.select(inside, column, b.i32(0));
          Value q = b.divU(readRow, group);
          Value head = b.add(firstHead, b.sub(readRow, b.mul(q, group)));
          if (map)
            head = b.divU(head, kernel.param(P::SignalPerNoise));
          Value base = kernel.headBase(tensor, batch, head);
          base = kernel.stridePointer(half, base, b.toI64(q),
                                      kernel.rowStride(tensor));
          base = kernel.stridePointer(half, base, b.toI64(readColumn),
                                      kernel.param(getGpuStride(tensor, 3)));
          Value zero =
              LLVM::ConstantOp::create(b, half, b.getI16IntegerAttr(0));
          Value loaded = b.select(inside, b.loadConstant(half, base), zero);
          Value tileRow = b.add(row, 8 * map);
          Value chunk =
              b.xorI(b.mul(b.divU(column, 8), 16),
                     SharedTile::swizzle(b, layout.headPitch, tileRow));
          Value offset = b.add(b.add(b.mul(tileRow, layout.headPitch), chunk),
                               b.mul(b.remU(column, 8), 2));
          b.store(loaded, b.bytes(kernel.shared, offset));
          return {};
        });
  }
  b.barrier();
  atom = createMmaSync16816(kernel, /*valueChunk=*/{});
  queries.base = kernel.shared;
  if (spec.getTiles().qInRegisters)
    queries.fragments.push_back(atom->loadQueries(queries.base, 0));
}

RowFragments DecodeKernel::scores(Value stage) {
  SmallVector<Value> keyTiles{b.bytes(
      pipeline->keys(stage), b.mul(kernel.warp, 16 * layout.headPitch))};
  if (!spec.sharedKeys)
    keyTiles.push_back(b.bytes(keyTiles.front(), layout.keyBytes));
  SmallVector<ScoreTile> products = atom->multiplyKeys(queries, keyTiles, 16);
  RowFragments result = products.front().front();
  // The lower rows are those of the second map.
  if (!spec.sharedKeys)
    for (auto [fragment, second] : llvm::zip(result, products[1].front()))
      for (int64_t i = 2; i < 4; ++i)
        fragment[i] = second[i];
  return result;
}

Values DecodeKernel::computeTile(const KVPipeline::Tile &tile,
                                 ValueRange carried) {
  Value stage = tile.stage;
  RowState state{{carried[0], carried[1]}, {carried[2], carried[3]}};
  Values sums(carried.drop_front(4));

  Value firstKey = b.add(b.mul(tile.number, keys), b.mul(kernel.warp, 16));
  RowFragments s = scores(stage);
  softmax.transform(s, noiseHead, {query, query}, firstKey);
  s = softmax.mask(s, {query, query}, firstKey);
  if (tile.isPartial)
    softmax.replaceIf(tile.isPartial, s, [&] {
      return softmax.maskPartialTile(s, {query, query}, firstKey);
    });
  OnlineSoftmax::Step step = softmax.step(s, state);
  sums = softmax.rescale(sums, step);

  Value base = b.bytes(pipeline->values(stage),
                       b.mul(kernel.warp, 16 * layout.valuePitch));
  SmallVector<Accumulator> tiles(1, Accumulator(1, RowFragments(sumTiles)));
  for (auto [i, sum] : llvm::enumerate(sums))
    tiles[0][0][i / 4][i % 4] = sum;
  atom->multiplyValues(base, Probabilities{step.probabilities}, tiles);
  for (auto [i, sum] : llvm::enumerate(sums))
    sum = tiles[0][0][i / 4][i % 4];
  Values next{step.state.max[0], step.state.max[1], step.state.sum[0],
              step.state.sum[1]};
  llvm::append_range(next, sums);
  return next;
}

void DecodeKernel::leaveState(ValueRange values) {
  Type f32 = b.f32();
  int64_t pitch = layout.statePitch;
  int64_t perWarp = layout.stateWarpBytes / 4; // rows, then maxima and sums
  // The pipeline is free once all warps are here.
  kernel.loader->wait(0);
  b.barrier();
  Value states = b.bytes(kernel.shared, layout.states.offset);
  Value mine = b.element(f32, states, b.mul(kernel.warp, perWarp));
  for (int64_t h = 0; h < 2; ++h) {
    Value row = b.add(kernel.laneRow, 8 * h);
    Value rowBase = b.element(
        f32, mine, b.add(b.mul(row, pitch), b.mul(kernel.laneColumn, 2)));
    for (int64_t n = 0; n < sumTiles; ++n) {
      size_t at = 4 + 4 * n + 2 * h;
      b.store(b.pack({values[at], values[at + 1]}), b.bytes(rowBase, 32 * n),
              8);
    }
    // All four lanes of a row have the maximum and, after the reduction, the
    // sum.
    Value sum = softmax.reduceQuad(values[2 + h]);
    b.branch(b.compare(LLVM::ICmpPredicate::eq, kernel.laneColumn, b.i32(0)),
             [&] {
               Value slot = b.element(f32, mine, b.add(row, 16 * pitch));
               b.store(values[h], slot, 4);
               b.store(sum, b.bytes(slot, 64), 4);
             });
  }
  b.barrier();
}

void DecodeKernel::storeStates() {
  using P = GpuParam;
  // The lanes of a row of the tile store that row's states. Its numbers begin
  // with the lane's own and not with the thread's: LLVM does not take them for
  // those from before the loop over keys, which they would cost registers.
  Value row = b.divU(b.laneId(), 4), group = kernel.param(P::Group);
  Value query = b.divU(row, group);
  Value head = b.add(firstHead, b.sub(row, b.mul(query, group)));
  Value noiseHead = b.divU(head, kernel.param(P::SignalPerNoise));
  Value range = b.toI64(b.add(b.mul(split, b.gridSize(2)), batch));
  auto placeOf = [&](Value heads, Value number) {
    Value place = b.add(b.mul(range, b.toI64(heads)), b.toI64(number));
    return b.add(b.mul(place, b.toI64(kernel.param(P::Queries))),
                 b.toI64(query));
  };
  Value signalHeads = b.mul(b.gridSize(1), group),
        noiseHeads = kernel.param(P::NoiseHeads);
  Value exists =
      b.compare(LLVM::ICmpPredicate::slt, query, kernel.param(P::Queries));
  Value signal = placeOf(signalHeads, head);
  storeMap(row, {P::Max1, P::Sum1, P::Acc1}, {signal, exists},
           {signal, exists});
  // Of signal heads that share a noise head the first one stores what is the
  // same for all.
  Value isFirst = b.andI(
      exists, b.compare(LLVM::ICmpPredicate::eq, head,
                        b.mul(noiseHead, kernel.param(P::SignalPerNoise))));
  Value bySignal = b.compare(LLVM::ICmpPredicate::eq,
                             kernel.param(P::SignalPerAcc2), b.i32(1));
  Value noise = placeOf(noiseHeads, noiseHead);
  storeMap(
      b.add(row, kGpuDecodeRows), {P::Max2, P::Sum2, P::Acc2}, {noise, isFirst},
      {b.select(bySignal, signal, noise), b.select(bySignal, exists, isFirst)});
}

void DecodeKernel::storeMap(Value row, const MapParams &params,
                            const Target &state, const Target &accumulator) {
  Type f32 = b.f32();
  int64_t pitch = layout.statePitch, warps = spec.getTiles().warps;
  int64_t perWarp = layout.stateWarpBytes / 4;
  Value states = b.bytes(kernel.shared, layout.states.offset);
  auto ofWarp = [&](int64_t warp, Value at) {
    return b.load(f32, b.element(f32, states, b.add(at, warp * perWarp)), 4);
  };
  // Factors of the warps, in the order of their numbers.
  GpuMath math(b, kernel.param(GpuParam::ExponentScale));
  SmallVector<Value> weights;
  Value max = b.minusInfinity();
  for (int64_t warp = 0; warp < warps; ++warp) {
    weights.push_back(ofWarp(warp, b.add(row, 16 * pitch)));
    max = b.maxF(max, weights.back());
  }
  Value subtract = emitSubtrahend(math, max);
  for (Value &weight : weights)
    weight = math.exponential(b.subF(weight, subtract));
  auto join = [&](Value at) {
    Value sum = b.f32(0.0);
    for (int64_t warp = 0; warp < warps; ++warp)
      sum = b.fma(ofWarp(warp, at), weights[warp], sum);
    return sum;
  };
  auto store = [&](Value value, GpuParam pointer, Value at) {
    b.store(value, b.element(f32, kernel.param(pointer), at), 4);
  };
  Value isFirstLane = b.compare(
      LLVM::ICmpPredicate::eq, b.orI(kernel.warp, kernel.laneColumn), b.i32(0));
  b.branch(b.andI(state.isStored, isFirstLane), [&] {
    store(b.mulF(max, kernel.param(GpuParam::StateScale)), params.max,
          state.place);
    store(join(b.add(row, 16 * pitch + 16)), params.sum, state.place);
  });
  b.branch(accumulator.isStored, [&] {
    Value first = b.mul(accumulator.place, spec.valueDim);
    b.loop(
        b.add(b.mul(kernel.warp, 4), kernel.laneColumn), b.i32(spec.valueDim),
        4 * warps, ValueRange(),
        [&](Value column, ValueRange) -> Values {
          store(join(b.add(b.mul(row, pitch), column)), params.acc,
                b.add(first, b.toI64(column)));
          return {};
        },
        /*mayUnroll=*/false);
  });
}

void DecodeKernel::emit() {
  locate();
  loadQueries();
  Values initial{b.minusInfinity(), b.minusInfinity()};
  initial.append(2 + 4 * sumTiles, b.f32(0.0));
  leaveState(
      pipeline->loop(firstTile, endTile, initial,
                     [&](const KVPipeline::Tile &tile, ValueRange carried) {
                       return computeTile(tile, carried);
                     }));
  storeStates();
}

void mlir::diffattn::gpucode::emitDecodeKernel(AttentionKernel &kernel) {
  DecodeKernel(kernel).emit();
}
