//===- GradientKeys.cpp - gradients of a block of keys and values ---------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A block has keys of one head of K1, K2 and V. The queries of all signal heads
// that share it come by, tile after tile and head after head, in order: so no
// sum is shared with another block. Scores are transposed, rows are keys, so
// that weights and gradients of scores are first operands as they lie.
//
// Safety of the ring. (1) A stage is read only after this thread's wait for its
// copies and the block's barrier after it. (2) A stage is refilled only after
// the barrier of the next tile, which every warp passes after its last read.
//
//===----------------------------------------------------------------------===//
#include "GradientKeys.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

//===----------------------------------------------------------------------===//
// Whatever multiplies
//===----------------------------------------------------------------------===//

GradientKeyBlock::GradientKeyBlock(AttentionKernel &kernel, size_t fragments)
    : kernel(kernel), b(kernel.b), spec(kernel.spec), layout(kernel.layout),
      queries(spec.getTileKeys()), keyTensors(spec.hasSecondKeys() ? 2 : 1),
      fragments(fragments), tiles(kernel, /*columnsAreQueries=*/true) {}

void GradientKeyBlock::locateWarp() {
  // Warps ahead of those that read have no rows.
  const int64_t ahead = (spec.getThreads() - spec.getReadingThreads()) / 32;
  Value warp = ahead ? b.add(kernel.warp, -ahead) : kernel.warp;
  warpKey = b.add(firstKey, b.mul(warp, 16));
}

void GradientKeyBlock::locate() {
  // Blocks start in order of their number: with a causal mask the first keys
  // are seen by most queries.
  const AttentionKernel::Part rows = kernel.locateRows(b.blockId(0));
  firstKey = rows.firstRow;
  keyHead = b.blockId(1);
  batch = kernel.batchOfBlock();
  locateWarp();
  perKey = kernel.param(GpuParam::SignalPerKey1);
  signalHeads = b.mul(b.gridSize(1), perKey);
  firstHead = b.mul(keyHead, perKey);
  kernel.enterSequence(rows.sequence ? rows.sequence : batch);
  auto [begin, end] = kernel.masks->getQueries(firstKey, spec.getRows());
  firstTile = b.divU(begin, queries);
  endTile = b.divU(b.add(end, queries - 1), queries);
}

void GradientKeyBlock::store(ArrayRef<Fragment> all) {
  auto storeOne = [&](GpuGradient gradient, ArrayRef<Fragment> of,
                      Value factor) {
    if (spec.getGradientType(gradient))
      tiles.store(of, factor, gradient,
                  kernel.headBase(getGpuParam(gradient), batch, keyHead),
                  kernel.keyAt(warpKey), kernel.keyAt(kernel.keys()));
  };
  Value scale = kernel.param(GpuParam::GradientScale);
  storeOne(GpuGradient::K1, all.take_front(fragments), scale);
  if (spec.hasSecondKeys())
    storeOne(GpuGradient::K2, all.slice(fragments, fragments), scale);
  storeOne(GpuGradient::V, all.drop_front(keyTensors * fragments), Value());
}

//===----------------------------------------------------------------------===//
// By mma.sync
//===----------------------------------------------------------------------===//

namespace {
class GradientKeys : GradientKeyBlock {
public:
  explicit GradientKeys(AttentionKernel &kernel);
  void emit();

private:
  /// A tile of queries of a signal head: the first one's number, and the head.
  struct Tile {
    Value number, head;
  };
  /// The tile after `tile`: that of the next head behind the last one.
  Tile following(const Tile &tile);
  Value followingStage(Value stage, int64_t by);
  void emitTiles();
  void bringKeys();
  void bringTile(const Tile &tile, Value stage);
  void bringStatistics(const Tile &tile, Value noiseHead, Value base);
  Values computeTile(const Tile &tile, Value stage, ValueRange carried);
  /// Both numbers of each fragment of columns.
  SmallVector<std::array<Value, 2>> readStatistic(Value stage, Statistic which);

  /// Rows of the warp in shared memory.
  Value rowBase(int64_t offset, int64_t pitch) {
    return b.bytes(b.bytes(kernel.shared, layout.queries.offset + offset),
                   b.mul(kernel.warp, 16 * pitch));
  }
  Value stageBase(Value stage, int64_t offset) {
    return b.bytes(b.bytes(kernel.shared, stage),
                   layout.pipeline.offset + offset);
  }

  const int64_t stages;
  RowProducts heads, values;
};
} // namespace

GradientKeys::GradientKeys(AttentionKernel &kernel)
    : GradientKeyBlock(kernel, kernel.spec.getPaddedHeadDim() / 8),
      stages(spec.getTiles().stages),
      heads(kernel, layout.headPitch, spec.getPaddedHeadDim()),
      values(kernel, layout.valuePitch, spec.getPaddedValueDim()) {}

