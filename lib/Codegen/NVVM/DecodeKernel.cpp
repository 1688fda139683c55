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
  /// Rows of each map that there are: queries times heads of the block.
  Value countRows() {
    return b.mul(kernel.param(GpuParam::Queries),
                 kernel.param(GpuParam::Group));
  }
  /// Whether a number of a query, by its row in the tile and its column,
  /// exists, and where it lies.
  struct QuerySource {
    Value inside, pointer;
  };
  QuerySource locateQuery(Value tileRow, Value column);
  void bringQueries();
  /// Once they are there.
  void keepQueries();
  RowFragments scores(Value stage);
  Values computeTile(const KVPipeline::Tile &tile, ValueRange carried);
  /// Leaves the warp's state in shared memory.
  void leaveState(ValueRange values);
  /// The state of a row of the tile: its maximum and sum, and what gives the
  /// accumulator of a column.
  struct Joined {
    Value max, sum;
    std::function<Value(Value column)> getColumn;
  };
  /// Joins the warps' states.
  Joined join(Value tileRow);
  /// Stores the states of the rows that exist.
  void storeStates(function_ref<Joined(Value tileRow)> getState);

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
  Value splitKeys = kernel.param(P::SplitKeys);
  if (kernel.masks->hasTiles()) {
    Value first = b.mul(split, splitKeys);
    kernel.masks->beginBlock(b.i32(0), kGpuDecodeRows);
    std::tie(begin, end) = kernel.masks->narrow(
        b.maxS(begin, first), b.minS(end, b.add(first, splitKeys)),
        spec.getThreads());
  }
  Value tiles = b.divU(splitKeys, keys);
  firstTile = b.maxS(b.mul(split, tiles), b.divU(begin, keys));
  endTile =
      b.minS(b.mul(b.add(split, 1), tiles), b.divU(b.add(end, keys - 1), keys));
}

DecodeKernel::QuerySource DecodeKernel::locateQuery(Value tileRow,
                                                    Value column) {
  using P = GpuParam;
  Value isSecond = b.compare(LLVM::ICmpPredicate::uge, tileRow, b.i32(8));
  Value row = b.andI(tileRow, 7), group = kernel.param(P::Group);
  Value inside = b.compare(LLVM::ICmpPredicate::slt, row, countRows());
  if (spec.headDim != spec.getPaddedHeadDim()) {
    Value hasColumn =
        b.compare(LLVM::ICmpPredicate::slt, column, b.i32(spec.headDim));
    inside = b.andI(inside, hasColumn);
    column = b.select(hasColumn, column, b.i32(0));
  }
  row = b.select(inside, row, b.i32(0));
  Value query = b.divU(row, group);
  Value head = b.add(firstHead, b.sub(row, b.mul(query, group)));
  head =
      b.select(isSecond, b.divU(head, kernel.param(P::SignalPerNoise)), head);
  auto ofMap = [&](auto get) {
    return b.select(isSecond, get(P::Q2), get(P::Q1));
  };
  Value pointer = ofMap([&](P tensor) { return kernel.param(tensor); });
  const Value indices[] = {batch, head, query, column};
  for (auto [axis, index] : llvm::enumerate(indices)) {
    const unsigned number = axis;
    if (number == 3 && !spec.elementwise)
      pointer = b.element(kernel.element, pointer, b.toI64(index));
    else
      pointer = kernel.stridePointer(
          kernel.element, pointer, b.toI64(index), ofMap([&](P tensor) {
            return kernel.param(getGpuStride(tensor, number));
          }));
  }
  return {inside, pointer};
}

