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
// second, or zeros where there is none. The product with K1 gives the upper
// scores, that with K2 the lower ones, and one product with V serves both maps.
// Warps take 16 keys each; their states are joined at the end, and the block
// leaves those of its rows (DecodeStates.cpp); its queries come beside the
// first keys (DecodeQueries.cpp). Tiles are copied by all threads, or come by
// tensor maps, which one warp more asks for.
//
//===----------------------------------------------------------------------===//
#include "DecodeKernel.h"

#include "DiffAttn/Schedule/GpuSchedule.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

using Values = GpuBuilder::Values;

/// The named barrier of the warps that compute beside one that brings.
static constexpr int64_t kReadersBarrier = 1;

/// Blocks are (ranges, groups of heads, batches), or of packed sequences
/// (parts, groups of heads, ranges).
void DecodeKernel::locate() {
  headBlock = b.blockId(1);
  if (!spec.isPacked()) {
    split = b.blockId(0);
    batch = sequence = b.blockId(2);
    return;
  }
  split = b.blockId(2);
  batch = b.i32(0);
  Value most = b.divU(b.i32(kGpuDecodeRows), kernel.param(GpuParam::Group));
  AttentionKernel::Part part = kernel.enterPart(b.blockId(0), most);
  sequence = part.sequence;
  firstRow = part.firstRow;
  blockQueries = b.minS(b.sub(kernel.queries(), firstRow), most);
}

void DecodeKernel::locateHeads() {
  using P = GpuParam;
  Value group = kernel.param(P::Group);
  firstHead = b.mul(headBlock, group);
  kernel.enterSequence(sequence);
  query = b.divU(kernel.laneRow, group);
  Value head = b.add(firstHead, b.sub(kernel.laneRow, b.mul(query, group)));
  if (firstRow)
    query = b.add(query, firstRow);
  noiseHead = kernel.noiseHeadOf(head);
  Value firstNoise = kernel.noiseHeadOf(firstHead);
  place.batch = batch;
  place.head = firstHead;
  place.noiseHead = firstNoise;
  place.sequence = sequence;
  if (!spec.isBulk())
    pipeline.emplace(kernel, batch, firstHead, firstNoise);
}