GradientKeys::Tile GradientKeys::following(const Tile &tile) {
  Value next = b.add(tile.number, 1);
  Value isLast = b.compare(LLVM::ICmpPredicate::sge, next, endTile);
  return {b.select(isLast, firstTile, next),
          b.select(isLast, b.add(tile.head, 1), tile.head)};
}

/// The stage `by` after `stage`, up to all but one of them.
Value GradientKeys::followingStage(Value stage, int64_t by) {
  const int64_t all = stages * layout.stageBytes;
  Value next = b.add(stage, by * layout.stageBytes);
  return b.select(b.compare(LLVM::ICmpPredicate::sge, next, b.i32(all)),
                  b.add(next, -all), next);
}

void GradientKeys::bringKeys() {
  using P = GpuParam;
  auto copy = [&](int64_t offset, int64_t padded, int64_t pitch, P tensor,
                  int64_t width) {
    kernel.loader->copy({b.bytes(kernel.shared, layout.queries.offset + offset),
                         spec.getRows(), padded, pitch},
                        {kernel.headBase(tensor, batch, keyHead),
                         kernel.rowStride(tensor), kernel.columnStride(tensor),
                         kernel.keyAt(firstKey),
                         kernel.keyAt(kernel.masks->keyLimit), width});
  };
  for (int64_t i = 0; i < keyTensors; ++i)
    copy(i * layout.queryBytes, spec.getPaddedHeadDim(), layout.headPitch,
         i ? P::K2 : P::K1, spec.headDim);
  copy(layout.rowValueOffset, spec.getPaddedValueDim(), layout.valuePitch, P::V,
       spec.valueDim);
}

void GradientKeys::bringTile(const Tile &tile, Value stage) {
  using P = GpuParam;
  Value noiseHead = kernel.noiseHeadOf(tile.head);
  Value first = b.mul(tile.number, queries);
  auto copy = [&](int64_t offset, int64_t padded, int64_t pitch, Value base,
                  Value rowStride, Value columnStride, int64_t width) {
    kernel.loader->copy({stageBase(stage, offset), queries, padded, pitch},
                        {base, rowStride, columnStride, kernel.queryAt(first),
                         kernel.queryAt(kernel.queries()), width});
  };
  for (int64_t map = 0; map < spec.maps; ++map) {
    const P tensor = map ? P::Q2 : P::Q1;
    copy(map * layout.keyBytes, spec.getPaddedHeadDim(), layout.headPitch,
         kernel.headBase(tensor, batch, map ? noiseHead : tile.head),
         kernel.rowStride(tensor), kernel.columnStride(tensor), spec.headDim);
  }
  copy(layout.valueOffset, spec.getPaddedValueDim(), layout.valuePitch,
       tiles.getRowGradients(batch, tile.head, signalHeads),
       b.i64(spec.valueDim), b.i64(1), spec.valueDim);
  bringStatistics(tile, noiseHead, stageBase(stage, layout.statisticsOffset));
}

/// By asynchronous copies of 4 bytes, which arrive with the tile; zeros of
/// queries that do not exist.
void GradientKeys::bringStatistics(const Tile &tile, Value noiseHead,
                                   Value base) {
  Value row = b.add(b.mul(tile.number, queries), kernel.thread);
  b.branch(
      b.compare(LLVM::ICmpPredicate::ult, kernel.thread, b.i32(queries)), [&] {
        Value last = b.add(kernel.queries(), -1);
        Value exists = b.compare(LLVM::ICmpPredicate::sle, row, last);
        Value bytes = b.select(exists, b.i32(4), b.i32(0));
        Value query = b.minS(row, last), place = kernel.queryAt(query);
        Value to = b.bytes(base, b.mul(kernel.thread, 4));
        auto copy = [&](Statistic which, Value from) {
          NVVM::CpAsyncOp::create(b, b.bytes(to, which * 4 * queries), from, 4,
                                  NVVM::LoadCacheModifierKind::CA, bytes);
        };
        for (int64_t map = 0; map < spec.maps; ++map) {
          copy(map ? Lse2 : Lse1,
               kernel.stridePointer(
                   b.f32(),
                   tiles.getLogSums(map, batch, map ? noiseHead : tile.head),
                   b.toI64(place), tiles.getLogSumStride(map)));
          Value sums = tiles.getRowSums(map ? GpuParam::D2 : GpuParam::D1,
                                        batch, tile.head, signalHeads);
          copy(map ? D2 : D1, b.element(b.f32(), sums, b.toI64(place)));
        }
        if (spec.maps == 2)
          copy(Lambda, kernel.locateLambda(batch, query, tile.head));
      });
}

SmallVector<std::array<Value, 2>> GradientKeys::readStatistic(Value stage,
                                                              Statistic which) {
  SmallVector<std::array<Value, 2>> numbers;
  Value base =
      b.bytes(stageBase(stage, layout.statisticsOffset + which * 4 * queries),
              b.mul(kernel.laneColumn, 8));
  for (int64_t n = 0; n < queries / 8; ++n) {
    SmallVector<Value> pair =
        b.unpack(b.load(VectorType::get(2, b.f32()), b.bytes(base, 32 * n), 8));
    numbers.push_back({pair[0], pair[1]});
  }
  return numbers;
}