/// Each row has a head and a query of its own: 16 bytes of it are copied at a
/// time, or elements are where these do not lie together. What is no row, or
/// lies beyond the width, reads element 0 and is zeros.
void DecodeKernel::bringQueries() {
  const int64_t step = spec.elementwise ? 1 : kChunkElements,
                perRow = spec.getPaddedHeadDim() / step, all = 16 * perRow,
                threads = spec.getThreads();
  auto bring = [&](Value at) {
    Value row = b.divU(at, perRow), column = b.mul(b.remU(at, perRow), step);
    Value chunk = b.xorI(b.mul(b.divU(column, kChunkElements), kChunkBytes),
                         SharedTile::swizzle(b, layout.headPitch, row));
    Value target =
        b.bytes(kernel.shared, b.add(b.mul(row, layout.headPitch), chunk));
    auto [inside, source] = locateQuery(row, column);
    if (!spec.elementwise) {
      NVVM::CpAsyncOp::create(b, target, source, kChunkBytes,
                              NVVM::LoadCacheModifierKind::CG,
                              b.select(inside, b.i32(kChunkBytes), b.i32(0)));
      return;
    }
    Type half = b.getI16Type();
    Value zero = LLVM::ConstantOp::create(b, half, b.getI16IntegerAttr(0));
    Value loaded = b.select(inside, b.loadConstant(half, source), zero);
    b.store(loaded, b.bytes(target, b.mul(b.remU(column, kChunkElements),
                                          kElementBytes)));
  };
  b.loop(kernel.thread, b.i32(all), threads, ValueRange(),
         [&](Value at, ValueRange) -> Values {
           bring(at);
           return {};
         });
}