void DecodeKernel::locateKeys() {
  using P = GpuParam;
  Value queriesEnd =
      firstRow ? b.add(firstRow, countQueries()) : kernel.param(P::Queries);
  VisibleRange visible = kernel.masks->getRange({firstRow}, {queriesEnd, -1});
  Value end = b.maxS(kernel.masks->emit(visible.end), b.i32(0));
  Value begin = b.maxS(kernel.masks->emit(visible.begin), b.i32(0));
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

RowFragments DecodeKernel::scores(Value keysBase) {
  SmallVector<Value> keyTiles{
      b.bytes(keysBase, b.mul(kernel.warp, 16 * layout.keyPitch))};
  if (spec.hasSecondKeys())
    keyTiles.push_back(b.bytes(keyTiles.front(), layout.keyBytes));
  SmallVector<ScoreTile> products = atom->multiplyKeys(queries, keyTiles, 16);
  RowFragments result = products.front().front();
  // The lower rows are those of the second map.
  if (spec.hasSecondKeys())
    for (auto [fragment, second] : llvm::zip(result, products[1].front()))
      for (int64_t i = 2; i < 4; ++i)
        fragment[i] = second[i];
  return result;
}

Values DecodeKernel::computeTile(const Tile &tile, ValueRange carried) {
  RowState state;
  for (int64_t h = 0; h < laneRows(); ++h) {
    state.max[h] = carried[h];
    state.sum[h] = carried[laneRows() + h];
  }
  Values sums(carried.drop_front(laneNumbers()));

  Value firstKey = b.add(b.mul(tile.number, keys), b.mul(kernel.warp, 16));
  RowFragments s = scores(tile.keys);
  softmax.transform(s, noiseHead, {query, query}, firstKey);
  s = softmax.mask(s, {query, query}, firstKey);
  if (tile.isPartial)
    softmax.replaceIf(tile.isPartial, s, [&] {
      return softmax.maskPartialTile(s, {query, query}, firstKey);
    });
  OnlineSoftmax::Step step = softmax.step(s, state);
  sums = softmax.rescale(sums, step);

  if (tile.waitForValues)
    tile.waitForValues();
  Value base = b.bytes(tile.values, b.mul(kernel.warp, 16 * layout.valuePitch));
  const int64_t numbers = laneNumbers();
  Fragment zeros;
  if (numbers < 4)
    zeros.fill(b.f32(0.0));
  SmallVector<Accumulator> tiles(1,
                                 Accumulator(1, RowFragments(sumTiles, zeros)));
  for (auto [i, sum] : llvm::enumerate(sums))
    tiles[0][0][i / numbers][i % numbers] = sum;
  atom->multiplyValues(base, Probabilities{step.probabilities}, tiles);
  for (auto [i, sum] : llvm::enumerate(sums))
    sum = tiles[0][0][i / numbers][i % numbers];
  Values next;
  for (const std::array<Value, 2> &ofRows : {step.state.max, step.state.sum})
    llvm::append_range(next, ArrayRef(ofRows).take_front(laneRows()));
  llvm::append_range(next, sums);
  return next;
}

void DecodeKernel::meet() {
  if (spec.isBulk())
    b.namedBarrier(b.i32(kReadersBarrier), spec.getReadingThreads());
  else
    b.barrier();
}

Values DecodeKernel::computeByPipeline(ValueRange initial) {
  pipeline->start(firstTile, endTile, [&] { bringQueries(); });
  pipeline->wait();
  keepQueries();
  return pipeline->loop(
      initial, [&](const KVPipeline::Tile &tile, ValueRange carried) {
        return computeTile({tile.number, pipeline->keys(tile.stage),
                            pipeline->values(tile.stage), tile.isPartial},
                           carried);
      });
}

void DecodeKernel::clearHiddenValues(Value values, Value firstKey) {
  Value limit = kernel.masks->keyLimit;
  Value hasHidden = b.andI(
      b.compare(LLVM::ICmpPredicate::sgt,
                b.add(firstKey, GpuSplitKVAttr::kKeysOfWarp), limit),
      b.compare(LLVM::ICmpPredicate::slt, limit, kernel.param(GpuParam::Keys)));
  b.branch(hasHidden, [&] {
    constexpr int64_t chunks = kGpuPanelPitch / kChunkBytes, rows = 32 / chunks;
    Value zero = b.i32(0), row = b.divU(kernel.lane, chunks);
    Value base = b.bytes(values, b.mul(kernel.lane, kChunkBytes));
    for (int64_t first = 0; first < GpuSplitKVAttr::kKeysOfWarp; first += rows)
      b.branch(b.compare(LLVM::ICmpPredicate::sge,
                         b.add(b.add(firstKey, first), row), limit),
               [&] {
                 for (int64_t panel = 0; panel < layout.valuePanels; ++panel)
                   b.store(b.pack({zero, zero, zero, zero}),
                           b.bytes(base, panel * layout.keyPanelBytes +
                                             first * kGpuPanelPitch),
                           kChunkBytes);
               });
    // No copy comes to this place again: the tile is the last one.
    b.warpBarrier();
  });
}

Values DecodeKernel::computeByRing(TensorRing &ring, ValueRange initial) {
  bringQueries();
  kernel.loader->commit();
  kernel.loader->wait(0);
  meet();
  keepQueries();
  TensorRing::Position start = ring.begin();
  Values carried{start.stage, start.parity};
  llvm::append_range(carried, initial);
  Values final = ring.forTiles(
      firstTile, endTile, carried,
      [&](Value number, ValueRange carried) -> Values {
        TensorRing::Position position{carried[0], carried[1]};
        ring.waitForKeys(position);
        Value ofWarp = b.mul(kernel.warp, GpuSplitKVAttr::kKeysOfWarp);
        Value values = ring.values(position);
        auto waitForValues = [&] {
          ring.waitForValues(position);
          clearHiddenValues(b.bytes(values, b.mul(ofWarp, layout.valuePitch)),
                            b.add(b.mul(number, keys), ofWarp));
        };
        Values after = computeTile(
            {number, ring.keys(position), values, {}, waitForValues},
            carried.drop_front(2));
        // One lane releases the stage for all of the warp.
        b.warpBarrier();
        ring.release(position);
        position = ring.following(position);
        Values next{position.stage, position.parity};
        llvm::append_range(next, after);
        return next;
      });
  return Values(ValueRange(final).drop_front(2));
}

void DecodeKernel::emitByRing() {
  TensorRing ring(kernel);
  ring.enter(place);
  b.branch(b.compare(LLVM::ICmpPredicate::eq, kernel.thread, b.i32(0)),
           [&] { ring.initBarriers(); });
  b.barrier();
  Value isBringing = b.compare(LLVM::ICmpPredicate::sge, kernel.thread,
                               b.i32(spec.getReadingThreads()));
  b.choose(
      isBringing,
      [&]() -> Values {
        b.branch(b.compare(LLVM::ICmpPredicate::eq, kernel.lane, b.i32(0)),
                 [&] { ring.bring(firstTile, endTile, ring.beginBringing()); });
        return {};
      },
      [&]() -> Values {
        leaveState(computeByRing(ring, initialState()));
        storeStates([&](Value tileRow) { return join(tileRow); });
        return {};
      });
}

Values DecodeKernel::initialState() {
  Values initial(laneRows(), b.minusInfinity());
  initial.append(laneRows() + laneNumbers() * sumTiles, b.f32(0.0));
  return initial;
}

void DecodeKernel::computeRange() {
  locateHeads();
  locateKeys();
  auto storeEmpty = [&] {
    storeStates([&](Value) -> Joined {
      return {b.minusInfinity(), b.f32(0.0), [&](Value) { return b.f32(0.0); }};
    });
  };
  b.choose(
      b.compare(LLVM::ICmpPredicate::sge, firstTile, endTile),
      [&]() -> Values {
        if (spec.isBulk())
          b.branch(b.compare(LLVM::ICmpPredicate::slt, kernel.thread,
                             b.i32(spec.getReadingThreads())),
                   storeEmpty);
        else
          storeEmpty();
        return {};
      },
      [&]() -> Values {
        if (spec.isBulk()) {
          emitByRing();
          return {};
        }
        leaveState(computeByPipeline(initialState()));
        storeStates([&](Value tileRow) { return join(tileRow); });
        return {};
      });
}

void DecodeKernel::emit() {
  locate();
  if (!firstRow)
    return computeRange();
  // Parts of packed sequences may have no queries.
  b.branch(b.compare(LLVM::ICmpPredicate::sgt, blockQueries, b.i32(0)),
           [&] { computeRange(); });
}

void mlir::diffattn::gpucode::emitDecodeKernel(AttentionKernel &kernel) {
  DecodeKernel(kernel).emit();
}