GpuBuilder::Values GradientKeys::computeTile(const Tile &tile, Value stage,
                                             ValueRange carried) {
  RowFragments sums = toFragments(carried);
  MutableArrayRef<Fragment> all(sums);
  const size_t ofKeys = fragments;
  const GradientTiles::Place where{kernel.noiseHeadOf(tile.head), warpKey,
                                   b.mul(tile.number, queries)};
  Value rowGradients = stageBase(stage, layout.valueOffset);
  RowFragments dP = values.multiply(
      rowBase(layout.rowValueOffset, layout.valuePitch), rowGradients, queries);
  RowFragments difference;
  for (int64_t map = 0; map < spec.maps; ++map) {
    const int64_t keys = map && spec.hasSecondKeys() ? 1 : 0;
    Value queryTile = stageBase(stage, map * layout.keyBytes);
    RowFragments weights =
        heads.multiply(rowBase(keys * layout.queryBytes, layout.headPitch),
                       queryTile, queries);
    auto shifts = readStatistic(stage, map ? Lse2 : Lse1),
         rowSums = readStatistic(stage, map ? D2 : D1);
    for (auto &pair : shifts)
      for (Value &shift : pair)
        shift = tiles.getShift(shift);
    RowFragments slopes;
    tiles.weigh(
        weights, where, [&](int64_t n, int64_t i) { return shifts[n][i % 2]; },
        slopes);
    if (map) {
      auto lambdas = readStatistic(stage, Lambda);
      for (auto [n, fragment] : llvm::enumerate(weights))
        for (auto [i, weight] : llvm::enumerate(fragment)) {
          Value &lambda = lambdas[n][i % 2];
          if (i < 2)
            lambda = b.mulF(kernel.activateLambda(lambda), b.f32(-1.0));
          weight = b.mulF(weight, lambda);
          difference[n][i] = b.addF(difference[n][i], weight);
        }
    } else {
      difference = weights;
    }
    RowFragments dS = tiles.differentiate(
        weights, dP, [&](int64_t n, int64_t i) { return rowSums[n][i % 2]; },
        slopes);
    heads.accumulate(tiles.pack(dS), queryTile,
                     all.slice(keys * ofKeys, ofKeys));
  }
  values.accumulate(tiles.pack(difference), rowGradients,
                    all.drop_front(keyTensors * ofKeys));
  return toValues(sums);
}

void GradientKeys::emit() {
  locate();
  kernel.unlessEmpty(firstKey, [&] { emitTiles(); });
}

void GradientKeys::emitTiles() {
  Value total = b.mul(b.maxS(b.sub(endTile, firstTile), b.i32(0)), perKey);

  bringKeys();
  Tile tile{firstTile, firstHead};
  for (int64_t i = 0; i < stages - 1; ++i) {
    b.branch(b.compare(LLVM::ICmpPredicate::slt, b.i32(i), total),
             [&] { bringTile(tile, b.i32(i * layout.stageBytes)); });
    // A group for each stage, empty or not, so that waits count the same.
    kernel.loader->commit();
    tile = following(tile);
  }
  // The tile and head that are computed, then those that are brought.
  Values initial{b.i32(0), firstTile, firstHead, tile.number, tile.head};
  for (int64_t i = 0; i < keyTensors; ++i)
    llvm::append_range(initial, toValues(heads.getZeros()));
  llvm::append_range(initial, toValues(values.getZeros()));
  Values final = b.loop(
      b.i32(0), total, 1, initial,
      [&](Value number, ValueRange carried) -> Values {
        Value stage = carried[0];
        Tile now{carried[1], carried[2]}, ahead{carried[3], carried[4]};
        kernel.loader->wait(stages - 2);
        b.barrier();
        b.branch(b.compare(LLVM::ICmpPredicate::slt, b.add(number, stages - 1),
                           total),
                 [&] { bringTile(ahead, followingStage(stage, stages - 1)); });
        kernel.loader->commit();
        Values sums = computeTile(now, stage, carried.drop_front(5));
        now = following(now);
        ahead = following(ahead);
        Values next{followingStage(stage, 1), now.number, now.head,
                    ahead.number, ahead.head};
        llvm::append_range(next, sums);
        return next;
      });
  // Without tiles nothing has waited for the keys.
  kernel.loader->wait(0);
  store(toFragments(ValueRange(final).drop_front(5)));
}

void mlir::diffattn::gpucode::emitGradientKeysKernel(AttentionKernel &kernel) {
  if (kernel.spec.byWarpgroups)
    return emitWgmmaGradientKeys(kernel);
  GradientKeys(kernel).emit();
}