void DecodeKernel::keepQueries() {
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
  // The pipeline is free once all warps are here: every tile was waited for.
  b.barrier();
  Value states = b.bytes(kernel.shared, layout.states.offset);
  Value mine = b.element(f32, states, b.mul(kernel.warp, perWarp));
  Value exists =
      b.compare(LLVM::ICmpPredicate::slt, kernel.laneRow, countRows());
  for (int64_t h = 0; h < 2; ++h) {
    Value row = b.add(kernel.laneRow, 8 * h);
    Value rowBase = b.element(
        f32, mine, b.add(b.mul(row, pitch), b.mul(kernel.laneColumn, 2)));
    b.branch(exists, [&] {
      for (int64_t n = 0; n < sumTiles; ++n) {
        size_t at = 4 + 4 * n + 2 * h;
        b.store(b.pack({values[at], values[at + 1]}), b.bytes(rowBase, 32 * n),
                8);
      }
    });
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

DecodeKernel::Joined DecodeKernel::join(Value tileRow) {
  Type f32 = b.f32();
  const int64_t pitch = layout.statePitch, warps = spec.getTiles().warps,
                perWarp = layout.stateWarpBytes / 4;
  Value states = b.bytes(kernel.shared, layout.states.offset);
  auto ofWarp = [this, f32, states, perWarp](int64_t warp, Value at) {
    return b.load(f32, b.element(f32, states, b.add(at, warp * perWarp)), 4);
  };
  // Factors of the warps, in the order of their numbers.
  GpuMath math(b, kernel.param(GpuParam::ExponentScale));
  SmallVector<Value> weights;
  Value max = b.minusInfinity();
  for (int64_t warp = 0; warp < warps; ++warp) {
    weights.push_back(ofWarp(warp, b.add(tileRow, 16 * pitch)));
    max = b.maxF(max, weights.back());
  }
  Value subtract = emitSubtrahend(math, max);
  for (Value &weight : weights)
    weight = math.exponential(b.subF(weight, subtract));
  auto sumAt = [this, ofWarp, weights, warps](Value at) {
    Value sum = b.f32(0.0);
    for (int64_t warp = 0; warp < warps; ++warp)
      sum = b.fma(ofWarp(warp, at), weights[warp], sum);
    return sum;
  };
  return {b.mulF(max, kernel.param(GpuParam::StateScale)),
          sumAt(b.add(tileRow, 16 * pitch + 16)),
          [this, sumAt, tileRow, pitch](Value column) {
            return sumAt(b.add(b.mul(tileRow, pitch), column));
          }};
}

/// Warps take turns at the rows of both maps, and lanes at columns.
void DecodeKernel::storeStates(function_ref<Joined(Value tileRow)> getState) {
  using P = GpuParam;
  const int64_t warps = spec.getTiles().warps;
  Value rows = countRows(), group = kernel.param(P::Group);
  Value range = b.toI64(b.add(b.mul(split, b.gridSize(2)), batch));
  Value bySignal = b.compare(LLVM::ICmpPredicate::eq,
                             kernel.param(P::SignalPerAcc2), b.i32(1));
  b.loop(
      kernel.warp, b.mul(rows, 2), warps, ValueRange(),
      [&](Value number, ValueRange) -> Values {
        Value isSecond = b.compare(LLVM::ICmpPredicate::sge, number, rows);
        Value row = b.select(isSecond, b.sub(number, rows), number);
        Value query = b.divU(row, group);
        Value head = b.add(firstHead, b.sub(row, b.mul(query, group)));
        Value noiseHead = b.divU(head, kernel.param(P::SignalPerNoise));
        auto placeOf = [&](Value heads, Value head) {
          Value place = b.add(b.mul(range, b.toI64(heads)), b.toI64(head));
          return b.add(b.mul(place, b.toI64(kernel.param(P::Queries))),
                       b.toI64(query));
        };
        Value signal = placeOf(b.mul(b.gridSize(1), group), head);
        Value noise = placeOf(kernel.param(P::NoiseHeads), noiseHead);
        // Of signal heads that share a noise head the first one stores what is
        // the same for all.
        Value isStored =
            b.orI(b.compare(LLVM::ICmpPredicate::eq, head,
                            b.mul(noiseHead, kernel.param(P::SignalPerNoise))),
                  b.xorI(isSecond, b.i1(true)));
        auto ofMap = [&](P first, P second) {
          return b.select(isSecond, kernel.param(second), kernel.param(first));
        };
        Joined state =
            getState(b.add(row, b.select(isSecond, b.i32(8), b.i32(0))));
        auto store = [&](Value value, Value pointer, Value at) {
          b.store(value, b.element(b.f32(), pointer, at), 4);
        };
        Value isFirstLane =
            b.compare(LLVM::ICmpPredicate::eq, kernel.lane, b.i32(0));
        b.branch(b.andI(isStored, isFirstLane), [&] {
          Value place = b.select(isSecond, noise, signal);
          store(state.max, ofMap(P::Max1, P::Max2), place);
          store(state.sum, ofMap(P::Sum1, P::Sum2), place);
        });
        b.branch(b.orI(isStored, bySignal), [&] {
          Value place = b.select(b.andI(isSecond, b.xorI(bySignal, b.i1(true))),
                                 noise, signal);
          Value pointer = b.element(b.f32(), ofMap(P::Acc1, P::Acc2),
                                    b.mul(place, spec.valueDim));
          for (int64_t first = 0; first < spec.valueDim; first += 32) {
            Value column = b.add(kernel.lane, first);
            auto storeColumn = [&] {
              store(state.getColumn(column), pointer, b.toI64(column));
            };
            if (first + 32 <= spec.valueDim)
              storeColumn();
            else
              b.branch(b.compare(LLVM::ICmpPredicate::slt, column,
                                 b.i32(spec.valueDim)),
                       storeColumn);
          }
        });
        return {};
      },
      /*mayUnroll=*/false);
}

void DecodeKernel::emit() {
  locate();
  b.choose(
      b.compare(LLVM::ICmpPredicate::sge, firstTile, endTile),
      [&]() -> Values {
        storeStates([&](Value) -> Joined {
          return {b.minusInfinity(), b.f32(0.0),
                  [&](Value) { return b.f32(0.0); }};
        });
        return {};
      },
      [&]() -> Values {
        pipeline->start(firstTile, endTile, [&] { bringQueries(); });
        pipeline->wait();
        keepQueries();
        Values initial{b.minusInfinity(), b.minusInfinity()};
        initial.append(2 + 4 * sumTiles, b.f32(0.0));
        leaveState(pipeline->loop(
            initial, [&](const KVPipeline::Tile &tile, ValueRange carried) {
              return computeTile(tile, carried);
            }));
        storeStates([&](Value tileRow) { return join(tileRow); });
        return {};
      });
}

void mlir::diffattn::gpucode::emitDecodeKernel(AttentionKernel &kernel) {
  DecodeKernel(kernel).emit();
}
